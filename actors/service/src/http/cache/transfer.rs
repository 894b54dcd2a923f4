//! Entries carried elsewhere: export into a folder or bucket, import from one. For the data folder's owner.

use actix_web::{HttpRequest, web};
use ragstone_actors::ragstone::entries::EntryFilter;
use ragstone_actors::{Ragstone, Settings};
use ragstone_env::Env;
use ragstone_storage::store::Copied;
use ragstone_storage::tier::object::{ConnectionOptions, ObjectOptions, ObjectTier};

use super::entries::take_filter;
use super::upkeep::watched;
use crate::api::cache::{CopiedEntries, Place};
use crate::error::{Error, ErrorKind, Result};
use crate::http::body::Incoming;
use crate::http::error::Answered;
use crate::http::fields::Fields;
use crate::http::identity::Visitor;
use crate::http::state::State;
use crate::lanes::Work;

/// Copies entries into a folder or bucket, in the layout of the object tier: `{"url", …filter, "dry_run"?}`. What is there
/// is skipped. Ends early if the caller goes away.
pub async fn export(state: web::Data<State>, request: HttpRequest, incoming: Incoming) -> Answered {
    let (ragstone, wanted) = wanted(&state, &request, incoming).await?;
    let Wanted { filter, options, dry_run } = wanted;
    let (env, looking) = (state.env.clone(), ragstone.clone());
    let matcher = state.run(&request, Work::Upkeep, async move { filter.look_up(&looking).await }).await??;
    let copied = watched((&state, &request), move |tell| {
        let store = ragstone.store();
        let plan = store.plan_export(&matcher.listed(), &|entry| matcher.matches(entry))?;
        if dry_run {
            // The place is not even opened: that would make the folder.
            return Ok(answer(&plan.preview(), true));
        }
        let bucket = open(&ragstone, &options, env)?;
        let copied = store.export(&plan, &bucket, &mut |at| tell(done(at), at.wanted))?;
        Ok(answer(&copied, false))
    });
    copied.await
}

/// Copies entries from a folder or bucket to the disk: `{"url", "collection"?, "document"?, "tenant"?, "dry_run"?}`. Every
/// frame is verified. What is there is skipped.
pub async fn import(state: web::Data<State>, request: HttpRequest, incoming: Incoming) -> Answered {
    let (ragstone, wanted) = wanted(&state, &request, incoming).await?;
    let Wanted { filter, options, dry_run } = wanted;
    if filter.tier.is_some() || filter.older_than_s.is_some() || filter.younger_than_s.is_some() {
        let message = "an import goes by collection, document, tenant and model; tier and age are this node's own";
        return Err(Error::invalid_input(message).into());
    }
    check_folder(&options.url)?;
    let (env, looking) = (state.env.clone(), ragstone.clone());
    let matcher = state.run(&request, Work::Upkeep, async move { filter.look_up(&looking).await }).await??;
    let copied = watched((&state, &request), move |tell| {
        let bucket = open(&ragstone, &options, env)?;
        let store = ragstone.store();
        let plan = store.plan_import(&bucket, &|entry| matcher.matches_summary(entry))?;
        let plan = plan.leaving_out(bucket.count_beside()?);
        if dry_run {
            return Ok(answer(&plan.preview(), true));
        }
        let copied = store.import(&plan, &bucket, &mut |at| tell(done(at), at.wanted))?;
        Ok(answer(&copied, false))
    });
    copied.await
}

/// What a request is about.
struct Wanted {
    filter: EntryFilter,
    options: ObjectOptions,
    dry_run: bool,
}

async fn wanted(state: &web::Data<State>, request: &HttpRequest, incoming: Incoming) -> Result<(Ragstone, Wanted)> {
    let ragstone = state.opened()?.ragstone.clone();
    let mut fields = Fields::read(incoming).await?;
    let Place { url, dry_run } = fields.take_all()?;
    if url.starts_with("memory:") {
        let message = "memory:// lies in the memory of this very process: an export would be gone with it, and an import \
                       finds nothing there; name a folder (file:///folder) or a bucket (s3://bucket/prefix)";
        return Err(Error::invalid_field("url", message));
    }
    let filter = take_filter(&mut fields, &Visitor::of(request)?)?;
    fields.finish()?;
    Ok((ragstone, Wanted { filter, options: reached(&url, &state.settings), dry_run }))
}

/// A cloud is reached as the settings say; a folder needs nothing. Either is sealed as the bucket is.
fn reached(url: &str, settings: &Settings) -> ObjectOptions {
    let options =
        if url.starts_with("file://") { ConnectionOptions::default() } else { settings.object_options.clone() };
    // What is carried elsewhere is to be exact there.
    let (codec, of_bucket) = (settings.object_codec.exact(), settings.object_at(url));
    let ObjectOptions { keys, encrypt, accept_unsealed, .. } = of_bucket;
    ObjectOptions { options, codec, keys, encrypt, accept_unsealed, ..ObjectOptions::new(url) }
}

/// A folder to import from has to be there: opening it would make it.
fn check_folder(url: &str) -> Result<()> {
    let folder = url.starts_with("file://").then(|| reqwest::Url::parse(url).ok()?.to_file_path().ok()).flatten();
    match folder {
        Some(folder) if !folder.is_dir() => {
            let message = format!("there is no folder {}; check the path", folder.display());
            Err(Error::of_field(ErrorKind::NotFound, "url", message))
        }
        _ => Ok(()),
    }
}

fn open(ragstone: &Ragstone, options: &ObjectOptions, env: Env) -> Result<ObjectTier> {
    ObjectTier::open(options, *ragstone.store().fingerprint(), env)
}

fn done(at: &Copied) -> u64 {
    at.entries + at.already_there + at.refused + at.unreadable + at.damaged
}

fn answer(copied: &Copied, dry_run: bool) -> CopiedEntries {
    CopiedEntries { copied: *copied, dry_run }
}
