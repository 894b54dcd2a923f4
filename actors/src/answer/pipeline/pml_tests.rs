//! Prompts of modules through the whole pipeline, against a slow reference over the kernels' forward: each module prefilled by itself at its
//! positions, then everything else over all of them.

use std::collections::BTreeMap;

use ragstone_kernels::dtype::{ComputeDtype, KvDtype};
use ragstone_kernels::forward::{Forward, Places, Wanted};
use ragstone_kernels::model::{LoadOptions, Model};
use ragstone_kernels::pool::{BLOCK_TOKENS, BlockId};
use ragstone_kernels::tokenizer::Tokenizer;
use ragstone_storage::store::AdmissionRule;
use ragstone_storage::tier::Tier;
use tempfile::TempDir;

use super::tests::{close, open_with, question};
use super::*;
use crate::prefill::Rule;
use crate::question::Reuse;
use crate::ragstone::Ragstone;
use crate::report::{Answer, TokenAccount};
use ragstone_pml::{Block, Layout, Part, PlacedFrom, Prompt, Schema, select};

const POSITIONS: u32 = 4096;

pub(super) const SCHEMA: &str = "<schema name='trip'>Nine boats lay in the harbour of Tarn.\
    <module name='stay'>The boats stay for <parameter name='days' length='7' scaffold='some'/> days in all, and then they leave.</module>\
    <union><module name='lamps'>Callux Motors makes lamps.</module>\
    <module name='boats'>Callux Motors makes boats, and it has made them for a long time in Tarn.</module></union>\
    <module name='quick' cache='false'>Every lamp is new.</module>\
    <module name='late'>The harbour of Tarn is old.<module name='later'>It was always so.</module> And it is cold.</module></schema>";

/// Something of every kind, and a gap behind the shorter member of the union.
pub(super) const PROMPT: &str =
    "<prompt schema='trip'><stay days='nine'/><lamps/><quick/><late/>How many boats lay in Tarn?</prompt>";

pub(super) async fn open(folder: &TempDir) -> Ragstone {
    open_on(folder, true).await
}

async fn open_on(folder: &TempDir, device_cache: bool) -> Ragstone {
    let settings = Settings {
        device_cache,
        disk_bytes: 64 << 20,
        host_bytes: 64 << 20,
        kv_admission: AdmissionRule::Always,
        kv_dtype: Some(KvDtype::F32),
        compute: Some(ComputeDtype::F32),
        ..Settings::default()
    };
    open_with(folder, "qwen_2_5", settings, &Env::seeded(7, 1_795_391_940_000)).await
}

pub(super) fn input(schema: &str, prompt: &str) -> Input {
    let schema = Schema::parse(schema, &()).unwrap();
    Input::Pml {
        schema: Arc::new(schema),
        layout: None,
        found_in: None,
        prompt: Arc::new(Prompt::parse(prompt).unwrap()),
    }
}

pub(super) async fn ask(ragstone: &Ragstone, input: Input, reuse: Reuse) -> Answer {
    let mut asked = question(input, reuse, 4);
    asked.sampling.logprobs = Some(5);
    let answer = ragstone.answer(asked).await.unwrap().collect().await.unwrap();
    ragstone.settle().await;
    answer
}

pub(super) async fn run(ragstone: &Ragstone, schema: &str, prompt: &str) -> (Answer, TokenAccount) {
    let answer = ask(ragstone, input(schema, prompt), Reuse::Auto).await;
    let account = answer.finish.report.tokens;
    (answer, account)
}

/// Tokens at a position; of those that stand in for something, `taken` says that the prompt does not have them.
#[derive(Clone)]
struct Piece {
    start: u32,
    tokens: Vec<u32>,
    taken: bool,
}

/// A prompt, for the reference: what is computed together, and what is computed over it.
pub(super) struct Reference {
    groups: Vec<Vec<Piece>>,
    rest: Vec<Piece>,
}

