//! Weights of 8 bits on the GPU: the CPU's values, activations of bf16.

use ragstone_cuda::CudaModel;
use ragstone_kernels::backend::Backend;
use ragstone_kernels::dtype::{KvDtype, WeightFormat};
use ragstone_kernels::model::{LoadOptions, Model};

use crate::fixtures::{Expected, folder, names};
use crate::forward::{Sequence, counted};
use crate::parity::{assert_same_in_pieces, config, mixture, tokens};
use crate::standin::StandIn;

fn options(weights: WeightFormat) -> LoadOptions<'static> {
    LoadOptions { kv_dtype: Some(KvDtype::F32), weights: Some(weights), ..Default::default() }
}

/// The root of the mean square of differences.
fn off(a: &[f32], b: &[f32]) -> f64 {
    assert_eq!(a.len(), b.len());
    let squares: f64 = a.iter().zip(b).map(|(a, b)| f64::from(a - b).powi(2)).sum();
    (squares / a.len() as f64).sqrt()
}

/// Of every family: near the logits of the CPU's 8 bits, which rounds activations more, and over all models no further from f32 than these.
#[test]
fn every_family_is_near_the_cpu_and_no_further_from_f32() {
    let standin = StandIn::new(12);
    let (mut ours_off, mut theirs_off) = (0.0, 0.0);
    for name in names() {
        let model = CudaModel::load(&folder(&name), 0, options(WeightFormat::Q8)).unwrap();
        let cpu = Model::load(&folder(&name), options(WeightFormat::Q8)).unwrap();
        let expected = Expected::of(&name);
        let count = expected.tokens.len();
        let ours = Sequence::new(&model, count).append(&expected.tokens, &counted(count));
        let theirs = Sequence::new(&cpu, count).append(&expected.tokens, &counted(count));
        let spread = off(&expected.logits, &vec![0.0; expected.logits.len()]);
        let apart = off(ours.as_slice(), theirs.as_slice()) / spread;
        let [ours, theirs] = [&ours, &theirs].map(|logits| off(logits.as_slice(), &expected.logits) / spread);
        println!("{name}: {apart:.4} apart, {ours:.4} and {theirs:.4} from f32");
        // Rounding may choose another expert where two are as good, as a random router's often are.
        let most = if model.config().experts.is_some() { 0.15 } else { 0.06 };
        assert!(apart < most && ours < most, "{name}: {apart} apart, {ours} and {theirs} from f32");
        (ours_off, theirs_off) = (ours_off + ours, theirs_off + theirs);
    }
    standin.assert_clean();
    assert!(ours_off <= theirs_off, "{ours_off} of all models, the CPU's {theirs_off}");
}

#[test]
fn a_prompt_in_pieces_has_the_same_bits() {
    let standin = StandIn::new(13);
    let options = LoadOptions { weights: Some(WeightFormat::Q8), ..Default::default() };
    assert_same_in_pieces(&CudaModel::random(config(8), 7, 0, options).unwrap(), "a dense model");
    assert_same_in_pieces(&CudaModel::random(mixture(true), 7, 0, options).unwrap(), "a mixture");
    standin.assert_clean();
}

/// They say so in what their KV is kept by: other bits than those of bf16.
#[test]
fn weights_take_half_of_the_memory_and_are_another_identity() {
    let standin = StandIn::new(14);
    let model = |weights| CudaModel::random(config(8), 7, 0, options(weights)).unwrap();
    let (narrow, wide) = (model(WeightFormat::Q8), model(WeightFormat::Bf16));
    // Of two layers, and the head: outputs, and bytes of each with its scale.
    let layer = (48 + 16 + 16 + 48 + 2 * 80) * (48 + 4) + 48 * (80 + 4);
    assert_eq!(narrow.size_in_bytes(), 2 * layer + 96 * (48 + 4));
    assert!(narrow.size_in_bytes() < wide.size_in_bytes() * 6 / 10);
    assert_eq!(narrow.arithmetic().to_string(), "weights q8, compute bf16");
    let logits = |model: &CudaModel| Sequence::new(model, 20).append(&tokens(20), &counted(20)).into_vec();
    let (ours, theirs) = (logits(&narrow), logits(&wide));
    assert!(ours != theirs && off(&ours, &theirs) < 0.06 * off(&theirs, &vec![0.0; theirs.len()]));
    standin.assert_clean();
}
