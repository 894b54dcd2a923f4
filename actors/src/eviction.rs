//! The eviction worker: files fresh KV, and makes room for it.

use std::sync::Arc;

use ragstone_kernels::memory::{self, Work};
use ragstone_kernels::pool::KvLayout;
use ragstone_storage::entry::{EntryBuilder, NewEntry};
use ragstone_storage::store::KvStore;
use tokio::runtime::Handle;

use crate::error::{Error, ErrorKind, Result};
use crate::prefill::FreshSegment;
use crate::worker::Service;

/// Keeps the tiers within their bounds while new entries come in.
pub struct Evictor {
    /// Where KV is kept.
    pub store: KvStore,
    /// Shape of the model's KV.
    pub layout: KvLayout,
    /// Blocking threads for checksums and disk writes.
    pub runtime: Handle,
}

/// Fresh KV of one prompt.
pub struct FreshKv {
    /// The tenant it belongs to.
    pub tenant: Arc<str>,
    /// Segments that were computed exactly, in prompt order.
    pub segments: Vec<FreshSegment>,
    /// The store's epoch when they were planned.
    pub planned_in: u64,
}

impl Service for Evictor {
    const NAME: &'static str = "eviction";
    const ENDS_WITH_CALLER: bool = false;
    type Request = FreshKv;
    type Reply = ();

    async fn handle(self: Arc<Self>, keep: FreshKv) -> Result<()> {
        let runtime = self.runtime.clone();
        match runtime.spawn_blocking(move || self.keep(keep)).await {
            Ok(kept) => kept,
            Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
            Err(_) => Err(Error::new(ErrorKind::Cancelled, "the service is shutting down")),
        }
    }
}

impl Evictor {
    /// Into host memory, so that the next question finds it, and from there behind to the slower tiers.
    fn keep(&self, keep: FreshKv) -> Result<()> {
        let tokens = keep.segments.iter().map(|segment| segment.tokens.len() as u64).sum();
        for segment in keep.segments {
            let mut builder = EntryBuilder::new(NewEntry {
                fingerprint: *self.store.fingerprint(),
                salt: keep.tenant.clone(),
                parent: segment.parent,
                tokens: segment.tokens,
                layers: self.layout.layers as u32,
                kv_dim: self.layout.kv_dim() as u32,
                dtype: self.layout.dtype,
            })?;
            if *builder.key() != segment.key {
                let message = format!("an entry planned as {} came out as {}", segment.key, builder.key());
                return Err(Error::new(ErrorKind::Internal, message));
            }
            for (k, v) in &segment.layers {
                builder.push_layer(k, v)?;
            }
            let entry = builder.finish(segment.compute_us, self.store.env().now_unix_ms())?;
            self.store.keep(entry, keep.planned_in)?;
        }
        memory::give_back_after(Work::Prefill { tokens });
        Ok(())
    }
}
