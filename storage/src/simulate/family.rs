//! Workload families: small generated workloads of one habit each, so that a policy shows its weak side.
//!
//! The sample workloads are two; what is tuned to two files is good for two files. A family is a habit of users and
//! applications, a seed replays it, and its test checks that it has the habit that it claims.

use std::fmt;
use std::str::FromStr;

use super::Workload;
use super::habit::{Bursts, Fresh, Habit, InTurns, Loop, Loops, Popular, Rotation, Sessions, Shuffled, Together};
use super::random::Random;
use crate::segment::SegmentKind;
use crate::{Error, Result};
use ragstone_env::Env;

/// Requests of a family where nobody says how many.
pub const FAMILY_REQUESTS: usize = 20_000;

/// The families.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Family {
    /// Passages in the same order again and again.
    Cycle,
    /// Three cycles of unlike size at once.
    Loops,
    /// Conversations: most are short, some are long, and each turn goes on behind the ones before it.
    Sessions,
    /// Zipf popularity that stays.
    Zipf,
    /// Every passage as likely as the other.
    Uniform,
    /// Zipf popularity; with every request two passages may change places.
    Drift,
    /// Zipf popularity among passages that are exchanged all at once, now and then.
    Shift,
    /// Passages that are hot for a while and never again.
    Bursts,
    /// A stable hot set, and scans of passages that nobody asks for again.
    Scans,
    /// Short passages beside ones of fifty times their length, popular alike.
    Sizes,
    /// Two tenants: one asks Zipf-like behind its system prompt, one has conversations.
    Tenants,
    /// Four working sets in turn, which come back "the next day".
    Daily,
    /// Four passages of a topic in any order.
    Shuffled,
    /// Other families after one another.
    Mix,
}

impl Family {
    /// All of them.
    pub const ALL: [Self; 14] = [
        Self::Cycle,
        Self::Loops,
        Self::Sessions,
        Self::Zipf,
        Self::Uniform,
        Self::Drift,
        Self::Shift,
        Self::Bursts,
        Self::Scans,
        Self::Sizes,
        Self::Tenants,
        Self::Daily,
        Self::Shuffled,
        Self::Mix,
    ];

    /// Its name on the command line and in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cycle => "cycle",
            Self::Loops => "loops",
            Self::Sessions => "sessions",
            Self::Zipf => "zipf",
            Self::Uniform => "uniform",
            Self::Drift => "drift",
            Self::Shift => "shift",
            Self::Bursts => "bursts",
            Self::Scans => "scans",
            Self::Sizes => "sizes",
            Self::Tenants => "tenants",
            Self::Daily => "daily",
            Self::Shuffled => "shuffled",
            Self::Mix => "mix",
        }
    }

    /// So many requests of this family; a seed replays them.
    ///
    /// # Errors
    /// `InvalidInput` if no request is wanted, or more than 10,000,000.
    pub fn generate(self, seed: u64, requests: usize) -> Result<Workload> {
        if !(1..=10_000_000).contains(&requests) {
            return Err(Error::invalid_input("a family has between 1 and 10000000 requests"));
        }
        let mut random = Random(Env::seeded(seed, 0));
        let mut habit = self.habit(requests, &mut random);
        // The turns of one conversation are said nowhere else: where there are conversations, nothing counts as a passage.
        let has_turns = matches!(self, Self::Sessions | Self::Tenants | Self::Mix);
        let mut workload = Workload::new(self == Self::Tenants);
        if has_turns {
            workload.kind = SegmentKind::Text;
        }
        for request in 0..requests {
            let path = habit.path(request, &mut random);
            let segments: Vec<(u64, u32)> = path.into_iter().map(|label| (label, self.tokens(seed, label))).collect();
            workload.push(&segments, 16 + random.below(49) as u32)?;
        }
        Ok(workload)
    }

    fn habit(self, requests: usize, random: &mut Random) -> Box<dyn Habit> {
        match self {
            Self::Cycle => Box::new(Loop::new(500)),
            Self::Loops => Box::new(Loops::new(&[40, 200, 800])),
            Self::Sessions => Box::new(Sessions::new(60)),
            Self::Zipf => Box::new(Popular::new(2000, 0.9, random)),
            Self::Uniform => Box::new(Popular::new(1500, 0.0, random)),
            Self::Drift => Box::new(Popular::new(2000, 1.0, random).drifting(0.5)),
            Self::Shift => Box::new(Popular::new(1000, 1.0, random).renewed_every(requests / 6)),
            Self::Bursts => Box::new(Bursts::new(40)),
            Self::Scans => Box::new(Together::new(vec![
                (0.6, Box::new(Popular::new(400, 0.7, random))),
                (0.4, Box::new(Fresh::default())),
            ])),
            Self::Sizes => Box::new(Popular::new(1500, 0.8, random)),
            Self::Tenants => {
                let one = Popular::new(1000, 0.9, random).with_system_prompt();
                Box::new(Together::new(vec![
                    (0.5, Box::new(one)),
                    (0.5, Box::new(Sessions::new(40).with_system_prompt())),
                ]))
            }
            Self::Daily => Box::new(Rotation::new(4, 500, requests / 16, random)),
            Self::Shuffled => Box::new(Shuffled::new(300, 4, random)),
            Self::Mix => Box::new(InTurns::new(
                requests.div_ceil(5),
                vec![
                    Box::new(Popular::new(800, 0.9, random)),
                    Box::new(Loop::new(300)),
                    Box::new(Sessions::new(40)),
                    Box::new(Bursts::new(40)),
                    Box::new(Popular::new(800, 0.9, random)),
                ],
            )),
        }
    }

    /// The length of a passage, which its label decides, wherever it stands.
    fn tokens(self, seed: u64, label: u64) -> u32 {
        let mut random = Random(Env::seeded(seed ^ label.wrapping_mul(0x9e37_79b9_7f4a_7c15), 1));
        if self == Self::Sizes {
            let long = random.unit() < 0.3;
            return if long { 3000 + random.below(2000) as u32 } else { 48 + random.below(64) as u32 };
        }
        // Bounded far below 2^32.
        (400.0 * (0.6 * random.normal()).exp()).clamp(32.0, 4096.0) as u32
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Family {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        Self::ALL.into_iter().find(|family| family.name() == text).ok_or_else(|| {
            Error::invalid_input(format!(
                "family '{text}' is unknown; use all, {}",
                Self::ALL.map(Self::name).join(", ")
            ))
        })
    }
}
