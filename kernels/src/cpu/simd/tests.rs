use super::*;

/// [`exp`] of numbers in place; as many as are whole vectors.
struct ExpAll<'a>(&'a mut [f32]);

impl Kernel for ExpAll<'_> {
    #[inline(always)]
    unsafe fn run<V: Vector, const ROWS: usize, const VECS: usize>(self) {
        for chunk in self.0.chunks_exact_mut(V::LANES) {
            // SAFETY: the chunk is as long as a vector; `dispatch` checked the machine.
            unsafe { exp(V::load(chunk.as_ptr())).store(chunk.as_mut_ptr()) }
        }
    }
}

struct CoarseExpAll<'a>(&'a mut [f32]);

impl Kernel for CoarseExpAll<'_> {
    #[inline(always)]
    unsafe fn run<V: Vector, const ROWS: usize, const VECS: usize>(self) {
        for chunk in self.0.chunks_exact_mut(V::LANES) {
            // SAFETY: the chunk is as long as a vector; `dispatch` checked the machine.
            unsafe { exp_coarse(V::load(chunk.as_ptr())).store(chunk.as_mut_ptr()) }
        }
    }
}

#[test]
fn coarse_exp_is_far_closer_than_bf16() {
    let inputs: Vec<f32> = (0..160_000).map(|i| -87.0 + i as f32 * (87.0 / 160_000.0)).collect();
    for &path in Path::available() {
        let mut outputs = inputs.clone();
        dispatch(path, CoarseExpAll(&mut outputs));
        for (x, y) in inputs.iter().zip(&outputs) {
            let exact = f64::from(*x).exp();
            let error = (f64::from(*y) - exact).abs() / exact;
            assert!(error < 6e-5, "{path:?}: exp({x}) = {y}, off by {error:e}");
        }
    }
}

#[test]
fn coarse_exp_is_exact_where_masks_rely_on_it() {
    for &path in Path::available() {
        let mut values = [0.0_f32; 16];
        values[1] = f32::NEG_INFINITY;
        values[2] = f32::NAN;
        values[3] = -1e30;
        dispatch(path, CoarseExpAll(&mut values));
        assert_eq!((values[0], values[1], values[3], values[4]), (1.0, 0.0, 0.0, 1.0), "{path:?}");
        assert!(values[2].is_nan(), "{path:?}");
    }
}

#[test]
fn exp_is_close_to_f64_on_every_path() {
    let inputs: Vec<f32> = (0..160_000).map(|i| -87.0 + i as f32 * (175.0 / 160_000.0)).collect();
    for &path in Path::available() {
        let mut outputs = inputs.clone();
        dispatch(path, ExpAll(&mut outputs));
        for (x, y) in inputs.iter().zip(&outputs) {
            let exact = f64::from(*x).exp();
            let error = (f64::from(*y) - exact).abs() / exact;
            assert!(error < 2.5e-7, "{path:?}: exp({x}) = {y}, off by {error:e}");
        }
    }
}

#[test]
fn exp_is_exact_where_masks_rely_on_it() {
    for &path in Path::available() {
        let mut values = [0.0_f32; 16];
        values[1] = -0.0;
        values[2] = f32::NEG_INFINITY;
        values[3] = -1e30;
        values[4] = -100.0;
        values[5] = f32::NAN;
        values[6] = 1e9;
        dispatch(path, ExpAll(&mut values));
        assert_eq!(values[..5], [1.0, 1.0, 0.0, 0.0, 0.0], "{path:?}");
        assert!(values[5].is_nan(), "{path:?}: a NaN must stay one");
        assert!(values[6].is_finite() && values[6] > 1e38, "{path:?}");
    }
}

struct Reduce<'a>(&'a [f32; 16], &'a mut [f32; 2]);

