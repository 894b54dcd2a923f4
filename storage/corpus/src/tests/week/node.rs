//! A node that follows the log, adds and deletes documents, answers, and optimises: the calls are those of `ingest/upserting.rs`, `table/writing.rs`,
//! `actors/src/upkeep/library` and `actors/src/upkeep/nodes.rs`, in their order.

use std::collections::{BTreeMap, BTreeSet};

use super::table::{Document as Stored, Table};
use super::told::{Kind, Story};
use super::world::World;
use super::*;
use crate::bucket::{Claims, Held, Lease, create_pointer, end_claims, pointer_of, sweep_claims};
use crate::table::{Added, Leaving, commit};
use ragstone_env::Stopwatch;

pub const COLLECTION: &str = "c";
const TABLE: &str = "t";

/// What a node has on its disk.
#[derive(Debug, Default)]
pub struct Disk {
    /// Where it saw the log last.
    pub seen: Option<u64>,
    /// Segments whose KV it has.
    pub kv: BTreeSet<String>,
    /// Segments that leave, until the log has them.
    pub journal: BTreeSet<String>,
}

/// What the tasks of a running node share.
#[derive(Clone)]
pub struct Node {
    pub name: usize,
    pub world: World,
    pub env: Env,
    pub bucket: Bucket,
    pub disk: Arc<Mutex<Disk>>,
    pub story: Arc<Mutex<Story>>,
    /// Segments that left since it began, and when: what was begun before is not stored.
    gone: Arc<Mutex<BTreeMap<String, u64>>>,
    current: UpToDate,
    /// Nodes commit to a collection once in an interval.
    committed: Arc<Mutex<Option<Stopwatch>>>,
}

/// The KV of a document's text.
pub fn segment(document: &str, version: &str) -> String {
    format!("{document}/{version}")
}

impl Node {
    /// Starts a node on its disk.
    pub async fn start(
        name: usize,
        world: World,
        env: Env,
        disk: Arc<Mutex<Disk>>,
        story: Arc<Mutex<Story>>,
    ) -> Result<(Self, Follower)> {
        let store: Arc<dyn ObjectStore> = Arc::new(world.clone());
        let options = BucketOptions { interval: INTERVAL, ..BucketOptions::default() };
        let bucket = Bucket::open(store, Name::default(), options, env.clone()).await?;
        if pointer_of(&bucket, COLLECTION).await?.is_none() {
            create_pointer(&bucket, COLLECTION, TABLE).await?;
        }
        let seen = locked(&disk).seen;
        let mut follower = bucket.gone().follow(seen);
        if follower.look().await?.has_gap {
            locked(&disk).kv.clear();
        } else {
            follower.failed();
        }
        let current = follower.up_to_date();
        let (gone, committed) = (Arc::default(), Arc::default());
        let node = Self { name, world, env, bucket, disk, story, gone, current, committed };
        // What the journal has was not told before a kill.
        node.tell().await?;
        Ok((node, follower))
    }

    fn table(&self) -> Table {
        Table { bucket: self.bucket.clone(), store: Arc::new(self.world.clone()), name: TABLE.into() }
    }

    /// As `actors/src/upkeep/nodes.rs`: looks, applies, is up to date.
    pub async fn follow(self, mut follower: Follower) {
        let mut cleaned = self.env.stopwatch();
        loop {
            if let Ok(followed) = follower.look().await {
                // Takes a moment, and the node may sleep in it.
                self.world.sleep(1 + self.world.below(20)).await;
                for entry in followed.entries {
                    self.forget(&entry.segments);
                }
                let seen = follower.applied();
                locked(&self.disk).seen = Some(seen);
            }
            if cleaned.elapsed() >= Duration::from_secs(3600) {
                cleaned = self.env.stopwatch();
                let _ = follower.collect().await;
                let _ = sweep_claims(&self.bucket).await;
            }
            self.check();
            self.world.sleep(INTERVAL.as_millis() as u64).await;
        }
    }

    /// Takes segments out of every tier.
    fn forget(&self, segments: &[String]) {
        let now_ms = self.world.now_ms();
        for segment in segments {
            locked(&self.disk).kv.remove(segment);
            locked(&self.gone).insert(segment.clone(), now_ms);
        }
    }

