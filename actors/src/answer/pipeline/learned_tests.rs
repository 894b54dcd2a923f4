//! A model whose KV has its positions in it (GPT-2, tiny, of random weights) through the whole pipeline: reused at the same positions bit for
//! bit, and never elsewhere.

use std::collections::BTreeMap;
use std::path::Path;

use futures::StreamExt;
use ragstone_kernels::chat::ChatMessage;
use ragstone_kernels::dtype::{ComputeDtype, KvDtype};
use ragstone_storage::store::AdmissionRule;
use serde_json::json;
use tempfile::TempDir;

use super::pml_tests::{PROMPT, Reference, SCHEMA, ask, bits, furthest, input, model, run};
use super::tests::{EVENING_UNIX_MS, answer, close, open_model, question, write_demo};
use super::*;
use crate::question::Reuse;
use crate::ragstone::Ragstone;
use crate::report::Answer;
use crate::upkeep::calibration::Calibrate;

const FEATURES: usize = 32;
const POSITIONS: usize = 1024;
const LAYERS: usize = 2;

/// Puts a GPT-2 in place of the demo model's weights; its tokenizer stays.
fn write_gpt_2(model: &Path) {
    write_demo(model, "qwen_2_5");
    let text = std::fs::read_to_string(model.join("config.json")).unwrap();
    let vocabulary = serde_json::from_str::<serde_json::Value>(&text).unwrap()["vocab_size"].as_u64().unwrap() as usize;
    let config = json!({
        "architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "n_embd": FEATURES, "n_head": 2, "n_layer": LAYERS,
        "n_positions": POSITIONS, "vocab_size": vocabulary, "bos_token_id": 1, "eos_token_id": 2, "torch_dtype": "float32"
    });
    std::fs::write(model.join("config.json"), config.to_string()).unwrap();
    let mut shapes: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    shapes.insert("wte.weight".into(), vec![vocabulary, FEATURES]);
    shapes.insert("wpe.weight".into(), vec![POSITIONS, FEATURES]);
    let mut norm = |name: String| {
        shapes.insert(format!("{name}.weight"), vec![FEATURES]);
        shapes.insert(format!("{name}.bias"), vec![FEATURES]);
    };
    norm("ln_f".into());
    (0..LAYERS).for_each(|layer| ["ln_1", "ln_2"].iter().for_each(|part| norm(format!("h.{layer}.{part}"))));
    for layer in 0..LAYERS {
        for (part, inputs, outputs) in
            [("attn.c_attn", 1, 3), ("attn.c_proj", 1, 1), ("mlp.c_fc", 1, 4), ("mlp.c_proj", 4, 1)]
        {
            shapes.insert(format!("h.{layer}.{part}.weight"), vec![inputs * FEATURES, outputs * FEATURES]);
            shapes.insert(format!("h.{layer}.{part}.bias"), vec![outputs * FEATURES]);
        }
    }
    let (mut header, mut data) = (serde_json::Map::new(), Vec::new());
    let mut rng = fastrand::Rng::with_seed(11);
    for (name, shape) in shapes {
        let (begin, count) = (data.len(), shape.iter().product::<usize>());
        let middle = if name.contains("ln_") && name.ends_with("weight") { 1.0 } else { 0.0 };
        let scale = if shape.len() == 1 { 0.2 } else { 2.0 / (FEATURES as f32).sqrt() };
        (0..count).for_each(|_| data.extend((middle + scale * (2.0 * rng.f32() - 1.0)).to_le_bytes()));
        header.insert(name, json!({ "dtype": "F32", "shape": shape, "data_offsets": [begin, data.len()] }));
    }
    let header = serde_json::Value::from(header).to_string();
    let file = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &data].concat();
    std::fs::write(model.join("model.safetensors"), file).unwrap();
}

/// Blending is permitted, as far as the settings go.
async fn open(folder: &TempDir) -> Ragstone {
    write_gpt_2(&folder.path().join("model"));
    let settings = Settings {
        disk_bytes: 64 << 20,
        host_bytes: 64 << 20,
        kv_admission: AdmissionRule::Always,
        kv_dtype: Some(KvDtype::F32),
        compute: Some(ComputeDtype::F32),
        blend_uncalibrated: true,
        ..Settings::default()
    };
    open_model(folder, settings, &Env::seeded(7, EVENING_UNIX_MS)).await
}

/// A question over documents, in this order.
fn over(order: &[usize], reuse: Reuse) -> Question {
    let texts = ["Callux Motors makes lamps and boats.", "Nine boats lay in the harbour of Tarn.", "It was always so."];
    let document = |at: &usize| InlineDocument { title: format!("Title {at}"), text: texts[*at].into() };
    let documents = order.iter().map(document).collect();
    let messages =
        vec![ChatMessage::new("system", "Be brief."), ChatMessage::new("user", "How many boats lay in Tarn?")];
    let context = Some(Context { documents, ..Context::default() });
    let mut asked = question(Input::Chat { messages, tools: Vec::new(), thinks: None, context }, reuse, 6);
    asked.sampling.logprobs = Some(5);
    asked
}

