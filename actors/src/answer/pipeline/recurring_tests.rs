//! A prompt that was blended and comes again in the same order is computed exactly when nobody waits.

use super::hijack_tests::{ask, open, seen};
use super::tests::close;
use super::*;
use crate::question::Reuse;

const PASSAGES: [(&str, &str); 3] = [
    ("Calnix Bakery", "Calnix Bakery makes candles. The founder of Calnix Bakery is Mira Dorman."),
    ("Market letter", "Jona Wanfell owns 3 boats."),
    ("Harbour report", "The founder of Calnix Bakery owns 7 boats."),
];

#[tokio::test(flavor = "multi_thread")]
async fn a_prompt_that_comes_again_is_exact_from_its_third_time_on() {
    let env = Env::seeded(7, 1_795_391_940_000);
    let folder = tempfile::tempdir().unwrap();
    let ragstone = open(&folder, &env).await;
    for passage in PASSAGES {
        ask(&ragstone, &[passage], Reuse::Auto).await;
    }
    let full = seen(&ask(&ragstone, &PASSAGES, Reuse::Off).await);
    // Who names a ratio gets it, however often.
    for _ in 0..3 {
        assert_eq!(seen(&ask(&ragstone, &PASSAGES, Reuse::Ratio(0.1)).await).2, "blend");
    }
    let mut sources = Vec::new();
    for _ in 0..3 {
        let answer = ask(&ragstone, &PASSAGES, Reuse::Auto).await;
        sources.push(seen(&answer).2);
        if sources.len() == 3 {
            assert_eq!(
                (seen(&answer).0, seen(&answer).1),
                (full.0.clone(), full.1.clone()),
                "the bits of a full prefill"
            );
        }
    }
    assert_eq!(sources, ["blend", "blend", "exact"]);
    // Another order is another prompt.
    let [first, second, third] = PASSAGES;
    assert_eq!(seen(&ask(&ragstone, &[first, third, second], Reuse::Auto).await).2, "blend");
    close(ragstone, &folder).await;
}