impl Reference {
    /// By the layout's positions. `together` names modules that are computed as one.
    pub(super) fn of(schema: &str, prompt: &str, tokenizer: &Tokenizer, together: &[&str]) -> Self {
        let layout = Layout::of(&Schema::parse(schema, &()).unwrap(), None, tokenizer, POSITIONS).unwrap();
        let selected = select(&layout, &Prompt::parse(prompt).unwrap(), None, tokenizer, POSITIONS).unwrap();
        let (mut groups, mut rest) = (BTreeMap::<String, Vec<Piece>>::new(), Vec::new());
        for placed in &selected.placed {
            let piece = Piece { start: placed.start, tokens: placed.tokens.to_vec(), taken: true };
            match &placed.from {
                PlacedFrom::Module { path, cache: true } => {
                    let name = if together.contains(&path.as_str()) { "together".to_owned() } else { path.clone() };
                    groups.entry(name).or_default().push(piece);
                }
                _ => rest.push(piece),
            }
        }
        // Scaffolds of parameters, of modules that are imported.
        let scaffolds = |block: &Block| {
            let part = |part: &Part| match part {
                Part::Parameter { start, scaffold, .. } => {
                    Some(Piece { start: *start, tokens: scaffold.to_vec(), taken: false })
                }
                _ => None,
            };
            block.parts.iter().filter_map(part).collect::<Vec<_>>()
        };
        for part in &layout.top.parts {
            if let Part::Module(block) = part
                && let Some(group) = groups.get_mut(&block.name)
            {
                group.extend(scaffolds(block));
                group.sort_by_key(|piece| piece.start);
            }
        }
        Self { groups: groups.into_values().collect(), rest }
    }

    /// Logits behind the last token.
    pub(super) fn logits(&self, model: &Model) -> Vec<f32> {
        let mut pool = model.new_pool(256);
        let (mut blocks, mut positions) = (Vec::new(), Vec::new());
        let mut next_block = 0u32;
        let mut own = |slots: usize| -> Vec<BlockId> {
            let begin = next_block;
            next_block += slots.div_ceil(BLOCK_TOKENS) as u32;
            (begin..next_block).map(BlockId).collect()
        };
        let spread = |piece: &Piece| (piece.start..).take(piece.tokens.len()).collect::<Vec<u32>>();
        for group in &self.groups {
            let tokens: Vec<u32> = group.iter().flat_map(|piece| piece.tokens.clone()).collect();
            let at: Vec<u32> = group.iter().flat_map(spread).collect();
            let theirs = own(tokens.len());
            let places = Places { slots: (0..tokens.len() as u32).collect(), positions: at.clone() };
            Forward::new(model, &mut pool).logits(&tokens, places, Wanted::Last, &theirs, &at).unwrap();
            // What stands in is hidden from the prompt, and so are slots that nobody has.
            let taken = group.iter().flat_map(|piece| piece.tokens.iter().map(|_| piece.taken));
            positions.extend(at.iter().zip(taken).map(|(at, taken)| if taken { *at } else { u32::MAX }));
            blocks.extend(theirs);
            positions.resize(blocks.len() * BLOCK_TOKENS, u32::MAX);
        }
        let tokens: Vec<u32> = self.rest.iter().flat_map(|piece| piece.tokens.clone()).collect();
        let at: Vec<u32> = self.rest.iter().flat_map(spread).collect();
        let begin = positions.len() as u32;
        blocks.extend(own(tokens.len()));
        positions.extend(&at);
        let places = Places { slots: (begin..begin + tokens.len() as u32).collect(), positions: at };
        let logits = Forward::new(model, &mut pool).logits(&tokens, places, Wanted::Last, &blocks, &positions).unwrap();
        logits.row(0).to_vec()
    }

    /// Everything over everything, at the same positions.
    pub(super) fn joined(mut self) -> Self {
        self.rest.extend(self.groups.drain(..).flatten().filter(|piece| piece.taken));
        self.rest.sort_by_key(|piece| piece.start);
        self
    }

    pub(super) fn tokens(&self) -> (u32, u32) {
        let sum = |pieces: &[Piece]| {
            pieces.iter().filter(|piece| piece.taken).map(|piece| piece.tokens.len() as u32).sum::<u32>()
        };
        (self.groups.iter().map(|group| sum(group)).sum(), sum(&self.rest))
    }
}

/// The reference's model: that of the service.
pub(super) fn model(folder: &TempDir) -> (Model, Tokenizer) {
    let path = folder.path().join("model");
    let options =
        LoadOptions { kv_dtype: Some(KvDtype::F32), compute: Some(ComputeDtype::F32), ..LoadOptions::default() };
    (Model::load(&path, options).unwrap(), Tokenizer::from_folder(&path).unwrap())
}