fn plan_of(answer: &Answer) -> Vec<(&'static str, Why)> {
    answer.finish.report.segments.iter().map(|segment| (segment.source.name(), segment.why)).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_stands_where_it_stood_has_the_bits_of_a_full_prefill_and_what_does_not_is_computed() {
    let folder = tempfile::tempdir().unwrap();
    let mut ragstone = open(&folder).await;
    let cold = answer(&ragstone, over(&[0, 1, 2], Reuse::Off)).await;
    let first = answer(&ragstone, over(&[0, 1, 2], Reuse::Auto)).await;
    assert_eq!(first.finish.report.tokens.exact, 0);
    let mut stored = 0;
    for from in ["device", "disk"] {
        let again = answer(&ragstone, over(&[0, 1, 2], Reuse::Auto)).await;
        assert!(again.finish.report.tokens.exact > 40, "{from}: {:?}", again.finish.report.tokens);
        assert_eq!(bits(&again), bits(&cold), "{from}");
        stored = plan_of(&again).iter().filter(|(source, _)| *source == "exact").count();
        close(ragstone, &folder).await;
        ragstone = open(&folder).await;
    }
    // Nothing was computed in the background: the only entries are those of the prompt as it stood.
    let entries = ragstone.store().status().disk.entries;
    assert!(entries == stored as u64 && stored >= 4, "{entries} for {stored} segments");
    // The passage that stood behind the system prompt is stored, and stands elsewhere now: both orders, and a wish for blending.
    for reuse in [Reuse::Auto, Reuse::Ratio(0.0), Reuse::Ratio(0.5)] {
        for order in [[1, 0, 2], [2, 1, 0]] {
            let cold = answer(&ragstone, over(&order, Reuse::Off)).await;
            let moved = answer(&ragstone, over(&order, reuse)).await;
            let report = &moved.finish.report;
            assert_eq!((report.tokens.blended, report.tokens.recomputed), (0, 0), "{order:?}");
            assert_eq!(report.blending, Blending::CannotMove);
            assert_eq!(bits(&moved), bits(&cold), "{order:?}");
            if reuse == Reuse::Auto {
                let passages = plan_of(&moved);
                let of_the_first = passages[1 + order.iter().position(|at| *at == 0).unwrap()];
                assert_eq!(of_the_first, ("compute", Why::OtherPositions), "{order:?}: {passages:?}");
                assert_eq!(passages[1], ("compute", Why::NotStored));
            }
        }
    }
    let mut events = Box::pin(ragstone.calibrator().run(Calibrate::default()));
    let error = events.next().await.unwrap().unwrap_err();
    drop(events);
    assert!(error.to_string().contains("cannot be moved"), "{error}");
    close(ragstone, &folder).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn modules_are_taken_where_they_were_computed_and_nowhere_else() {
    let folder = tempfile::tempdir().unwrap();
    let ragstone = open(&folder).await;
    let (model, tokenizer) = model(&folder);
    let reference = Reference::of(SCHEMA, PROMPT, &tokenizer, &[]);
    let (logits, (kept, computed)) = (reference.logits(&model), reference.tokens());
    let mut first = None;
    for _ in 0..2 {
        let (answer, account) = run(&ragstone, SCHEMA, PROMPT).await;
        assert!(furthest(&answer, &logits) < 1e-4, "{}", furthest(&answer, &logits));
        assert_eq!((account.exact + account.blended, account.computed, account.recomputed), (kept, computed, 0));
        assert_eq!(*first.get_or_insert_with(|| bits(&answer)), bits(&answer));
    }
    let full = ask(&ragstone, input(SCHEMA, PROMPT), Reuse::Off).await;
    let joined = Reference::of(SCHEMA, PROMPT, &tokenizer, &[]).joined().logits(&model);
    assert!(furthest(&full, &joined) < 1e-4);
    // The same schema behind more text: every module of it has other positions, and is computed for them.
    let entries = ragstone.store().status().host.entries;
    let longer = SCHEMA.replace("Nine boats lay", "A long time ago nine boats lay");
    let reference = Reference::of(&longer, PROMPT, &tokenizer, &[]);
    let (answer, account) = run(&ragstone, &longer, PROMPT).await;
    assert!(furthest(&answer, &reference.logits(&model)) < 1e-4);
    assert_eq!((account.exact + account.blended, account.computed), reference.tokens());
    assert_eq!(ragstone.store().status().host.entries, 2 * entries, "nothing served twice");
    close(ragstone, &folder).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prompt_that_is_longer_than_the_table_is_refused_and_answers_end_with_it() {
    let folder = tempfile::tempdir().unwrap();
    let ragstone = open(&folder).await;
    let tokens = |count: usize| Input::Tokens((0..count as u32).map(|at| 300 + at * 7919 % 500).collect());
    let refused = ragstone.answer(question(tokens(POSITIONS + 1), Reuse::Auto, 4)).await;
    assert_eq!(refused.err().expect("it is too long").kind(), ErrorKind::ContextLength);
    let last = answer(&ragstone, question(tokens(POSITIONS - 10), Reuse::Auto, 100)).await;
    assert!((10..=11).contains(&last.tokens.len()), "{} tokens", last.tokens.len());
    close(ragstone, &folder).await;
}