impl Kernel for Reduce<'_> {
    #[inline(always)]
    unsafe fn run<V: Vector, const ROWS: usize, const VECS: usize>(self) {
        // SAFETY: no vector is longer than the input.
        let vector = unsafe { V::load(self.0.as_ptr()) };
        // SAFETY: `dispatch` checked the machine.
        *self.1 = unsafe { [vector.sum_lanes(), vector.max_lane()] };
    }
}

#[test]
fn lanes_are_reduced() {
    let values: [f32; 16] = std::array::from_fn(|i| ((i * 7) % 16) as f32 - 3.0);
    let wide = [Path::Avx512Bf16, Path::Avx512Vnni, Path::Avx512].map(|path| (path, 16));
    for (path, lanes) in wide.into_iter().chain([(Path::Avx2, 8), (Path::Portable, 4)]) {
        if Path::available().contains(&path) {
            let mut out = [0.0; 2];
            dispatch(path, Reduce(&values, &mut out));
            let greatest = values[..lanes].iter().copied().fold(f32::MIN, f32::max);
            assert_eq!(out, [values[..lanes].iter().sum::<f32>(), greatest], "{path:?}");
        }
    }
}

struct Bits<'a> {
    from: &'a [f32; 16],
    bf16: &'a mut [u16; 16],
    f16: &'a mut [f32; 16],
}

impl Kernel for Bits<'_> {
    #[inline(always)]
    unsafe fn run<V: Vector, const ROWS: usize, const VECS: usize>(self) {
        let f16 = self.from.map(|value| half::f16::from_f32(value).to_bits());
        for start in (0..16).step_by(V::LANES) {
            // SAFETY: vectors divide 16; `dispatch` checked the machine.
            unsafe {
                V::load(self.from.as_ptr().add(start)).store_bf16(self.bf16.as_mut_ptr().add(start));
                V::load_f16(f16.as_ptr().add(start)).store(self.f16.as_mut_ptr().add(start));
            }
        }
    }
}

#[test]
fn halves_have_the_bits_of_the_reference() {
    let odd = [
        0.0,
        -0.0,
        f32::INFINITY,
        f32::NEG_INFINITY,
        1e-41,
        -1e-39,
        f32::MAX,
        f32::from_bits(0x3f80_8000),
        f32::from_bits(0x3f81_8000),
        65504.0,
    ];
    let mut rng = fastrand::Rng::with_seed(3);
    for round in 0..500 {
        let mut from: [f32; 16] = std::array::from_fn(|_| f32::from_bits(rng.u32(..)));
        if round == 0 {
            from[..odd.len()].copy_from_slice(&odd);
            from[15] = f32::from_bits(0x7f80_0001);
        }
        for &path in Path::available() {
            let (mut bf16, mut f16) = ([0; 16], [0.0; 16]);
            dispatch(path, Bits { from: &from, bf16: &mut bf16, f16: &mut f16 });
            for ((value, bf16), f16) in from.into_iter().zip(bf16).zip(f16) {
                let is_zero = value.is_subnormal() && bf16 & 0x7fff == 0;
                assert!(is_zero || bf16 == crate::dtype::bf16_bits(value), "{path:?}: {value}");
                let expected = half::f16::from_f32(value).to_f32();
                assert!(f16 == expected || f16.is_nan() && expected.is_nan(), "{path:?}: {value} {f16}");
            }
        }
    }
}

struct Dots<'a> {
    a: &'a [u32; 16],
    b: &'a [u32; 16],
    bf16: &'a mut [f32; 16],
    bytes: &'a mut [u32; 16],
    /// Of bytes of `a` without their highest bits.
    small: &'a mut [u32; 16],
}

