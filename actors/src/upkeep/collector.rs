//! The bucket's collector, run now and then: where the bucket has a bound in age or size, nobody has to think of it.

use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use ragstone_env::lock::locked;
use ragstone_env::{Env, Stopwatch};
use ragstone_storage::tier::object::{CollectOptions, Collected, ObjectTier};
use tokio::runtime::Handle;

use crate::admission::blocking::blocking;
use crate::admission::jobs::{JobKind, Jobs};
use crate::settings::Settings;

/// How often the clock is looked at, at the least.
const LOOK: Duration = Duration::from_secs(60);

/// Collects one bucket. Other nodes may do the same at the same time: nothing young leaves, and what is gone is gone.
pub(crate) struct Collector {
    /// The tier's owner may close it meanwhile.
    object: Weak<ObjectTier>,
    options: CollectOptions,
    interval: Duration,
    env: Env,
    /// Since the last collection began, or the service: however the wall clock is set meanwhile.
    last: Mutex<Stopwatch>,
}

impl Collector {
    /// `None` where the settings bound nothing and change no key, or want no collection.
    pub fn new(settings: &Settings, object: Option<&Arc<ObjectTier>>, env: Env) -> Option<Arc<Self>> {
        let interval = Duration::from_secs(settings.object_gc_interval_s);
        let is_bounded = settings.object_ttl_s > 0 || settings.object_max_bytes > 0;
        let is_wanted = |object: &&Arc<ObjectTier>| is_bounded || object.reseals();
        let object = Arc::downgrade(object.filter(is_wanted).filter(|_| !interval.is_zero())?);
        let options = CollectOptions { ttl: settings.object_ttl(), ..CollectOptions::default() };
        let last = Mutex::new(env.stopwatch());
        Some(Arc::new(Self { object, options, interval, env, last }))
    }

    /// Looks at the clock now and then, until the tier is closed or the service stops.
    pub fn start(self: Arc<Self>, jobs: Jobs, runtime: &Handle) {
        let pause = self.interval.min(LOOK);
        runtime.spawn(async move {
            let stopping = jobs.stopping().clone();
            while self.object.strong_count() > 0
                && stopping.run_until_cancelled(tokio::time::sleep(pause)).await.is_some()
            {
                self.look(&jobs).await;
            }
        });
    }

    /// Looks at the clock once. Only a collection is a job: a look is none, or a calibration that waits for quiet would never find any.
    async fn look(self: &Arc<Self>, jobs: &Jobs) {
        if !self.is_due() {
            return;
        }
        let (collector, stopping) = (self.clone(), jobs.stopping().clone());
        // It may take minutes, and waits for the network.
        let collection = blocking(move || Ok(collector.collect_if_due(&|| !stopping.is_cancelled())));
        if let Err(error) = jobs.run(JobKind::Collection, collection).await {
            tracing::warn!(%error, "the bucket's collection ended early");
        }
    }

    /// Whether the interval has passed since the last time, and there is a bucket still.
    fn is_due(&self) -> bool {
        self.object.strong_count() > 0 && locked(&self.last).elapsed() >= self.interval
    }

    /// Collects if the interval has passed since the last time; what left. A failure is a warning, and tried again an interval
    /// later. It ends early once it is not `wanted` any more. BLOCKS.
    pub fn collect_if_due(&self, wanted: &dyn Fn() -> bool) -> Option<Collected> {
        let object = {
            let mut last = locked(&self.last);
            let object = self.object.upgrade().filter(|_| last.elapsed() >= self.interval)?;
            *last = self.env.stopwatch();
            object
        };
        let collected = object.collect_while(&self.options, wanted);
        let collected = collected.inspect_err(|error| tracing::warn!(%error, "the bucket was not collected")).ok()?;
        metrics::counter!("ragstone_object_collected_bytes_total").increment(collected.freed_bytes);
        if collected.other_keys > 0 {
            tracing::info!(
                entries = collected.other_keys,
                "entries of the bucket are sealed by keys that this node does not have"
            );
        }
        if collected.freed_bytes > 0 {
            tracing::info!(
                freed_bytes = collected.freed_bytes,
                "what was too old or too much was removed from the bucket"
            );
        }
        Some(collected)
    }
}

#[cfg(test)]
mod tests {
    use ragstone_env::FailMode;
    use ragstone_kernels::dtype::KvDtype;
    use ragstone_storage::ErrorKind;
    use ragstone_storage::entry::{Entry, EntryBuilder, NewEntry};
    use ragstone_storage::key::Fingerprint;
    use ragstone_storage::tier::EntryTier;

    use super::*;

