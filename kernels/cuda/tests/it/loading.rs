//! How kernels come to a GPU, and what is said where they do not.

use ragstone_cuda::{CheckOptions, CudaModel, Family, check_family, prove, try_out};
use ragstone_kernels::ErrorKind;
use ragstone_kernels::dtype::KvDtype;
use ragstone_kernels::model::LoadOptions;

use crate::forward::{Sequence, counted};
use crate::parity::{config, tokens};
use crate::standin::StandIn;

#[test]
fn the_ptx_is_compiled_and_it_is_told_how_long_it_took() {
    let _standin = StandIn::new(21);
    let tried = try_out(0).unwrap();
    assert!(tried.code.from == "PTX" && tried.code.refused.is_none() && tried.code.seconds > 0.0, "{tried:?}");
    assert!(tried.seconds >= tried.code.seconds && tried.to_string().contains("loaded from PTX in "), "{tried}");
}

#[test]
fn what_the_drivers_compiler_says_is_in_the_error() {
    let standin = StandIn::new(22);
    standin.set("refuses", "ptxas application ptx input, line 9; fatal : Unsupported .version 9.9");
    let error = try_out(0).unwrap_err();
    let text = error.to_string();
    assert_eq!(error.kind(), ErrorKind::Internal, "{text}");
    assert!(
        text.contains("CUDA_ERROR_INVALID_PTX, CUDA error 218") && text.ends_with("Unsupported .version 9.9"),
        "{text}"
    );
}

/// One kernel of each family that computes: its family says so, and no other does.
#[test]
fn a_wrong_value_is_found_by_the_family_of_its_kernel() {
    let standin = StandIn::new(23);
    let options = CheckOptions { seed: 1, shapes: 0, large: false, own: true };
    for (kernel, family) in [
        ("gated_silu_bf16", Family::Values),
        ("rms_norm_f32", Family::Rows),
        ("rotate_bf16", Family::Positions),
        ("gemm_bf16_16", Family::Products),
        ("combine_experts", Family::Experts),
        ("gemm_q8_64", Family::Quantized),
        ("attention_bf16_64", Family::Attention),
        ("deviation_f16", Family::Reuse),
    ] {
        standin.set("wrong", kernel);
        let found = check_family(0, family, options).map(|checked| checked.problems().join("; "));
        let found = found.unwrap_or_else(|error| error.to_string());
        assert!(found.contains(kernel), "{kernel}: {found}");
    }
    standin.set("wrong", "gemm_bf16_16");
    assert_eq!(check_family(0, Family::Values, options).unwrap().problems(), Vec::<String>::new());
    standin.assert_clean();
}

/// On a GPU whose own kernels are missing, or end its context: they are not used, it is told, and the kernels for all GPUs give the same bits.
#[test]
fn kernels_of_its_own_that_fail_are_left_out_and_the_others_go_on() {
    let standin = StandIn::new(24);
    let options = LoadOptions { kv_dtype: Some(KvDtype::Bf16), ..Default::default() };
    let rows = || {
        let model = CudaModel::random(config(8), 7, 0, options).unwrap();
        let rows = Sequence::new(&model, 70).append(&tokens(70), &counted(70));
        (rows, model.trials()[0].problems())
    };
    let (expected, problems) = rows();
    assert_eq!(problems, Vec::<String>::new());
    for (lost_by, told) in
        [("", "not found"), ("wide_gemm", "it ended the GPU's context"), ("wide_", "it ended the GPU's context")]
    {
        standin.set("capability", "90");
        standin.set("lost_by", lost_by);
        standin.set("reset", "");
        let (found, problems) = rows();
        let families: Vec<&str> = problems.iter().map(|problem| problem.split(':').next().unwrap()).collect();
        assert_eq!(families, ["products", "gated", "attention"], "{problems:?}");
        assert!(problems[0].contains(told), "{problems:?}");
        assert!(found.as_slice().iter().zip(expected.as_slice()).all(|(a, b)| a.to_bits() == b.to_bits()), "{lost_by}");
    }
    standin.assert_clean();
}

/// At the first start; afterwards it is remembered. What is wrong is not, and keeps the GPU from use.
#[test]
fn a_gpu_is_proven_once_and_one_that_is_wrong_is_not_used() {
    let standin = StandIn::new(25);
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().join("gpus");
    standin.set("wrong", "rotate_f32");
    let error = prove(0, Some(&place)).unwrap().check().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.to_string().contains("(positions: ") && !place.exists(), "{error}");
    standin.set("wrong", "");
    standin.set("mode", "relaxed");
    let proof = prove(0, Some(&place)).unwrap();
    assert!(proof.check().is_ok() && !proof.is_remembered && proof.seconds > 0.0, "{proof:?}");
    let again = prove(0, Some(&place)).unwrap();
    assert!(again.is_remembered && again.check().is_ok(), "{again:?}");
    standin.set("driver", "13010");
    assert!(!prove(0, Some(&place)).unwrap().is_remembered, "another driver");
    standin.assert_clean();
}