impl Kernel for Dots<'_> {
    #[inline(always)]
    unsafe fn run<V: Vector, const ROWS: usize, const VECS: usize>(self) {
        for start in (0..16).step_by(V::LANES) {
            // SAFETY: vectors divide 16, words are as wide as lanes; `dispatch` checked the machine.
            unsafe {
                let (a, b) = (V::load_words(self.a.as_ptr().add(start)), V::load_words(self.b.as_ptr().add(start)));
                V::splat(0.5).dot_bf16(a, V::low_halves(b)).store(self.bf16.as_mut_ptr().add(start));
                let total = V::dot_bytes(V::splat_word(7), a, b);
                V::store_words(total, self.bytes.as_mut_ptr().add(start));
                let a = self.a.map(|word| word & 0x7f7f_7f7f);
                let total = V::dot_small_bytes(V::splat_word(7), V::load_words(a.as_ptr().add(start)), b);
                V::store_words(total, self.small.as_mut_ptr().add(start));
            }
        }
    }
}

#[test]
fn dot_products_of_words_agree_with_scalars() {
    let mut rng = fastrand::Rng::with_seed(8);
    for round in 0..200 {
        let mut half = || u32::from(crate::dtype::bf16_bits(rng.f32() * 4.0 - 2.0));
        let mut words = || std::array::from_fn::<u32, 16, _>(|_| half() << 16 | half());
        let (mut a, mut b) = (words(), words());
        if round == 0 {
            (a, b) = ([0xffff_ffff; 16], [0x8080_8080; 16]);
        }
        for &path in Path::available() {
            let (mut bf16, mut bytes, mut small) = ([0.0; 16], [0; 16], [0; 16]);
            dispatch(path, Dots { a: &a, b: &b, bf16: &mut bf16, bytes: &mut bytes, small: &mut small });
            for lane in 0..16 {
                let expected = |mask: u8| -> i32 {
                    let pairs = a[lane].to_le_bytes().into_iter().zip(b[lane].to_le_bytes());
                    pairs.map(|(a, b)| i32::from(a & mask) * i32::from(b as i8)).sum()
                };
                assert_eq!(bytes[lane] as i32, 7 + expected(0xff), "{path:?}");
                assert_eq!(small[lane] as i32, 7 + expected(0x7f), "{path:?}");
                let low = |word: u32| f64::from(f32::from_bits(word << 16));
                let expected = 0.5 + low(a[lane]) * low(b[lane]);
                if round > 0 {
                    assert!((f64::from(bf16[lane]) - expected).abs() < 1e-6, "{path:?}: {} {expected}", bf16[lane]);
                }
            }
        }
    }
}

/// As many words as the longest vector has, on its border.
#[repr(align(64))]
struct Line([u32; 16]);

/// What a vector's pairs and words become on their way through lanes, one after the other.
struct Shuffles<'a> {
    words: &'a [u32],
    values: &'a [f32],
    out: &'a mut Vec<[u32; 2]>,
    lanes: &'a mut usize,
}

impl Kernel for Shuffles<'_> {
    #[inline(always)]
    unsafe fn run<V: Vector, const ROWS: usize, const VECS: usize>(self) {
        *self.lanes = V::LANES;
        let mut put = |kind: u32, words: V::Words| {
            let mut lanes = [0; 16];
            // SAFETY: no vector is longer; `dispatch` checked the machine.
            unsafe { V::store_words(words, lanes.as_mut_ptr()) };
            self.out.extend(lanes[..V::LANES].iter().map(|word| [kind, *word]));
        };
        // SAFETY: both have two vectors' values; `dispatch` checked the machine.
        unsafe {
            let (a, b) = (V::load_words(self.words.as_ptr()), V::load_words(self.words.as_ptr().add(V::LANES)));
            let (c, d) = (V::load(self.values.as_ptr()), V::load(self.values.as_ptr().add(V::LANES)));
            let [first, second] = V::zip_words(a, b);
            put(0, first);
            put(1, second);
            let [low, high] = V::split_bf16(a);
            put(2, V::pair_bf16(low, high));
            put(3, V::pair_bf16(c, d));
            let [even, odd] = V::unzip(c, d);
            put(4, V::pair_bf16(even, odd));
            let [first, second] = V::zip_halves(a, b);
            put(5, first);
            put(6, second);
            let mut line = Line([0; 16]);
            V::stream_words(a, line.0.as_mut_ptr());
            fence();
            put(7, V::load_words(line.0.as_ptr()));
        }
    }
}