    const MODEL: Fingerprint = Fingerprint([3; 32]);
    const HOUR: Duration = Duration::from_secs(3600);

    fn entry(token: u32) -> Arc<Entry> {
        let new = NewEntry {
            fingerprint: MODEL,
            salt: "".into(),
            parent: None,
            tokens: [token].into(),
            layers: 1,
            kv_dim: 2,
            dtype: KvDtype::F32,
        };
        let mut builder = EntryBuilder::new(new).unwrap();
        builder.push_layer(&[1; 8], &[2; 8]).unwrap();
        Arc::new(builder.finish(1, 1).unwrap())
    }

    fn settings() -> Settings {
        Settings {
            object_url: Some("memory://collector".into()),
            object_ttl_s: 2 * 3600,
            object_gc_interval_s: 3600,
            ..Settings::default()
        }
    }

    /// The buckets' clock is the system's; ours begins there and is moved by hand.
    #[test]
    fn the_bucket_is_collected_once_an_interval() {
        let env = Env::seeded(1, Env::system().now_unix_ms());
        let settings = settings();
        let object = Arc::new(ObjectTier::open(&settings.object().unwrap(), MODEL, env.clone()).unwrap());
        object.put(&entry(1)).unwrap();
        let collector = Collector::new(&settings, Some(&object), env.clone()).unwrap();
        assert_eq!(collector.collect_if_due(&|| true), None, "not as soon as it starts");
        env.advance(HOUR);
        let collected = collector.collect_if_due(&|| true).unwrap();
        assert_eq!((collected.objects, collected.left_expired), (1, 0));
        assert_eq!(collector.collect_if_due(&|| true), None, "it was just done");
        env.advance(2 * HOUR);
        env.set_fail_point("object.list", FailMode::Error(ErrorKind::Unavailable), 1);
        assert_eq!(collector.collect_if_due(&|| true), None, "a failure is a warning");
        env.set_fail_point("object.list", FailMode::Off, 1);
        assert_eq!(collector.collect_if_due(&|| true), None, "and is not repeated at once");
        env.advance(HOUR);
        assert_eq!(collector.collect_if_due(&|| true).unwrap().left_expired, 1);
        assert!(object.open(&entry(1).header().id()).unwrap().is_none());
        drop(object);
        env.advance(HOUR);
        assert_eq!(collector.collect_if_due(&|| true), None, "the tier is closed");
    }

    /// Whoever waits for quiet would otherwise be disturbed by every look at the clock.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_look_at_the_clock_is_no_job() {
        let env = Env::seeded(1, Env::system().now_unix_ms());
        let settings = Settings { object_url: Some("memory://collector-looks".into()), ..settings() };
        let object = Arc::new(ObjectTier::open(&settings.object().unwrap(), MODEL, env.clone()).unwrap());
        let collector = Collector::new(&settings, Some(&object), env.clone()).unwrap();
        let jobs = Jobs::new(Handle::current());
        let begun = || jobs.begun_but(JobKind::Calibration);
        for _ in 0..3 {
            collector.look(&jobs).await;
        }
        assert_eq!(begun(), 0, "nothing is due");
        env.advance(HOUR);
        collector.look(&jobs).await;
        collector.look(&jobs).await;
        assert_eq!(begun(), 1, "once an interval");
        drop(object);
        env.advance(HOUR);
        collector.look(&jobs).await;
        assert_eq!(begun(), 1, "the tier is closed");
    }

    #[test]
    fn what_has_no_bound_is_not_collected() {
        let object = ObjectTier::open(&settings().object().unwrap(), MODEL, Env::seeded(1, 0)).unwrap();
        let (object, env) = (Arc::new(object), Env::seeded(1, 0));
        let collects = |settings: &Settings| Collector::new(settings, Some(&object), env.clone()).is_some();
        assert!(collects(&settings()));
        assert!(collects(&Settings { object_ttl_s: 0, object_max_bytes: 1, ..settings() }));
        let unbounded = Settings { object_ttl_s: 0, ..settings() };
        assert!(!collects(&unbounded));
        // What lies under a key that is on its way out is sealed anew.
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "07".repeat(31) + "08").unwrap();
        let keys = format!("file:{}", file.path().display()).parse().unwrap();
        let changing = Settings { object_keys: keys, object_accept_unsealed: true, ..unbounded };
        let tier = Arc::new(ObjectTier::open(&changing.object().unwrap(), MODEL, env.clone()).unwrap());
        assert!(Collector::new(&changing, Some(&tier), env.clone()).is_some());
        assert!(!collects(&Settings { object_gc_interval_s: 0, ..settings() }));
        assert!(Collector::new(&settings(), None, env.clone()).is_none());
    }
}