    /// A node that says that it is up to date has nothing of what was removed longer ago than is stated.
    fn check(&self) {
        if !self.current.is_now() {
            return;
        }
        let disk = locked(&self.disk);
        for segment in &disk.kv {
            if let Some(late_ms) = locked(&self.story).is_late(segment, self.world.now_ms()) {
                panic!("node {} still has {segment}, {late_ms} ms after it was to be gone", self.name);
            }
        }
    }

    /// What the journal has goes to the log, and out of this node's tiers.
    async fn tell(&self) -> Result<()> {
        let segments: Vec<String> = locked(&self.disk).journal.iter().cloned().collect();
        if segments.is_empty() {
            return Ok(());
        }
        self.bucket.gone().tell(&GoneEntry { segments: segments.clone() }).await?;
        locked(&self.story).told(&segments, self.world.now_ms());
        self.forget(&segments);
        locked(&self.disk).journal.retain(|segment| !segments.contains(segment));
        Ok(())
    }

    async fn commit(&self, rows: Vec<Stored>, removed: Vec<Leaving>) -> Result<()> {
        let pause = {
            let mut committed = locked(&self.committed);
            let past = committed.as_ref().map(Stopwatch::elapsed);
            *committed = Some(self.env.stopwatch());
            past.and_then(|past| Duration::from_secs(1).checked_sub(past))
        };
        if let Some(pause) = pause {
            self.world.sleep(pause.as_millis() as u64).await;
        }
        let of = |row: &Stored| Added { id: row.id.clone(), version: row.version.clone(), generation: row.generation };
        let added: Vec<Added> = rows.iter().map(of).collect();
        commit(&self.table(), &self.bucket, (COLLECTION, TABLE), &rows, &added, &removed).await.end
    }

    /// What is there of a document, the latest claim's first.
    async fn there(&self, document: &str) -> Result<Vec<Stored>> {
        let mut rows: Vec<Stored> = self.table().latest().await?.1;
        rows.retain(|row| row.id == document);
        rows.sort_by_key(|row| std::cmp::Reverse(row.generation));
        Ok(rows)
    }

    fn leaves(&self, document: &str, rows: &[Stored], but: &str) {
        let leaving = rows.iter().filter(|row| row.version != but).map(|row| segment(document, &row.version));
        locked(&self.disk).journal.extend(leaving);
    }

    /// Waits until no other node adds a document.
    async fn claim(&self, document: &str) -> Result<Claims> {
        let documents = [document.to_owned()];
        for _ in 0..20 {
            if let Ok(taken) = Claims::take(&self.bucket, COLLECTION, &documents).await? {
                return Ok(taken);
            }
            self.world.sleep(2000).await;
        }
        Err(Error::new(ErrorKind::Unavailable, "another node adds it for as long as anybody waits"))
    }

    /// Adds a document.
    async fn upsert(&self, document: &str, version: &str) -> Result<()> {
        let claims = self.claim(document).await?;
        let written = self.write(document, version, &claims).await;
        claims.give_back(&self.bucket).await;
        written?;
        self.tell().await
    }

    /// Adds a document that has no words any more.
    async fn empty(&self, document: &str) -> Result<()> {
        let mut claims = self.claim(document).await?;
        let emptied = self.take_emptied_out(document, &mut claims).await;
        claims.give_back(&self.bucket).await;
        emptied?;
        self.tell().await
    }

    async fn take_emptied_out(&self, document: &str, claims: &mut Claims) -> Result<()> {
        // It is cut, and others of its group are embedded.
        self.world.sleep(100 + self.world.below(5000)).await;
        let there = self.there(document).await?;
        if there.is_empty() {
            return Ok(());
        }
        self.leaves(document, &there, "");
        self.check_claims(claims).await?;
        let up_to = claims.generation(document);
        if claims.end(&self.bucket, &[document.to_owned()]).await?.is_some() {
            return Err(Error::new(ErrorKind::Unavailable, "another node took it over"));
        }
        self.take_out(document, up_to).await
    }

    /// As `take_out` does it.
    async fn take_out(&self, document: &str, up_to: u64) -> Result<()> {
        if self.there(document).await?.is_empty() {
            return Ok(());
        }
        self.commit(Vec::new(), vec![Leaving { id: document.into(), up_to: Some(up_to) }]).await
    }

