//! Every kernel of a GPU beside the host, each family in a process of its own: one that crashes or hangs hides no other, and what it leaves of the
//! driver's state goes with it.

use std::io::Read;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use ragstone_cuda::{CheckOptions, Checked, Family, FamilyCheck, Gpu, check_family, usable};
use ragstone_env::{Env, Stopwatch};
use ragstone_terminal::output;

use crate::error::{Error, ErrorKind, Result};

/// How long a process that was ended may take to go: a driver that waits for its GPU may hold it.
const PATIENCE: Duration = Duration::from_secs(10);

#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// Seed of inputs and random shapes
    #[arg(long, value_name = "SEED", default_value_t = 1)]
    pub seed: u64,
    /// Random shapes of each kernel, beside those that are always tried
    #[arg(long, value_name = "N", default_value_t = 8)]
    pub shapes: usize,
    /// Only what takes seconds where kernels run on a processor: no random shapes, none of a large model
    #[arg(long)]
    pub quick: bool,
    /// Only these families: values, rows, positions, products, experts, quantized, attention, reuse, bits
    #[arg(long, value_name = "FAMILY,…", value_delimiter = ',')]
    pub only: Vec<Family>,
    /// How long a family may take, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 600, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub limit: u64,
    /// Check in this process, which ends with the first family that does
    #[arg(long)]
    pub here: bool,
    /// Print JSON: a line for each family as it ends, then one of all
    #[arg(long)]
    pub json: bool,
}

impl Args {
    fn options(&self) -> CheckOptions {
        CheckOptions {
            seed: self.seed,
            shapes: if self.quick { 0 } else { self.shapes },
            large: !self.quick,
            own: true,
        }
    }

    fn families(&self) -> &[Family] {
        if self.only.is_empty() { &Family::ALL } else { &self.only }
    }

    /// The same for one family, in its own process.
    fn of_family(&self, family: Family) -> Vec<String> {
        let mut arguments = vec!["--here".into(), "--json".into(), "--only".into(), family.to_string()];
        arguments.extend([format!("--seed={}", self.seed), format!("--shapes={}", self.shapes)]);
        arguments.extend(self.quick.then(|| "--quick".to_owned()));
        arguments
    }
}

/// Checks every kernel of GPU `ordinal`, tells of each family as it ends, and fails where one is off. `program` is this one, with what it needs to
/// come here again.
///
/// # Errors
/// Where there is no such GPU, and `Internal` where something is off.
pub fn run(ordinal: usize, args: &Args, program: impl Fn() -> Result<Command>) -> Result<()> {
    if args.shapes > 1000 {
        return Err(Error::invalid_input(format!("--shapes {}: at most 1000", args.shapes)));
    }
    let gpu = usable(ordinal)?;
    if !args.json {
        output::line(&format!("{gpu}, seed {}", args.seed))?;
    }
    let mut parts = Vec::new();
    for family in args.families() {
        let part = match args.here {
            true => check_family(ordinal, *family, args.options())?,
            false => {
                let mut command = program()?;
                command.args(args.of_family(*family));
                checked_apart(&gpu, args.seed, *family, command, Duration::from_secs(args.limit))?
            }
        };
        if args.json { output::json(&part) } else { print(&part) }?;
        parts.push(part);
    }
    let checked = Checked::of(gpu, args.seed, parts);
    if args.json && !args.here {
        output::json(&checked)?;
    }
    let problems = checked.problems();
    match problems.first() {
        None => Ok(()),
        Some(first) => {
            let message = format!("{} of {} checks failed, first {first}", problems.len(), checked.rows());
            Err(Error::new(ErrorKind::Internal, message))
        }
    }
}

/// What a process of its own finds of a family; a failure of the family where it does not come to its end.
fn checked_apart(gpu: &Gpu, seed: u64, family: Family, command: Command, limit: Duration) -> Result<Checked> {
    let started = Stopwatch::start();
    let problem = match apart(command, limit)? {
        Ended::Said(text) => match text.lines().next().map(serde_json::from_str::<Checked>) {
            Some(Ok(checked)) => return Ok(checked),
            _ => "it printed nothing that can be read".to_owned(),
        },
        Ended::Failed(why) => why,
    };
    let families = vec![FamilyCheck { family, seconds: started.elapsed_s(), problem: Some(problem) }];
    Ok(Checked { gpu: gpu.clone(), seed, families, kernels: Vec::new(), bits: Vec::new() })
}