#[test]
fn words_and_pairs_go_where_they_should_on_every_path() {
    let words: Vec<u32> = (0..32_u32).map(|i| (i * 0x0101_0203) ^ 0x3f80_4000).collect();
    let mut values: Vec<f32> = (0..32_u32).map(|i| (i as f32 - 15.5) * 1.003_906_3_f32.powi(i as i32)).collect();
    // Ties, both ways; what is no normal number; the greatest, which becomes an infinity.
    values[..6].copy_from_slice(
        &[0x3f80_8000, 0x3f81_8000, 0x0000_8001, 0x8000_7fff, 0x7f7f_ffff, 0x7fc0_0000].map(f32::from_bits),
    );
    for &path in Path::available() {
        let (mut out, mut lanes) = (Vec::new(), 0);
        dispatch(path, Shuffles { words: &words, values: &values, out: &mut out, lanes: &mut lanes });
        let pair = |low: f32, high: f32| {
            u32::from(crate::dtype::bf16_bits(low)) | u32::from(crate::dtype::bf16_bits(high)) << 16
        };
        let zipped = (0..lanes).flat_map(|i| [words[i], words[lanes + i]]);
        let expected = zipped
            .enumerate()
            .map(|(i, word)| [u32::from(i >= lanes), word])
            .chain((0..lanes).map(|i| [2, words[i]]))
            .chain((0..lanes).map(|i| [3, pair(values[i], values[lanes + i])]))
            .chain((0..lanes).map(|i| [4, pair(values[2 * i], values[2 * i + 1])]))
            .chain((0..2 * lanes).map(|i| {
                let half = |word: u32| word >> (i % 2 * 16) & 0xffff;
                [5 + u32::from(i >= lanes), half(words[i / 2]) | half(words[lanes + i / 2]) << 16]
            }))
            .chain((0..lanes).map(|i| [7, words[i]]));
        assert_eq!(out, expected.collect::<Vec<_>>(), "{path:?}");
    }
}

/// 64 quads of six bits, by lane of four vectors.
struct Sixes<'a> {
    low: &'a [[u32; 16]; 2],
    high: &'a [u32; 16],
    out: &'a mut [[u32; 16]; 4],
}

impl Kernel for Sixes<'_> {
    #[inline(always)]
    unsafe fn run<V: Vector, const ROWS: usize, const VECS: usize>(self) {
        for start in (0..16).step_by(V::LANES) {
            // SAFETY: vectors divide 16, words are as wide as lanes; `dispatch` checked the machine.
            unsafe {
                let load = |words: &[u32; 16]| V::load_words(words.as_ptr().add(start));
                let quads = V::sixes([load(&self.low[0]), load(&self.low[1])], load(self.high));
                for (out, quad) in self.out.iter_mut().zip(quads) {
                    V::store_words(quad, out.as_mut_ptr().add(start));
                }
            }
        }
    }
}

#[test]
fn numbers_of_six_bits_are_put_together() {
    let mut rng = fastrand::Rng::with_seed(9);
    let mut words = || std::array::from_fn::<u32, 16, _>(|_| rng.u32(..));
    let (low, high) = ([words(), words()], words());
    for &path in Path::available() {
        let mut out = [[0; 16]; 4];
        dispatch(path, Sixes { low: &low, high: &high, out: &mut out });
        for (quad, lane, byte) in (0..4 * 16 * 4).map(|at| (at / 64, at / 4 % 16, at % 4)) {
            let low = low[quad / 2][lane] >> (8 * byte + 4 * (quad % 2)) & 15;
            let high = high[lane] >> (8 * byte + 2 * quad) & 3;
            assert_eq!(out[quad][lane] >> (8 * byte) & 255, low | high << 4, "{path:?}: quad {quad}, byte {byte}");
        }
    }
}