    async fn write(&self, document: &str, version: &str, claims: &Claims) -> Result<()> {
        // It is cut and embedded.
        self.world.sleep(100 + self.world.below(5000)).await;
        let there = self.there(document).await?;
        if there.iter().any(|row| row.version == version) {
            return Ok(());
        }
        self.leaves(document, &there, version);
        self.check_claims(claims).await?;
        let row = Stored { id: document.into(), version: version.into(), generation: claims.generation(document) };
        let removed = if there.is_empty() { Vec::new() } else { vec![Leaving::whole(document)] };
        self.commit(vec![row], removed).await?;
        if let Err(error) = self.check_claims(claims).await {
            let deleted = claims.deleted_of(&self.bucket, &[document.to_owned()]).await?;
            if !deleted.is_empty() {
                let up_to = claims.generation(document);
                let mut own = self.there(document).await?;
                own.retain(|row| row.generation <= up_to);
                self.leaves(document, &own, "");
                self.take_out(document, up_to).await?;
            }
            return Err(error);
        }
        Ok(())
    }

    async fn check_claims(&self, claims: &Claims) -> Result<()> {
        match claims.look(&self.bucket).await? {
            Held::Still => Ok(()),
            Held::Deleted(_) | Held::TakenOver(_) => Err(Error::new(ErrorKind::Cancelled, "not this node's any more")),
        }
    }

    /// As `remove_shared` does it.
    async fn remove(&self, document: &str) -> Result<()> {
        let documents = [document.to_owned()];
        end_claims(&self.bucket, COLLECTION, &documents).await?;
        if self.there(document).await?.is_empty() {
            return Ok(());
        }
        self.commit(Vec::new(), vec![Leaving::whole(document)]).await
    }

    async fn delete(&self, document: &str) -> Result<()> {
        self.leaves(document, &self.there(document).await?, "");
        self.remove(document).await?;
        self.tell().await
    }

    /// What people do at this node, for ever.
    pub async fn serve(self) {
        loop {
            self.world.sleep(1000 + self.world.below(PAUSE_MS)).await;
            let document = format!("d{}", self.world.below(DOCUMENTS));
            match self.world.below(10) {
                0..=3 => {
                    let version = format!("v{}", self.world.below(1_000_000));
                    let number = locked(&self.story).begins(
                        self.name,
                        &document,
                        Kind::Added(version.clone()),
                        self.world.now_ms(),
                    );
                    let done = self.upsert(&document, &version).await;
                    locked(&self.story).ends(number, done.is_ok(), self.world.now_ms());
                }
                one @ 4..=5 => {
                    let number = locked(&self.story).begins(self.name, &document, Kind::Deleted, self.world.now_ms());
                    let done = if one == 4 { self.delete(&document).await } else { self.empty(&document).await };
                    locked(&self.story).ends(number, done.is_ok(), self.world.now_ms());
                }
                _ => drop(self.answer(&document).await),
            }
        }
    }

    /// An answer from a document: its KV is loaded, or computed and stored.
    async fn answer(&self, document: &str) -> Result<()> {
        if !self.current.is_now() {
            return Ok(());
        }
        let began_ms = self.world.now_ms();
        let Some(row) = self.there(document).await?.into_iter().next() else { return Ok(()) };
        let segment = segment(document, &row.version);
        locked(&self.story).is_there(&segment, began_ms);
        if locked(&self.disk).kv.contains(&segment) {
            self.check();
            return Ok(());
        }
        self.world.sleep(50 + self.world.below(3000)).await;
        // The store's epochs: what left since it was planned is not stored.
        if locked(&self.gone).get(&segment).is_none_or(|gone_ms| *gone_ms < began_ms) {
            locked(&self.disk).kv.insert(segment);
        }
        Ok(())
    }

    /// Rewrites the table where it has the lease, in steps.
    pub async fn optimise(self) {
        loop {
            self.world.sleep(60_000 + self.world.below(600_000)).await;
            let Ok(Some(mut lease)) = Lease::to_optimise(&self.bucket, TABLE).await else { continue };
            locked(&self.story).leased(self.name);
            for _ in 0..1 + self.world.below(4) {
                self.world.sleep(self.world.below(20_000)).await;
                match lease.renew().await {
                    Ok(true) => locked(&self.story).renewed(self.name),
                    _ => break,
                }
                // The same rows in another version: whoever commits meanwhile is not in its way.
                let _ = self.table().commit(|rows| rows).await;
            }
            let _ = self.table().prune().await;
            // Before it is free for others.
            locked(&self.story).given_back(self.name);
            lease.give_back().await;
        }
    }
}