/// How a process ended.
#[derive(Debug, PartialEq, Eq)]
enum Ended {
    /// By itself, with something on standard output.
    Said(String),
    /// Otherwise: why.
    Failed(String),
}

/// Runs a command, for so long at most.
fn apart(mut command: Command, limit: Duration) -> Result<Ended> {
    let failed =
        |error: std::io::Error| Error::new(ErrorKind::Unavailable, format!("no process can be started: {error}"));
    let piped = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = piped.spawn().map_err(failed)?;
    let (said, told) = (read_all(child.stdout.take())?, read_all(child.stderr.take())?);
    let Ok(said) = said.recv_timeout(limit) else {
        let _ = child.kill();
        let has_ended = told.recv_timeout(PATIENCE).is_ok();
        if has_ended {
            let _ = child.wait();
        }
        let and = if has_ended { "" } else { ", and cannot be ended: the driver holds it" };
        return Ok(Ended::Failed(format!("it has not ended after {} s{and}", limit.as_secs())));
    };
    let told = told.recv_timeout(PATIENCE).unwrap_or_default();
    let status = wait(&mut child)?;
    if !said.trim().is_empty() {
        return Ok(Ended::Said(said));
    }
    let last = told.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("without a word").trim().to_owned();
    Ok(Ended::Failed(format!("{status}: {last}")))
}

fn wait(child: &mut Child) -> Result<ExitStatus> {
    child.wait().map_err(|error| Error::internal(format!("a process cannot be waited for: {error}")))
}

/// All that comes, once it has ended.
fn read_all(from: Option<impl Read + Send + 'static>) -> Result<Receiver<String>> {
    let (send, receive) = channel();
    Env::spawn("output", move || {
        let mut bytes = Vec::new();
        if let Some(mut from) = from {
            let _ = from.read_to_end(&mut bytes);
        }
        let _ = send.send(String::from_utf8_lossy(&bytes).into_owned());
    })?;
    Ok(receive)
}

fn print(part: &Checked) -> Result<()> {
    for of in &part.families {
        output::line(&format!("\n{}: {:.1} s   {}", of.family, of.seconds, of.problem.as_deref().unwrap_or("")))?;
    }
    if !part.kernels.is_empty() {
        output::line("kernel                   compared   greatest difference   relative   of what is tolerated")?;
    }
    for row in &part.kernels {
        output::line(&format!(
            "{:<24} {:>8} {:>21.2e} {:>10.2e} {:>23.3}   {}",
            row.kernel,
            row.compared,
            row.absolute,
            row.relative,
            row.of_tolerance,
            row.problem.as_deref().unwrap_or("ok"),
        ))?;
    }
    for row in &part.bits {
        output::line(&format!("{:<70}   {}", row.what, row.problem.as_deref().unwrap_or("ok")))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn what_a_process_says_is_kept_and_how_it_fails_is_told() {
        let ended = |script: &str| apart(shell(script), PATIENCE).unwrap();
        assert_eq!(ended("echo found; exit 1"), Ended::Said("found\n".into()));
        let Ended::Failed(why) = ended("echo one >&2; echo 'the GPU is gone' >&2; exit 3") else { panic!() };
        assert!(why.contains('3') && why.ends_with("the GPU is gone"), "{why}");
        let Ended::Failed(why) = ended("kill -9 $$") else { panic!() };
        assert!(why.contains('9') && why.ends_with("without a word"), "{why}");
    }

    #[test]
    fn a_process_that_never_ends_is_ended() {
        let ended = apart(shell("exec sleep 600"), Duration::from_millis(20)).unwrap();
        assert_eq!(ended, Ended::Failed("it has not ended after 0 s".into()));
        assert!(apart(Command::new("/nonexistent/program"), PATIENCE).is_err());
    }

    #[test]
    fn arguments_of_a_family_are_those_that_were_given() {
        #[derive(clap::Parser)]
        struct Line {
            #[command(flatten)]
            args: Args,
        }
        use clap::Parser as _;
        let given = Line::parse_from(["x", "--quick", "--seed", "7", "--only", "values,bits"]).args;
        assert_eq!(given.families(), [Family::Values, Family::Bits]);
        let again = Line::parse_from(std::iter::once("x".to_owned()).chain(given.of_family(Family::Bits))).args;
        assert!(again.here && again.json && again.quick && again.only == [Family::Bits] && again.seed == 7);
        assert_eq!(again.options().shapes, 0);
    }
}
