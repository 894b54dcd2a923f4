//! Fuzzing on the stable toolchain, a second each in every test run: known good inputs, mutated. What a property understands
//! is mutated further, so that the search goes deeper than one change. `ops/fuzz` runs the same properties for longer, and
//! those of `kernels` under a coverage-guided engine.

use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::{Duration, Instant};

/// Seconds that each property is tried for.
pub const SECONDS_VARIABLE: &str = "RAGSTONE_FUZZ_SECONDS";
const DEFAULT_SECONDS: u64 = 1;
/// Inputs that are mutated further; a new one takes the place of an old one.
const MOST_INPUTS: usize = 512;
const MOST_BYTES: usize = 1 << 16;
const MOST_MUTATIONS: u64 = 6;

/// Tries `property` on `seeds` and on what becomes of them. It panics where it does not hold, and says whether the input was
/// understood. The inputs follow from the seeds alone; how many there are follows from the time.
pub fn fuzz(name: &str, seeds: &[Vec<u8>], property: impl Fn(&[u8]) -> bool) {
    let budget = Duration::from_secs(seconds(std::env::var(SECONDS_VARIABLE).ok()));
    let began = now();
    let mut pool = seeds.to_vec();
    for seed in seeds {
        assert!(tried(name, seed, &property), "a seed of {name} is not understood: {}", seed.escape_ascii());
    }
    let mut random = Random(1);
    let (mut inputs, mut understood) = (0u64, 0u64);
    while began.elapsed() < budget {
        let input = mutated(&pool, &mut random);
        inputs += 1;
        if tried(name, &input, &property) {
            understood += 1;
            if pool.len() < MOST_INPUTS {
                pool.push(input);
            } else {
                // The seeds stay.
                let at = seeds.len() + random.below(MOST_INPUTS.saturating_sub(seeds.len()).max(1));
                pool[at.min(MOST_INPUTS - 1)] = input;
            }
        }
    }
    // Past the capture of a test's output.
    let _ = writeln!(std::io::stderr(), "fuzz {name}: {inputs} inputs, {understood} of them understood, {budget:?}");
}

fn seconds(variable: Option<String>) -> u64 {
    variable.map_or(DEFAULT_SECONDS, |text| text.parse().unwrap_or_else(|_| panic!("{SECONDS_VARIABLE} is '{text}'")))
}

#[expect(
    clippy::disallowed_methods,
    reason = "the test's own budget; this file serves crates below the one with the clock"
)]
fn now() -> Instant {
    Instant::now()
}

fn tried(name: &str, input: &[u8], property: &impl Fn(&[u8]) -> bool) -> bool {
    catch_unwind(AssertUnwindSafe(|| property(input))).unwrap_or_else(|panic| {
        let path = std::env::temp_dir().join(format!("ragstone-fuzz-{}", name.replace(' ', "-")));
        let kept = std::fs::write(&path, input).map_or_else(|error| error.to_string(), |()| path.display().to_string());
        let _ = writeln!(std::io::stderr(), "fuzz {name}: failed on {} (in {kept})", input.escape_ascii());
        resume_unwind(panic)
    })
}

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Less than `bound`, which must not be 0.
    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    fn one_of<'a, T: ?Sized>(&mut self, all: &[&'a T]) -> &'a T {
        all[self.below(all.len())]
    }

    /// A short range of `length` bytes.
    fn range(&mut self, length: usize) -> std::ops::Range<usize> {
        let start = self.below(length + 1);
        let most = (length - start).min(if self.below(4) == 0 { usize::MAX } else { 16 });
        start..start + self.below(most + 1)
    }
}

/// Numbers that decoders get wrong.
const NUMBERS: [u64; 11] =
    [0, 1, 2, 0x7F, 0xFF, 0x7FFF_FFFF, 0xFFFF_FFFF, 1 << 32, i64::MAX as u64, u64::MAX - 7, u64::MAX];
const TEXT_NUMBERS: [&str; 9] =
    ["0", "-1", "1e999", "-0.0", "4294967296", "18446744073709551615", "18446744073709551616", "0.5", "67108864"];
const TEXT_VALUES: [&str; 8] = ["null", "true", "[]", "{}", "\"\"", "\"\\ud800\"", "[[[[", "\u{feff}"];

fn mutated(pool: &[Vec<u8>], random: &mut Random) -> Vec<u8> {
    let mut input = pool[random.below(pool.len())].clone();
    for _ in 0..=random.next() % MOST_MUTATIONS {
        mutate(&mut input, pool, random);
    }
    input.truncate(MOST_BYTES);
    input
}

fn mutate(input: &mut Vec<u8>, pool: &[Vec<u8>], random: &mut Random) {
    let at = random.below(input.len().max(1));
    match random.below(10) {
        0 if !input.is_empty() => input[at] ^= 1 << random.below(8),
        1 if !input.is_empty() => input[at] = random.next() as u8,
        2 => {
            let width = [1, 2, 4, 8][random.below(4)];
            let near = (input.len() as u64).wrapping_add(random.next() % 5).wrapping_sub(2);
            let number = if random.below(3) == 0 { near } else { NUMBERS[random.below(NUMBERS.len())] };
            if at + width <= input.len() {
                input[at..at + width].copy_from_slice(&number.to_le_bytes()[..width]);
            }
        }
        3 => drop(input.drain(random.range(input.len()))),
        4 => {
            let copied = input[random.range(input.len())].to_vec();
            input.splice(at.min(input.len())..at.min(input.len()), copied);
        }
        5 => {
            let other = &pool[random.below(pool.len())];
            let copied = other[random.range(other.len())].to_vec();
            let over = random.range(input.len());
            input.splice(over, copied);
        }
        6 => {
            if let Some(digits) = digits_from(input, at) {
                let number = random.one_of(&TEXT_NUMBERS);
                input.splice(digits, number.bytes());
            }
        }
        7 => {
            let value = random.one_of(&TEXT_VALUES);
            let over = random.range(input.len());
            input.splice(over, value.bytes());
        }
        8 => input.truncate(random.below(input.len() + 1)),
        _ => {
            let bytes: Vec<u8> = (0..=random.below(8)).map(|_| random.next() as u8).collect();
            input.splice(at.min(input.len())..at.min(input.len()), bytes);
        }
    }
}

/// The first run of ASCII digits from `at` on.
fn digits_from(input: &[u8], at: usize) -> Option<std::ops::Range<usize>> {
    let start = at + input.get(at..)?.iter().position(u8::is_ascii_digit)?;
    let length = input[start..].iter().take_while(|byte| byte.is_ascii_digit()).count();
    Some(start..start + length)
}
