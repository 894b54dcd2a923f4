//! `ragstone keys add | list | revoke`

use ragstone_service::access;
use ragstone_service::api::List;
use ragstone_service::api::keys::{AddKey, AddedKey, Key, OwnKey, RevokedKey};
use ragstone_service::client::Client;
use ragstone_service::config::{Config, KeyMode};
use ragstone_storage::catalog::Role;
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
        Command::Revoke { name, yes, json } => revoke(config, &name, yes, json).await,
    }
}

async fn add(config: &Config, args: AddArgs) -> Result<()> {
    let AddArgs { name, role, tenant, collections, json } = args;
    let (role, tenant, collections) = (Some(role.into()), Some(tenant), Some(collections));
    let body = AddKey { name, role, tenant, collections };
    let work = async |client: &Client| client.post(&["v1", "keys"], &body).await;
    let added: AddedKey = access::creating(config, "keys add", work).await?;
    if json {
        return output::json(&added);
    }
    output::line(&added.key)?;
    // Beside the key, which a script takes from standard output.
    eprintln!("This is shown once; only its hash is kept. Send it as `Authorization: Bearer …`.");
    if config.surface.keys == KeyMode::Off {
        eprintln!("A service asks for keys where it is started by `ragstone serve --keys required`.");
    }
    Ok(())
}

async fn list(config: &Config, json: bool) -> Result<()> {
    let work = async |client: &Client| client.get(&["v1", "keys"]).await;
    let list: List<Key> = access::with(config, "keys list", work).await?;
    let cells = |Key { own: OwnKey { name, role, tenant, collections }, .. }: &Key| {
        let collections = output::one_line(&collections.join(" "), 200);
        vec![output::one_line(name, 60), role.name().to_owned(), output::one_line(tenant, 60), collections]
    };
    let none = "there are no keys; `ragstone keys add NAME` makes one";
    table::print(&list.data, json, &["name", "role", "tenant", "collections"], cells, none)
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
