//! Who asks, as far as fairness goes: whoever comes with keys of one tenant, or without one from one address, shares what that is given.

use std::net::{IpAddr, Ipv6Addr};

/// Somebody who asks. Not who pays or who may: a name for shares, cheap to compare. Background work and the program itself
/// are one caller, the default.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Caller(Who);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
enum Who {
    #[default]
    Program,
    Address(IpAddr),
    /// The first bytes of its name's hash.
    Tenant(u64),
}

impl Caller {
    /// The caller behind a tenant's API keys, wherever they come from.
    pub fn of_tenant(tenant: &str) -> Self {
        let mut number = [0; 8];
        number.copy_from_slice(&blake3::hash(tenant.as_bytes()).as_bytes()[..8]);
        Self(Who::Tenant(u64::from_le_bytes(number)))
    }

    /// Whether it is a tenant, by its keys: what tenants' quotas bind.
    pub fn is_tenant(self) -> bool {
        matches!(self.0, Who::Tenant(_))
    }

    /// The caller behind an address. An IPv6 network of 64 bits is one: that is what one machine is given.
    pub fn of(address: IpAddr) -> Self {
        Self(Who::Address(match address.to_canonical() {
            IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() >> 64 << 64)),
            v4 @ IpAddr::V4(_) => v4,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_a_caller_and_so_is_an_ipv6_network() {
        let of = |address: &str| Caller::of(address.parse().unwrap());
        assert_eq!(of("10.0.0.1"), of("::ffff:10.0.0.1"));
        assert_ne!(of("10.0.0.1"), of("10.0.0.2"));
        assert_eq!(of("2001:db8:1:2::1"), of("2001:db8:1:2:ffff::"));
        assert_ne!(of("2001:db8:1:2::1"), of("2001:db8:1:3::1"));
        assert_ne!(of("127.0.0.1"), Caller::default());
        assert_eq!(Caller::of_tenant("acme"), Caller::of_tenant("acme"));
        assert_ne!(Caller::of_tenant("acme"), Caller::of_tenant(""));
    }
}
