//! The embedding models that collections were built with.

use std::collections::HashMap;
use std::sync::Arc;

use super::table::Collection;
use super::{Earlier, PassageEncoder};

/// The model in use, and earlier ones that were asked for when the corpus was opened, by their identities; `None`: it cannot be loaded any more.
/// Each is loaded once, however many collections were built with it.
pub(super) struct Embedders(HashMap<String, Option<Arc<dyn PassageEncoder>>>);

impl Embedders {
    /// With the model in use.
    pub fn new(own: &Arc<dyn PassageEncoder>) -> Self {
        Self(HashMap::from([(own.identity(), Some(own.clone()))]))
    }

    /// Gives a collection the model that it was built with, which `earlier` is asked for where it is not known yet.
    pub fn load(&mut self, collection: &mut Collection, earlier: Option<Earlier<'_>>) {
        let identity = collection.embedding().to_owned();
        let find = || earlier.and_then(|earlier| earlier(&identity));
        self.0.entry(identity.clone()).or_insert_with(find);
        self.give(collection);
    }

    /// As [`load`](Self::load), of a collection that is opened later: where its model is not known, words alone are searched.
    pub fn give(&self, collection: &mut Collection) {
        let known = self.0.get(collection.embedding()).cloned().flatten();
        collection.embedder = known.filter(|embedder| embedder.dimension() == collection.dimension());
    }
}
