//! How kernels come to a GPU, and what is said where they do not.

use ragstone_cuda::{CheckOptions, Family, check_family, try_out};
use ragstone_kernels::ErrorKind;

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
    let options = CheckOptions { seed: 1, shapes: 0, large: false };
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
