use ragstone_kernels::dtype::KvDtype;
use ragstone_kernels::linear::Precision;
use ragstone_kernels::measure::*;
use ragstone_kernels::simd::Path;
fn main() {
    let f = std::env::args().nth(1).unwrap_or_default();
    let mut cs = if f.is_empty() || f == "c" { ceilings() } else { vec![] };
    let p = Path::best();
    for pr in [Precision::F32, Precision::Bf16, Precision::Q8] {
        for (r, i, o) in [
            (512, 896, 4864),
            (512, 4864, 896),
            (512, 1024, 2816),
            (2048, 2048, 5632),
            (192, 896, 4864),
            (1, 2048, 5632),
            (1, 896, 151936),
        ] {
            if f.is_empty() || f == "l" {
                cs.push(linear(p, pr, r, i, o));
            }
        }
    }
    for d in [KvDtype::F32, KvDtype::F16, KvDtype::Bf16] {
        for (r, t) in [(512, 4096), (1, 4096), (512, 1024)] {
            if f.is_empty() || f == "a" {
                cs.push(attention(p, d, r, t));
            }
        }
    }
    if f.is_empty() || f == "e" {
        cs.extend(elementwise(4096));
    }
    if f == "d" {
        for pr in [Precision::Bf16, Precision::Q8, Precision::F32] {
            cs.push(linear(p, pr, 1, 896, 151936));
            cs.push(linear(p, pr, 1, 896, 9728));
            cs.push(linear(p, pr, 1, 4864, 896));
            cs.push(linear(p, pr, 4, 896, 151936));
        }
        cs.extend(ceilings());
    }
    for c in &mut cs {
        let mut s: Vec<f64> = (0..5).map(|_| c.sample()).collect();
        s.sort_by(f64::total_cmp);
        println!(
            "{:?}: {:.3} ms {:.1} GFLOP/s {:.1} GB/s",
            c,
            s[2] * 1e3,
            c.operations / s[2] / 1e9,
            c.bytes / s[2] / 1e9
        );
    }
}
