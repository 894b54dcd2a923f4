//! `ragstone keys add | list | set | revoke`

use ragstone_actors::admission::quotas::read_quotas;
use ragstone_service::access;
use ragstone_service::api::List;
use ragstone_service::api::keys::{AddKey, AddedKey, Key, OwnKey, RevokedKey};
use ragstone_service::api::quotas::{ChangeQuotas, QuotaChanges, QuotaUse, TenantQuotas};
use ragstone_service::client::Client;
use ragstone_service::config::{Config, KeyMode};
use ragstone_storage::catalog::Role;
use ragstone_terminal::progress::tell;
use ragstone_terminal::{output, table};

use crate::error::{Error, Result};

#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Make a key and print it, this once: only its hash is kept
    Add(AddArgs),
    /// List keys: names, roles, tenants; never the keys themselves
    List {
        /// Print one JSON array
        #[arg(long)]
        json: bool,
    },
    /// Set a tenant's quotas, or take some away; they count from the next request on
    Set(SetArgs),
    /// Revoke a key: what is asked with it from now on is refused; wants --yes
    Revoke {
        /// As ragstone keys list prints it
        #[arg(value_name = "NAME")]
        name: String,
        /// Revoke it without a question
        #[arg(long)]
        yes: bool,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
}

#[derive(Debug, clap::Args)]
pub struct AddArgs {
    /// What to know the key by, such as the name of who or what will use it
    #[arg(value_name = "NAME")]
    name: String,
    /// read: ask, search, list. write: also add and delete documents. admin: also look after the service, for every tenant
    #[arg(long, value_enum, default_value = "read")]
    role: KeyRole,
    /// Whose key it is; its collections and its KV are this tenant's alone
    #[arg(long, value_name = "NAME", default_value = "")]
    tenant: String,
    /// A collection of another tenant that it may read, too, as TENANT/NAME (NAME: the default tenant's); may be given again
    #[arg(long = "collection", value_name = "NAME")]
    collections: Vec<String>,
    /// A quota of its tenant that is set before: requests_per_minute, tokens_per_minute, documents, host_bytes, disk_bytes, host_share_bytes, disk_share_bytes; may be given again
    #[arg(long = "quota", value_name = "NAME=NUMBER")]
    quota: Vec<String>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Args)]
pub struct SetArgs {
    /// Whose quotas; without, the default tenant's
    #[arg(long, value_name = "NAME", default_value = "")]
    tenant: String,
    /// requests_per_minute, tokens_per_minute, documents, host_bytes, disk_bytes, host_share_bytes or disk_share_bytes, such as disk_bytes=4GiB; none takes it away; may be given again
    #[arg(long = "quota", value_name = "NAME=NUMBER", required = true)]
    quota: Vec<String>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum KeyRole {
    Read,
    Write,
    Admin,
}

impl From<KeyRole> for Role {
    fn from(role: KeyRole) -> Self {
        match role {
            KeyRole::Read => Self::Read,
            KeyRole::Write => Self::Write,
            KeyRole::Admin => Self::Admin,
        }
    }
}

/// Runs a subcommand of `keys`.
pub async fn run(config: &Config, command: Command) -> Result<()> {
    match command {
        Command::Add(args) => add(config, args).await,
        Command::List { json } => list(config, json).await,
        Command::Set(args) => set(config, args).await,
        Command::Revoke { name, yes, json } => revoke(config, &name, yes, json).await,
    }
}

async fn add(config: &Config, args: AddArgs) -> Result<()> {
    let AddArgs { name, role, tenant, collections, quota, json } = args;
    let (role, tenant, collections) = (Some(role.into()), Some(tenant), Some(collections));
    let quota = if quota.is_empty() { None } else { Some(changes(&quota)?) };
    let body = AddKey { name, role, tenant, collections, quota };
    let work = async |client: &Client| client.post(&["v1", "keys"], &body).await;
    let added: AddedKey = access::creating(config, "keys add", work).await?;
    let written = if json { output::json(&added) } else { output::line(&added.key) };
    if let Err(error) = written {
        // Nobody has it.
        let name = &*added.shown.own.name;
        let work = async |client: &Client| client.delete(&["v1", "keys", name]).await;
        let revoked: Result<RevokedKey> = access::with(config, "keys add", work).await;
        return Err(match revoked {
            Ok(_) => error,
            Err(left) => {
                Error::internal(format!("{error}; and key {name}, which nobody has, could not be revoked: {left}"))
            }
        });
    }
    if json {
        return Ok(());
    }
    // Beside the key, which a script takes from standard output.
    tell("This is shown once; only its hash is kept. Send it as `Authorization: Bearer …`.");
    if config.surface.keys == KeyMode::Off {
        tell("A service asks for keys where it is started by `ragstone serve --keys required`.");
    }
    Ok(())
}

async fn list(config: &Config, json: bool) -> Result<()> {
    let work = async |client: &Client| {
        let keys: List<Key> = client.get(&["v1", "keys"]).await?;
        let quotas: List<TenantQuotas> = client.get(&["v1", "quotas"]).await?;
        Ok((keys, quotas))
    };
    let (list, quotas) = access::with(config, "keys list", work).await?;
    let cells = |Key { own: OwnKey { name, role, tenant, collections }, .. }: &Key| {
        let collections = output::one_line(&collections.join(" "), 200);
        vec![output::one_line(name, 60), role.name().to_owned(), output::one_line(tenant, 60), collections]
    };
    let none = "there are no keys; `ragstone keys add NAME` makes one";
    table::print(&list.data, json, &["name", "role", "tenant", "collections"], cells, none)?;
    if json || quotas.data.is_empty() {
        return Ok(());
    }
    output::line("")?;
    print_quotas(&quotas.data)
}

/// A row for each quota.
fn print_quotas(tenants: &[TenantQuotas]) -> Result<()> {
    let rows: Vec<(&str, QuotaUse)> =
        tenants.iter().flat_map(|of| of.quotas.iter().map(|quota| (of.tenant.as_str(), *quota))).collect();
    let cells = |(tenant, QuotaUse { name, limit, used }): &(&str, QuotaUse)| {
        let shown = |number: u64| if name.is_bytes() { table::bytes(number) } else { number.to_string() };
        vec![output::one_line(tenant, 60), name.name().to_owned(), shown(*used), shown(*limit)]
    };
    table::print(&rows, false, &["tenant", "quota", "used", "limit"], cells, "no quota counts")
}

async fn set(config: &Config, args: SetArgs) -> Result<()> {
    let SetArgs { tenant, quota, json } = args;
    let body = ChangeQuotas { tenant: Some(tenant), quota: changes(&quota)? };
    let work = async |client: &Client| client.post(&["v1", "quotas"], &body).await;
    let now: TenantQuotas = access::creating(config, "keys set", work).await?;
    if json { output::json(&now) } else { print_quotas(&[now]) }
}

/// Quotas as a request has them.
fn changes(given: &[String]) -> Result<QuotaChanges> {
    let read = read_quotas(given.iter().map(String::as_str))?;
    Ok(read.into_iter().map(|(name, value)| (name.name().to_owned(), value)).collect())
}

async fn revoke(config: &Config, name: &str, yes: bool, json: bool) -> Result<()> {
    if !yes {
        return Err(Error::invalid_input(format!(
            "this refuses whoever uses key {name} from now on; add --yes to do it"
        )));
    }
    let work = async |client: &Client| client.delete(&["v1", "keys", name]).await;
    let revoked: RevokedKey = access::with(config, "keys revoke", work).await?;
    if json {
        return output::json(&revoked);
    }
    output::line(&format!("{name} is revoked"))
}
