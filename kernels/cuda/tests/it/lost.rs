//! A GPU that is lost, and one that is full.

use std::sync::Barrier;

use ragstone_cuda::CudaModel;
use ragstone_kernels::ErrorKind;
use ragstone_kernels::backend::Backend;
use ragstone_kernels::dtype::{ComputeDtype, KvDtype};
use ragstone_kernels::forward::{Forward, Places, Wanted};
use ragstone_kernels::pool::BlockId;

use crate::fixtures::Expected;
use crate::forward::counted;
use crate::standin::StandIn;

type Pool = <CudaModel as Backend>::Pool;

fn logits(model: &CudaModel, pool: &mut Pool) -> ragstone_kernels::Result<Vec<f32>> {
    let (tokens, positions) = (&Expected::of("qwen2").tokens[..20], counted(20));
    let places = Places { slots: positions.clone(), positions: positions.clone() };
    let blocks = [BlockId(0), BlockId(1)];
    Forward::new(model, pool).logits(tokens, places, Wanted::All, &blocks, &positions).map(|logits| logits.into_vec())
}

/// Wherever it happens in a pass: the pass fails, nothing of it is taken for a result, and a new pool is on the GPU that came back.
#[test]
fn a_pass_on_a_lost_gpu_fails_and_a_new_pool_is_as_before() {
    let standin = StandIn::new(1);
    let model = standin.model("qwen2", KvDtype::F32, ComputeDtype::F32).unwrap();
    let mut pool = model.new_pool(2);
    let expected = logits(&model, &mut pool).unwrap();
    for launches in [1, 2, 7, 20] {
        standin.set("lost_after", &launches.to_string());
        let error = logits(&model, &mut pool).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::DeviceLost, "after {launches} launches: {error}");
        let again = logits(&model, &mut pool).unwrap_err();
        assert_eq!(again.kind(), ErrorKind::DeviceLost, "it stays lost: {again}");
        // As the engine does: the old pool goes before there is a new one.
        pool = model.new_pool(0);
        pool = {
            drop(pool);
            model.new_pool(2)
        };
        assert_eq!(logits(&model, &mut pool).unwrap(), expected, "after {launches} launches");
    }
    standin.assert_clean();
}

/// Two threads compute on one GPU: the engine's, and that of a calibration.
#[test]
#[expect(clippy::disallowed_methods, reason = "a thread beside, as another user of the model has")]
fn a_thread_hears_of_its_own_failure_and_of_no_other() {
    let standin = StandIn::new(3);
    let model = standin.model("qwen2", KvDtype::F32, ComputeDtype::F32).unwrap();
    let mut pool = model.new_pool(2);
    let expected = logits(&model, &mut pool).unwrap();
    // Nothing lies in it, and nobody has asked why.
    let mut missing = model.new_pool(1 << 24);
    std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            assert_eq!(logits(&model, &mut pool).unwrap(), expected);
            model.check()
        });
        other.join().unwrap().unwrap();
    });
    assert_eq!(model.check().unwrap_err().kind(), ErrorKind::Full);
    // Its owner is told; the GPU is not lost for that.
    assert_eq!(logits(&model, &mut missing).unwrap_err().kind(), ErrorKind::DeviceLost);
    assert_eq!(logits(&model, &mut pool).unwrap(), expected);
    standin.assert_clean();
}

/// What a thread was given on a lost GPU means nothing, also where another one has it in use again before the first asks.
#[test]
#[expect(clippy::disallowed_methods, reason = "a thread beside, as another user of the model has")]
fn a_loss_is_told_to_whom_it_hit_after_somebody_else_mended_it() {
    let standin = StandIn::new(4);
    let model = standin.model("qwen2", KvDtype::F32, ComputeDtype::F32).unwrap();
    let turn = Barrier::new(2);
    let expected = logits(&model, &mut model.new_pool(2)).unwrap();
    std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            let rows = model.embed(&[5, 6], &[0, 1]).unwrap();
            standin.set("lost_after", "1");
            drop(model.logits(&rows));
            drop(rows);
            turn.wait();
            turn.wait();
            model.check()
        });
        turn.wait();
        let mut pool = model.new_pool(2);
        assert!(model.check().is_ok(), "it is in use again");
        assert_eq!(logits(&model, &mut pool).unwrap(), expected);
        turn.wait();
        assert_eq!(other.join().unwrap().unwrap_err().kind(), ErrorKind::DeviceLost);
    });
    standin.assert_clean();
}

#[test]
fn a_pool_that_does_not_fit_is_told_once_and_a_smaller_one_works() {
    let standin = StandIn::new(2);
    let model = standin.model("qwen2", KvDtype::F32, ComputeDtype::F32).unwrap();
    let large = model.new_pool(1 << 24);
    let error = model.check().unwrap_err();
    assert!(error.kind() == ErrorKind::Full && error.to_string().contains("device_bytes"), "{error}");
    drop(large);
    let mut pool = model.new_pool(2);
    assert!(model.check().is_ok() && logits(&model, &mut pool).is_ok());
    standin.assert_clean();
}
