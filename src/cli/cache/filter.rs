//! Which entries, on the command line.

use clap::builder::{PossibleValuesParser, TypedValueParser};
use ragstone_actors::ragstone::entries::EntryFilter;
use ragstone_storage::tier::Tier;
use ragstone_terminal::output;

use crate::error::{Error, Result};

/// Entries must fit everything that is given.
#[derive(Debug, Default, clap::Args)]
pub struct Filter {
    /// Entries of this collection's passages, whatever stood before them
    #[arg(long, value_name = "NAME")]
    collection: Option<String>,
    /// Entries of this document's passages, as ragstone documents list prints it
    #[arg(long, value_name = "ID")]
    document: Option<String>,
    /// Entries of the modules of this schema, as ragstone pml list prints it; of --tenant, else of the default one
    #[arg(long, value_name = "NAME")]
    schema: Option<String>,
    /// Of these, entries of this module and of what it contains, as ragstone pml show prints it
    #[arg(long, value_name = "PATH", requires = "schema")]
    module: Option<String>,
    /// Entries of this tenant; "" is the default one
    #[arg(long, value_name = "NAME")]
    tenant: Option<String>,
    /// Entries that this tier has
    #[arg(long, value_parser = tiers(&["device", "host", "disk", "object"]))]
    tier: Option<Tier>,
    /// Entries that were not used for so long: 90s, 30m, 12h, 7d
    #[arg(long, value_name = "TIME")]
    older_than: Option<Age>,
    /// Entries that were used within this time
    #[arg(long, value_name = "TIME")]
    younger_than: Option<Age>,
    /// Entries of this model: its name, or the beginning of its fingerprint (--model chooses the model to run)
    #[arg(long, value_name = "NAME")]
    of_model: Option<String>,
}

/// One document of a collection, or all of it.
#[derive(Debug, clap::Args)]
pub struct Subject {
    /// The collection
    #[arg(long, value_name = "NAME", default_value = "default")]
    pub collection: String,
    /// Only this document of it, as ragstone documents list prints it
    #[arg(long, value_name = "ID")]
    pub document: Option<String>,
}

impl Subject {
    /// In words.
    pub fn shown(&self) -> String {
        match &self.document {
            Some(document) => format!("document {} of {}", output::one_line(document, 40), self.collection),
            None => self.collection.clone(),
        }
    }
}

/// A time in seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Age(pub u64);

impl std::str::FromStr for Age {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let wrong = || Error::invalid_input(format!("`{text}` is no time; write it as 90s, 30m, 12h or 7d"));
        let (number, unit) = text.split_at(text.len() - text.chars().last().map_or(0, char::len_utf8));
        let seconds: u64 = match unit {
            "s" => 1,
            "m" => 60,
            "h" => 3600,
            "d" => 86_400,
            _ => return Err(wrong()),
        };
        let number: u64 = number.parse().map_err(|_| wrong())?;
        number.checked_mul(seconds).map(Self).ok_or_else(wrong)
    }
}

impl Filter {
    /// As requests have it.
    pub fn entries(&self) -> EntryFilter {
        EntryFilter {
            collection: self.collection.clone(),
            document: self.document.clone(),
            schema: self.schema.clone(),
            module: self.module.clone(),
            tenant: self.tenant.clone(),
            tier: self.tier,
            older_than_s: self.older_than.map(|age| age.0),
            younger_than_s: self.younger_than.map(|age| age.0),
            model: self.of_model.clone(),
        }
    }
}

/// Reads one of these tiers by its name.
pub fn tiers(names: &'static [&'static str]) -> impl TypedValueParser<Value = Tier> {
    let tier = |name: String| Tier::ALL.into_iter().find(|tier| tier.name() == name).ok_or("no tier");
    PossibleValuesParser::new(names).try_map(tier)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_a_unit() {
        let age = |text: &str| text.parse::<Age>().map(|age| age.0).ok();
        assert_eq!(age("90s"), Some(90));
        assert_eq!(age("30m"), Some(1800));
        assert_eq!(age("7d"), Some(604_800));
        for bad in ["", "7", "d", "-1d", "1.5h", "7 d", "7é", "99999999999999999999d", "999999999999999999d"] {
            assert_eq!(age(bad), None, "{bad}");
        }
    }

    #[test]
    fn only_what_is_given_is_sent() {
        let filter = Filter { tenant: Some(String::new()), older_than: Some(Age(60)), ..Filter::default() };
        let sent = serde_json::to_value(filter.entries()).unwrap();
        assert_eq!(sent, serde_json::json!({ "tenant": "", "older_than_s": 60 }));
        assert!(Filter::default().entries().is_empty());
    }
}