/// How far the first token's likeliest alternatives are from the reference.
pub(super) fn furthest(answer: &Answer, logits: &[f32]) -> f32 {
    let most = logits.iter().copied().fold(f32::MIN, f32::max);
    let sum: f64 = logits.iter().map(|logit| f64::from(logit - most).exp()).sum();
    let expected = |id: u32| (f64::from(logits[id as usize] - most) - sum.ln()) as f32;
    let top = &answer.tokens[0].top;
    assert_eq!(top.len(), 5);
    top.iter().map(|it| (it.logprob - expected(it.id)).abs()).fold(0.0, f32::max)
}

/// The likeliest tokens of every step, bit for bit.
pub(super) fn bits(answer: &Answer) -> Vec<(u32, u32)> {
    answer.tokens.iter().flat_map(|token| token.top.iter().map(|it| (it.id, it.logprob.to_bits()))).collect()
}

/// Plain PyTorch that knows nothing of this program: its own layout, modules, masks and forward (`ops/fixtures/make_modules.py`).
#[tokio::test(flavor = "multi_thread")]
async fn modules_answer_as_in_plain_pytorch() {
    #[derive(serde::Deserialize)]
    struct Case {
        schema: String,
        prompt: String,
        steps: Vec<Step>,
    }
    #[derive(serde::Deserialize)]
    struct Step {
        token: u32,
        top: Vec<(u32, f32)>,
    }
    let fixture = super::tests::repository().join("kernels/tests/fixtures/modules.json");
    let cases: Vec<Case> = serde_json::from_slice(&std::fs::read(fixture).unwrap()).unwrap();
    assert_eq!(cases.len(), 5);
    let folder = tempfile::tempdir().unwrap();
    let ragstone = open(&folder).await;
    // Computed, then from the tiers.
    for _ in 0..2 {
        for Case { schema, prompt, steps } in &cases {
            let mut asked = question(input(schema, prompt), Reuse::Auto, 4);
            asked.sampling.logprobs = Some(20);
            let answer = ragstone.answer(asked).await.unwrap().collect().await.unwrap();
            ragstone.settle().await;
            assert_eq!(answer.tokens.len(), steps.len(), "{prompt}");
            for (token, Step { token: expected, top }) in answer.tokens.iter().zip(steps) {
                assert_eq!(token.id, *expected, "{prompt}");
                for (id, logprob) in top {
                    let ours = token.top.iter().find(|it| it.id == *id).map(|it| it.logprob);
                    // The last of them may be as likely as the next.
                    let ours = ours.or_else(|| token.top.last().map(|it| it.logprob)).unwrap_or_default();
                    assert!((ours - logprob).abs() < 1e-4, "{prompt}: token {id}: {ours} and {logprob}");
                }
            }
        }
    }
    close(ragstone, &folder).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn modules_are_computed_apart_once_and_taken_at_their_positions() {
    let folder = tempfile::tempdir().unwrap();
    let ragstone = open(&folder).await;
    let (model, tokenizer) = model(&folder);
    let reference = Reference::of(SCHEMA, PROMPT, &tokenizer, &[]);
    let logits = reference.logits(&model);
    let (kept, computed) = reference.tokens();
    let (before, account) = run(&ragstone, SCHEMA, PROMPT).await;
    assert!(furthest(&before, &logits) < 1e-4, "{}", furthest(&before, &logits));
    assert_eq!((account.exact + account.blended, account.computed, account.recomputed), (kept, computed, 0));
    assert_eq!(before.tokens.len(), 4);
    // Again, all but its end is on the device, arguments, too.
    let (again, account) = run(&ragstone, SCHEMA, PROMPT).await;
    let (end, others) = again.finish.report.segments.split_last().unwrap();
    assert!(others.iter().all(|it| it.tokens == 0 || it.tier == Some(Tier::Device)), "{others:?}");
    assert_eq!((account.computed, account.total()), (end.tokens, kept + computed));
    assert_eq!(bits(&again), bits(&before));
    // Another argument and another question compute no module, nor does another member but that.
    let entries = ragstone.store().status().host.entries;
    let other = "<prompt schema='trip'><stay days='two'/><lamps/><late/>What does Callux make?</prompt>";
    let reference = Reference::of(SCHEMA, other, &tokenizer, &[]);
    let (answer, account) = run(&ragstone, SCHEMA, other).await;
    assert!(furthest(&answer, &reference.logits(&model)) < 1e-4);
    assert_eq!((account.exact + account.blended, account.computed), reference.tokens());
    assert_eq!(ragstone.store().status().host.entries, entries, "nothing new is kept");
    let member = PROMPT.replace("lamps", "boats");
    let reference = Reference::of(SCHEMA, &member, &tokenizer, &[]);
    let (answer, _) = run(&ragstone, SCHEMA, &member).await;
    assert!(furthest(&answer, &reference.logits(&model)) < 1e-4);
    assert_eq!(ragstone.store().status().host.entries, entries + 1);
    // Without reuse it is a full prefill at these positions.
    let answer = ask(&ragstone, input(SCHEMA, PROMPT), Reuse::Off).await;
    let full = Reference::of(SCHEMA, PROMPT, &tokenizer, &[]).joined().logits(&model);
    assert!(furthest(&answer, &full) < 1e-4);
    assert!(full.iter().zip(&logits).any(|(full, apart)| (full - apart).abs() > 1e-2), "the two differ");
    close(ragstone, &folder).await;
}

/// As calibrated: blended where the model is, computed with the prompt where nobody knows how.
#[tokio::test(flavor = "multi_thread")]
async fn modules_are_blended_as_the_model_was_calibrated() {
    let folder = tempfile::tempdir().unwrap();
    let ragstone = open(&folder).await;
    let full = ask(&ragstone, input(SCHEMA, PROMPT), Reuse::Off).await;
    let answer = ask(&ragstone, input(SCHEMA, PROMPT), Reuse::Calibrated).await;
    assert_eq!(bits(&answer), bits(&full), "of an uncalibrated model");
    assert_eq!(answer.finish.report.tokens.blended, 0);
    close(ragstone, &folder).await;

    let folder = tempfile::tempdir().unwrap();
    let settings = Settings {
        // What the evidence for the demo model is about.
        selector: Some(Rule::Cacheblend),
        recompute_ratio: Some(0.3),
        blend_uncalibrated: true,
        kv_admission: AdmissionRule::Always,
        ..Settings::default()
    };
    let ragstone = open_with(&folder, "qwen_2_5", settings, &Env::seeded(7, 1_795_391_940_000)).await;
    let as_they_are = ask(&ragstone, input(SCHEMA, PROMPT), Reuse::Auto).await.finish.report.tokens;
    let blended = ask(&ragstone, input(SCHEMA, PROMPT), Reuse::Calibrated).await.finish.report.tokens;
    assert_eq!(as_they_are.recomputed, 0);
    assert!(blended.recomputed > 0, "{blended:?}");
    assert_eq!(blended.total(), as_they_are.total());
    close(ragstone, &folder).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prompt_whose_one_module_begins_it_has_the_bits_of_a_full_prefill() {
    let folder = tempfile::tempdir().unwrap();
    let ragstone = open(&folder).await;
    let schema = "<schema name='a'>Nine boats lay in the harbour of Tarn, and Callux Motors makes lamps.</schema>";
    let prompt = "<prompt schema='a'>How many boats lay in Tarn?</prompt>";
    let (answer, account) = run(&ragstone, schema, prompt).await;
    let full = ask(&ragstone, input(schema, prompt), Reuse::Off).await;
    assert!(account.exact > 10 && account.blended == 0, "{account:?}");
    assert_eq!(full.finish.report.tokens.exact, 0);
    assert_eq!(bits(&answer), bits(&full));
    close(ragstone, &folder).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn modules_of_a_scaffold_are_computed_together_where_all_are_imported() {
    let folder = tempfile::tempdir().unwrap();
    let ragstone = open(&folder).await;
    let (model, tokenizer) = model(&folder);
    let schema = "<schema name='a'><scaffold modules='b c'/><module name='b'>Nine boats lay in Tarn.</module>\
        <module name='x'>Never taken here.</module><module name='c'>Callux Motors makes lamps.</module></schema>";
    for (prompt, together) in [
        ("<prompt schema='a'><b/><c/>How many boats?</prompt>", &["b", "c"][..]),
        ("<prompt schema='a'><c/>How many boats?</prompt>", &[]),
    ] {
        let reference = Reference::of(schema, prompt, &tokenizer, together);
        let (answer, account) = run(&ragstone, schema, prompt).await;
        assert!(furthest(&answer, &reference.logits(&model)) < 1e-4, "{prompt}");
        assert_eq!((account.exact + account.blended, account.computed), reference.tokens());
    }
    close(ragstone, &folder).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_evicted_is_computed_again_and_what_changed_is_never_taken_for_the_old() {
    let folder = tempfile::tempdir().unwrap();
    // The device would have what is evicted.
    let ragstone = open_on(&folder, false).await;
    let (model, tokenizer) = model(&folder);
    let (before, account) = run(&ragstone, SCHEMA, PROMPT).await;
    let store = ragstone.store();
    let all = store.status().host.entries;
    let asked = Arc::new(question(input(SCHEMA, PROMPT), Reuse::Auto, 1));
    let pipeline = ragstone.pipeline();
    let deadline = deadline_after(std::time::Duration::from_secs(60));
    let segments = pipeline.assemble((&asked, Task::Answer), &[], deadline).await.unwrap();
    let module = segments.iter().filter(|it| it.kind == SegmentKind::Module).nth(1).expect("a module");
    let (key, _) = module.apart(store.fingerprint(), "").unwrap();
    let id = store.open_entry(&key, &module.tokens).expect("it is kept").id();
    for tier in [Tier::Host, Tier::Disk] {
        store.evict(&id, tier).unwrap();
    }
    assert!(store.contains(&key).is_none());
    let (again, same) = run(&ragstone, SCHEMA, PROMPT).await;
    assert_eq!(same, account);
    assert_eq!(store.status().host.entries, all);
    let logprobs = |answer: &Answer| answer.tokens.iter().map(|token| (token.id, token.logprob)).collect::<Vec<_>>();
    assert_eq!(logprobs(&again), logprobs(&before), "what is computed again has the same bits");
    // One module's text changes: its own KV is computed, and no other.
    let changed = SCHEMA.replace("Callux Motors makes lamps.", "Callux Motors makes the lamps of the harbour.");
    let reference = Reference::of(&changed, PROMPT, &tokenizer, &[]);
    let (answer, _) = run(&ragstone, &changed, PROMPT).await;
    assert!(furthest(&answer, &reference.logits(&model)) < 1e-4);
    assert_eq!(store.status().host.entries, all + 1, "the one that changed");
    close(ragstone, &folder).await;
}

/// Requests at once hold the modules that they share once: PagedAttention over Prompt Cache's modules.
#[tokio::test(flavor = "multi_thread")]
async fn sixteen_prompts_of_a_schema_hold_its_modules_once() {
    let folder = tempfile::tempdir().unwrap();
    let ragstone = open(&folder).await;
    let text = |words: &str| format!("{words} ").repeat(40);
    let (boats, lamps) = (text("Nine boats lay in the harbour of Tarn."), text("Callux Motors makes lamps."));
    let schema = format!(
        "<schema name='a'>Answer.<module name='b'>{boats}</module><module name='x'>No.</module><module name='c'>{lamps}</module></schema>"
    );
    let prompt = |question: &str| input(&schema, &format!("<prompt schema='a'><b/><c/>How many {question}?</prompt>"));
    let first = ask(&ragstone, prompt("boats"), Reuse::Auto).await;
    let tokens = first.finish.report.tokens.total() as usize;
    let shared = tokens.div_ceil(BLOCK_TOKENS);
    assert!(shared > 40, "{shared} blocks");

    let held = || {
        let device = ragstone.status().device;
        device.blocks - device.free_blocks
    };
    let asked = (0..16).map(|at| {
        let mut asked = question(prompt(&format!("boats, {at}")), Reuse::Auto, 64);
        asked.sampling.logprobs = Some(5);
        let ragstone = ragstone.clone();
        tokio::spawn(async move { ragstone.answer(asked).await.unwrap().collect().await.unwrap() })
    });
    let asked: Vec<_> = asked.collect();
    let mut most = 0;
    while !asked.iter().all(tokio::task::JoinHandle::is_finished) {
        most = most.max(held());
        tokio::task::yield_now().await;
    }
    // Each has its question, its answer, and a copy of the block that the modules end in.
    assert!((shared + 16..shared + 16 * 8).contains(&most), "{most} blocks, {shared} of them shared");
    for (at, asked) in asked.into_iter().enumerate() {
        let report = asked.await.unwrap().finish.report;
        let on_device = report.segments.iter().filter(|it| it.tier == Some(Tier::Device)).map(|it| it.tokens);
        assert!(on_device.sum::<u32>() as usize + 24 > tokens, "{at}: {:?}", report.segments);
    }
    close(ragstone, &folder).await;
}
