//! `ragstone bench parity`'s checks hold on the stand-in, and leave no kernel out.

use ragstone_cuda::{CheckOptions, Family, check};

use crate::standin::StandIn;

#[test]
fn every_kernel_of_the_ptx_is_near_the_host_and_rows_have_their_bits() {
    let standin = StandIn::new(11);
    let checked = check(0, CheckOptions { seed: 1, shapes: 0, large: false, own: true }).unwrap();
    standin.assert_clean();
    assert_eq!(checked.problems(), Vec::<String>::new());
    let families: Vec<Family> = checked.families.iter().map(|of| of.family).collect();
    assert_eq!(families, Family::ALL);
    let ptx = include_str!("../../ragstone.ptx");
    assert_eq!(checked.kernels.len(), ptx.matches(".entry ").count());
    assert!(checked.kernels.iter().all(|row| row.compared > 0 && row.of_tolerance <= 1.0), "{checked:?}");
    // What is rounded differs from what is not: somebody looked.
    for kernel in ["gemm_bf16_128", "gemm_q8_128", "expert_gemm_q8_16", "attention_f16_256", "rotate_bf16"] {
        let row = checked.kernels.iter().find(|row| row.kernel == kernel).unwrap();
        assert!(row.absolute > 0.0 && row.of_tolerance > 0.0, "{row:?}");
    }
    assert!(checked.bits.len() >= 28, "{:?}", checked.bits);
    assert_eq!(checked.gpu.compute_capability, (8, 0));
}
