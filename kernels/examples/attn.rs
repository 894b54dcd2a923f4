use ragstone_kernels::dtype::KvDtype;
use ragstone_kernels::measure::*;
use ragstone_kernels::simd::Path;
fn main() {
    let mut c = attention(Path::best(), KvDtype::Bf16, 512, 4096);
    let mut v: Vec<f64> = (0..20).map(|_| c.sample()).collect();
    v.sort_by(f64::total_cmp);
    println!("least {:.3} ms median {:.3} ms {:.1} GFLOP/s", v[0] * 1e3, v[10] * 1e3, c.operations / v[0] / 1e9);
}
