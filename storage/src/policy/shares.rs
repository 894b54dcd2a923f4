//! Who gives room in a tier that several parties share: limits and guaranteed shares, as pure functions of what each holds.
//!
//! - **A limit** bounds what a party holds. Where something of its own would exceed it, its own leaves first, least recently used first.
//! - **A share** is guaranteed: nothing of a party leaves for another's sake if less than its share would be left of it. For its own sake it may.
//! - Who leaves is the policy's choice wherever it may be. Where the policy's choice is guaranteed, the party that is furthest above its share
//!   gives what it used least recently.
//!
//! Without limits and shares nothing of this is asked.

/// What a party may hold in a tier, and what it is guaranteed there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Terms {
    /// Bytes that do not leave for another's sake; 0: none.
    pub share_bytes: u64,
    /// The most bytes that it holds; `u64::MAX`: no bound.
    pub limit_bytes: u64,
}

impl Default for Terms {
    fn default() -> Self {
        Self { share_bytes: 0, limit_bytes: u64::MAX }
    }
}

/// What a party holds in a tier.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Holding {
    /// What was agreed with it.
    pub terms: Terms,
    /// Bytes of its entries.
    pub bytes: u64,
    /// Of these, bytes that nothing keeps from being evicted, children leaving first.
    pub evictable_bytes: u64,
    /// Bytes of the entry that it would give next, the one of those which may leave now that it used least recently; `None`: none may.
    pub next_bytes: Option<u64>,
}

impl Holding {
    /// Bytes above its share: these may leave for another's sake.
    pub fn surplus(&self) -> u64 {
        self.bytes.saturating_sub(self.terms.share_bytes)
    }

    /// Whether an entry of so many bytes may leave for another's sake.
    pub fn may_give(&self, bytes: u64) -> bool {
        bytes <= self.surplus()
    }

    /// Bytes by which it would exceed its limit with so many more.
    pub fn over_limit(&self, more: u64) -> u64 {
        self.bytes.saturating_add(more).saturating_sub(self.terms.limit_bytes)
    }

    /// Bytes that it gives for another's sake at least, where no entry is larger than `largest`: it stops giving when the next entry is
    /// larger than what is above its share.
    fn gives_at_least(&self, largest: u64) -> u64 {
        if self.evictable_bytes <= self.surplus() {
            return self.evictable_bytes;
        }
        self.surplus().saturating_add(1).saturating_sub(largest)
    }
}

/// Who gives the next entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Giver {
    /// Whoever the policy chose.
    Policy,
    /// This party, what it used least recently.
    Party(usize),
    /// Nobody may.
    Nobody,
}

/// Whether a tier that holds `held` of at most `capacity` bytes can take `bytes` more of the party `arriving`. Where this says so,
/// [`giver`] names somebody until they fit; it may say no to what would just fit beside guaranteed shares.
pub fn can_make_room(
    parties: &[Holding],
    arriving: usize,
    (held, capacity): (u64, u64),
    bytes: u64,
    largest: u64,
) -> bool {
    let own = parties.get(arriving).copied().unwrap_or_default();
    if own.over_limit(bytes) > own.evictable_bytes {
        return false;
    }
    let missing = held.saturating_add(bytes).saturating_sub(capacity);
    let others = parties.iter().enumerate().filter(|(party, _)| *party != arriving);
    let given =
        others.map(|(_, holding)| holding.gives_at_least(largest)).fold(own.evictable_bytes, u64::saturating_add);
    missing <= given
}

/// Who gives the next entry where room is needed for the party `arriving`, and the policy would let one of `victim`'s leave: a party, and the
/// entry's bytes.
pub fn giver(parties: &[Holding], arriving: usize, victim: Option<(usize, u64)>) -> Giver {
    let may_give = |party: usize, bytes: u64| {
        party == arriving || parties.get(party).is_none_or(|holding| holding.may_give(bytes))
    };
    match victim {
        None => return Giver::Nobody,
        Some((party, bytes)) if may_give(party, bytes) => return Giver::Policy,
        Some(_) => {}
    }
    let candidates = parties.iter().enumerate().filter_map(|(party, holding)| {
        let may = may_give(party, holding.next_bytes?);
        // Whoever needs the room is asked like the others, and last where nobody has more than its share.
        may.then_some((holding.surplus(), std::cmp::Reverse(party)))
    });
    candidates.max().map_or(Giver::Nobody, |(_, std::cmp::Reverse(party))| Giver::Party(party))
}
