//! The log of what was removed.

use super::*;

fn entry(segment: &str) -> GoneEntry {
    GoneEntry { segments: vec![segment.to_owned()] }
}

async fn bucket(store: &Arc<Shaky>, env: &Env) -> Bucket {
    Bucket::open(store.clone(), Name::default(), BucketOptions::default(), env.clone()).await.unwrap()
}

fn segments(followed: &Followed) -> Vec<&str> {
    followed.entries.iter().flat_map(|entry| entry.segments.iter().map(String::as_str)).collect()
}

#[tokio::test]
async fn every_node_hears_once_of_everything_whatever_their_clocks_say() {
    let store = Shaky::new();
    // Two minutes behind and ahead of the bucket; they know by how much, as far as the bucket tells the time.
    let envs = [-120_000_i64, 0, 120_000].map(|by_ms| {
        let env = Env::system_with_seed(by_ms as u64);
        env.set_clock(by_ms);
        env
    });
    let mut logs = Vec::new();
    for env in &envs {
        logs.push(bucket(&store, env).await.gone());
    }
    let mut followers: Vec<Follower> = logs.iter().map(|log| log.follow(None)).collect();
    for follower in &mut followers {
        assert_eq!(follower.look().await.unwrap().entries, []);
        follower.applied();
    }
    let mut heard = vec![Vec::new(); 3];
    let mut told = Vec::new();
    for n in 0..30 {
        let segment = format!("s{n:02}");
        logs[n % 3].tell(&entry(&segment)).await.unwrap();
        told.push(segment);
        let at = (n * 7) % 3;
        let followed = followers[at].look().await.unwrap();
        heard[at].extend(segments(&followed).iter().map(|segment| (*segment).to_owned()));
    }
    for (at, follower) in followers.iter_mut().enumerate() {
        let followed = follower.look().await.unwrap();
        heard[at].extend(segments(&followed).iter().map(|segment| (*segment).to_owned()));
        heard[at].sort();
        assert_eq!(heard[at], told, "node {at}");
        assert_eq!(follower.look().await.unwrap().entries, []);
    }
}

#[tokio::test]
async fn a_node_that_cannot_look_is_not_up_to_date_after_three_intervals() {
    let (store, env) = (Shaky::new(), Env::seeded(1, 1_000_000));
    let log = bucket(&store, &env).await.gone();
    let mut follower = log.follow(None);
    let current = follower.up_to_date();
    assert!(!current.is_now());
    assert!(follower.look().await.unwrap().has_gap, "a node that never looked has to begin without KV");
    assert!(!current.is_now(), "it is not applied yet");
    follower.applied();
    assert!(current.is_now());
    store.is_down.store(true, Ordering::Relaxed);
    env.advance(Duration::from_secs(3));
    follower.look().await.unwrap_err();
    assert!(current.is_now());
    env.advance(Duration::from_millis(1));
    assert!(!current.is_now());
    store.is_down.store(false, Ordering::Relaxed);
    log.tell(&entry("x")).await.unwrap();
    assert_eq!(segments(&follower.look().await.unwrap()), ["x"]);
    // What could not be applied comes again.
    follower.failed();
    assert_eq!(segments(&follower.look().await.unwrap()), ["x"]);
    follower.applied();
    assert!(current.is_now());
}

#[tokio::test]
async fn a_node_that_comes_back_hears_what_it_missed_or_that_nobody_can_say() {
    let (store, env) = (Shaky::new(), Env::seeded(1, 1_000_000));
    let log = bucket(&store, &env).await.gone();
    let mut follower = log.follow(None);
    follower.look().await.unwrap();
    let since = follower.applied();
    log.tell(&entry("missed")).await.unwrap();
    let followed = log.follow(Some(since)).look().await.unwrap();
    assert_eq!((segments(&followed), followed.has_gap), (vec!["missed"], false));
    // Much was missed, and could not be applied at once.
    store.ahead_ms.store(3600 * 1000, Ordering::Relaxed);
    bucket(&store, &env).await.gone().tell(&entry("later")).await.unwrap();
    let mut follower = log.follow(Some(since));
    for _ in 0..2 {
        assert_eq!(segments(&follower.look().await.unwrap()), ["missed", "later"]);
        follower.failed();
    }
    follower.look().await.unwrap();
    follower.applied();
    assert_eq!(follower.look().await.unwrap().entries, []);
    // A week later the log is collected, and a node that was away for longer cannot know.
    store.ahead_ms.store(8 * 24 * 3600 * 1000, Ordering::Relaxed);
    let mut later = log.follow(Some(since));
    assert!(later.look().await.unwrap().has_gap);
    assert_eq!(later.collect().await.unwrap(), 2);
    assert_eq!(later.collect().await.unwrap(), 0);
}

#[tokio::test]
async fn a_node_that_runs_on_and_applies_nothing_for_longer_than_the_log_is_kept_is_not_up_to_date_again() {
    let (store, env) = (Shaky::new(), Env::seeded(1, 1_000_000));
    let log = bucket(&store, &env).await.gone();
    let mut follower = log.follow(None);
    let current = follower.up_to_date();
    assert!(follower.look().await.unwrap().has_gap);
    let seen = follower.applied();
    assert!(current.is_now());
    let day_ms: i64 = 24 * 3600 * 1000;
    store.ahead_ms.store(6 * day_ms, Ordering::Relaxed);
    env.advance(Duration::from_secs(61));
    // It hears of it, and its own disk keeps it from doing anything about that.
    assert!(!follower.look().await.unwrap().has_gap);
    follower.failed();
    store.ahead_ms.store(8 * day_ms, Ordering::Relaxed);
    env.advance(Duration::from_secs(61));
    for _ in 0..2 {
        let followed = follower.look().await.unwrap();
        assert!(followed.has_gap && followed.entries.is_empty(), "{followed:?}");
        assert_eq!(follower.applied(), seen, "the next start finds out, too");
        assert!(!current.is_now());
    }
    let mut again = log.follow(Some(seen));
    assert!(again.look().await.unwrap().has_gap);
    again.applied();
    assert!(again.up_to_date().is_now(), "it began without KV");
    assert!(!again.look().await.unwrap().has_gap);
}
