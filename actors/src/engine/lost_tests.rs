//! A device whose memory goes while it is asked for something else than a pass.

use std::ops::Range;
use std::sync::Mutex;

use ragstone_env::FailMode;
use ragstone_kernels::Result as KernelResult;
use ragstone_kernels::backend::{Backend, KvBytes, RowGroup, Slots, StoredKv};
use ragstone_kernels::config::ModelConfig;
use ragstone_kernels::deviation::Compared;
use ragstone_kernels::matrix::Matrix;
use ragstone_kernels::model::Model;
use ragstone_kernels::pool::{BlockId, KvLayout};
use ragstone_storage::policy::PolicyKind;
use ragstone_storage::prompt::plan::ReuseMode;
use ragstone_storage::tier::device::DeviceOptions;

use super::device_tests::{Bench, letters, passage, question, root};
use super::draft_tests::lookup;
use super::tests::{alone, env, job, model, options};
use super::*;

/// What is asked of the device when it is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Asked {
    Embed,
    Place,
    PlaceStored,
    Deviation,
    CopyBlock,
    ReadBlock,
    WriteBlock,
}

/// A model whose device is lost at the n-th time that something is asked of it.
struct Losing {
    model: Arc<Model>,
    /// What, and how often it still works.
    lost_at: Mutex<Option<(Asked, usize)>>,
}

impl Losing {
    fn ask(&self, asked: Asked) -> KernelResult<()> {
        let mut lost_at = self.lost_at.lock().unwrap();
        match &mut *lost_at {
            Some((what, 0)) if *what == asked => {
                *lost_at = None;
                let message = "the device is gone";
                Err(Error::new(ErrorKind::DeviceLost, message))
            }
            Some((what, times)) if *what == asked => {
                *times -= 1;
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

impl Backend for Losing {
    type Rows = <Model as Backend>::Rows;
    type Kv = <Model as Backend>::Kv;
    type Pool = <Model as Backend>::Pool;

    fn config(&self) -> &ModelConfig {
        Backend::config(&*self.model)
    }

    fn kv_layout(&self) -> KvLayout {
        Backend::kv_layout(&*self.model)
    }

    fn new_pool(&self, blocks: usize) -> Self::Pool {
        self.model.new_pool(blocks)
    }

    fn embed(&self, tokens: &[u32], positions: &[u32]) -> KernelResult<Self::Rows> {
        self.ask(Asked::Embed)?;
        Backend::embed(&*self.model, tokens, positions)
    }

    fn gather(&self, parts: &[(&Self::Rows, &[usize])]) -> Self::Rows {
        self.model.gather(parts)
    }

    fn project(&self, layer: usize, rows: &Self::Rows) -> Self::Kv {
        self.model.project(layer, rows)
    }

    fn gather_kv(&self, kv: &Self::Kv, rows: &[usize]) -> Self::Kv {
        self.model.gather_kv(kv, rows)
    }

    fn place(
        &self,
        pool: &mut Self::Pool,
        layer: usize,
        to: Slots<'_>,
        kv: &Self::Kv,
        rows: Range<usize>,
    ) -> KernelResult<()> {
        self.ask(Asked::Place)?;
        self.model.place(pool, layer, to, kv, rows)
    }

    fn place_stored(
        &self,
        pool: &mut Self::Pool,
        layer: usize,
        to: Slots<'_>,
        stored: StoredKv<'_>,
    ) -> KernelResult<()> {
        self.ask(Asked::PlaceStored)?;
        self.model.place_stored(pool, layer, to, stored)
    }

    fn finish(&self, layer: usize, rows: &mut Self::Rows, groups: &[RowGroup<'_>], pool: &Self::Pool) {
        self.model.finish(layer, rows, groups, pool);
    }

    fn attention_weights(&self, layer: usize, rows: &Self::Rows, group: &RowGroup<'_>, pool: &Self::Pool) -> Matrix {
        Backend::attention_weights(&*self.model, layer, rows, group, pool)
    }

    fn logits(&self, rows: &Self::Rows) -> Matrix {
        Backend::logits(&*self.model, rows)
    }

    fn deviation(
        &self,
        fresh: &Self::Kv,
        stored: StoredKv<'_>,
        pairs: &[(usize, usize)],
        compared: Compared,
    ) -> KernelResult<Vec<f32>> {
        self.ask(Asked::Deviation)?;
        self.model.deviation(fresh, stored, pairs, compared)
    }

    fn export(&self, kv: &Self::Kv, rows: Range<usize>) -> KvBytes {
        self.model.export(kv, rows)
    }

    fn copy_block(&self, pool: &mut Self::Pool, from: BlockId, to: BlockId) -> KernelResult<()> {
        self.ask(Asked::CopyBlock)?;
        self.model.copy_block(pool, from, to)
    }

    fn read_block(&self, pool: &Self::Pool, block: BlockId) -> KernelResult<Vec<u8>> {
        self.ask(Asked::ReadBlock)?;
        self.model.read_block(pool, block)
    }

    fn write_block(&self, pool: &mut Self::Pool, block: BlockId, bytes: &[u8]) -> KernelResult<()> {
        self.ask(Asked::WriteBlock)?;
        self.model.write_block(pool, block, bytes)
    }
}

/// How each of some answers ended: whole, or told that it is to be asked again.
fn answers(engine: &Engine, env: &Env, asked: &[(u32, u32, usize)], lookup: &Lookup) -> Vec<bool> {
    // All are there before the first pass.
    env.set_fail_point("engine.device", FailMode::Hang, 1);
    let begun: Vec<_> = asked
        .iter()
        .map(|(seed, length, more)| {
            let (mut group, reply, first) = job(*seed, *length, *more);
            let (other, _reply, second) = job(*seed, *length, *more);
            group.decode.extend(other.decode);
            group.decode.iter_mut().for_each(|decode| decode.lookup = lookup.clone());
            engine.submit(group, Urgency::Answer).expect("queued");
            (reply, [first, second])
        })
        .collect();
    env.set_fail_point("engine.device", FailMode::Off, 1);
    let mut whole = Vec::new();
    for ((seed, length, more), (reply, outputs)) in asked.iter().zip(begun) {
        match reply.blocking_recv().expect("answered") {
            Ok(_) => {}
            // It is planned again, by whoever asked.
            Err(PrefillError::Interrupted(Interruption::Broken)) => {
                whole.push(false);
                continue;
            }
            Err(error) => panic!("{error:?}"),
        }
        for mut output in outputs {
            let mut ids = Vec::new();
            whole.push(loop {
                match output.blocking_recv().expect("an end") {
                    Decoded::EndToken(_) => {}
                    Decoded::Token(sampled) => ids.push(sampled.id),
                    Decoded::End(_) => {
                        assert_eq!(ids, alone(*seed, *length, *more), "prompt {seed}");
                        break true;
                    }
                    Decoded::Failed(error) => {
                        assert!(error.to_string().contains("device was lost"), "{error}");
                        break false;
                    }
                }
            });
        }
    }
    whole
}

#[test]
fn a_device_that_is_lost_at_anything_costs_what_was_on_it_and_no_more() {
    // Ten blocks are too few for three prompts with two answers each: they go out and come back.
    let asked = [(1, 20, 40), (2, 25, 40), (3, 30, 40)];
    let none = Lookup::default();
    for what in [Asked::Embed, Asked::Place, Asked::CopyBlock, Asked::ReadBlock, Asked::WriteBlock] {
        for (times, lookup) in [(0, &none), (1, &none), (2, &none), (0, &lookup()), (2, &lookup())] {
            let backend = Arc::new(Losing { model: model(), lost_at: Mutex::new(Some((what, times))) });
            let block_bytes = Backend::kv_layout(&*backend).block_bytes();
            let device = DeviceOptions { blocks: 10, block_bytes, policy: PolicyKind::HitDensity, cache: true };
            let tier = DeviceTier::new(device).expect("a tier");
            let env = env();
            let engine = Engine::start(backend.clone(), tier, options(8), env.clone()).expect("started");
            let before = answers(&engine, &env, &asked, lookup);
            assert!(backend.lost_at.lock().unwrap().is_none(), "{what:?} was not asked {times} times");
            // What was to come back when it was lost still has its bytes, and may have been alone.
            assert!(what == Asked::WriteBlock || before.iter().any(|whole| !whole), "{what:?}: nobody noticed");
            let after = answers(&engine, &env, &asked, lookup);
            assert!(after.iter().all(|whole| *whole), "{what:?}: it goes on: {after:?}");
            drop(engine);
        }
    }
}

#[test]
fn a_device_that_is_lost_while_stored_kv_is_placed_or_compared_is_planned_again() {
    for (what, times) in [(Asked::PlaceStored, 0), (Asked::PlaceStored, 4), (Asked::Deviation, 0)] {
        let mut backend = None;
        // Without a cache on the device, all that is reused is loaded.
        let bench =
            Bench::on(64, false, |model| backend.insert(Arc::new(Losing { model, lost_at: Mutex::new(None) })).clone());
        let backend = backend.expect("the engine runs on it");
        bench.ask(&[root(9), passage(4, 40), question(3)], ReuseMode::Auto);
        bench.ask(&[root(9), passage(2, 33), question(3)], ReuseMode::Auto);
        let segments = [root(9), passage(2, 33), passage(4, 40), question(11)];
        let (bits, asked) = bench.ask(&segments, ReuseMode::Auto);
        assert_eq!(letters(&asked.plan), "HHBC");
        *backend.lost_at.lock().unwrap() = Some((what, times));
        let (reply, _decoded) = bench.submit(&segments, bench.fuse(&segments, ReuseMode::Auto), 6);
        let reply = reply.blocking_recv().expect("answered");
        assert!(matches!(reply, Err(PrefillError::Interrupted(Interruption::Broken))), "{what:?}: nobody noticed");
        assert!(backend.lost_at.lock().unwrap().is_none(), "{what:?} was not asked {times} times");
        let (again, asked) = bench.ask(&segments, ReuseMode::Auto);
        assert_eq!((letters(&asked.plan).as_str(), again), ("HHBC", bits), "{what:?}: it goes on");
        drop(backend);
        bench.close();
    }
}

/// Wherever in a draft's verification the device is lost: what goes on is handed what the reader has, no more and no less.
#[test]
fn what_goes_on_after_a_loss_within_a_draft_is_what_was_said() {
    let (seed, length, more) = (1, 20, 100);
    let whole = alone(seed, length, more);
    let drafts = lookup();
    let mut said = Vec::new();
    for times in (0..120).step_by(7) {
        let backend = Arc::new(Losing { model: model(), lost_at: Mutex::new(Some((Asked::Place, times))) });
        let block_bytes = Backend::kv_layout(&*backend).block_bytes();
        let device = DeviceOptions { blocks: 32, block_bytes, policy: PolicyKind::HitDensity, cache: true };
        let tier = DeviceTier::new(device).expect("a tier");
        let engine = Engine::start(backend.clone(), tier, options(8), env()).expect("started");
        let (mut one, reply, mut decoded) = job(seed, length, more);
        let (tell, told) = std::sync::mpsc::channel();
        // The sender of tokens goes with it: then the reader has them all.
        let resume = move |spec: DecodeSpec, generated, why| drop(tell.send((spec.max_tokens, generated, why)));
        let resume: Resume = Arc::new(resume);
        for decode in &mut one.decode {
            (decode.lookup, decode.resume) = (drafts.clone(), Some(resume.clone()));
        }
        drop(resume);
        engine.submit(one, Urgency::Answer).expect("queued");
        let began = reply.blocking_recv().expect("answered").is_ok();
        let mut ids = Vec::new();
        while let Some(item) = decoded.blocking_recv() {
            match item {
                Decoded::EndToken(_) => {}
                Decoded::Token(sampled) => ids.push(sampled.id),
                Decoded::End(_) => break,
                Decoded::Failed(error) => panic!("{error}"),
            }
        }
        assert_eq!(ids, whole[..ids.len()], "{times}");
        if began && ids.len() < more {
            let (left, generated, why) = told.recv().expect("it is handed on");
            assert_eq!((left, why), (more - ids.len(), Interruption::Broken), "{times}");
            assert_eq!(generated, ids, "{times}");
            said.push(ids.len());
        }
        drop(engine);
    }
    let (drafted, accepted) = drafts.counts.get();
    assert!(said.len() > 4 && accepted > 10 && drafted > accepted, "{said:?} {drafted} {accepted}");
}
