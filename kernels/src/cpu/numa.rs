//! Processors whose memory is in several NUMA nodes: compute threads are kept on their node's processors, weights and KV are cut into a
//! share for each node that lies in its memory, and threads take the work over their node's share first.
//!
//! No sum is cut, and a value does not know which thread computes it: the bits are those of one node. With one node nothing here is used.

#[cfg(not(target_os = "linux"))]
mod elsewhere;
#[cfg(target_os = "linux")]
mod linux;
mod shares;
#[cfg(test)]
pub(crate) mod tests;
mod topology;

use std::cell::OnceCell;
use std::fmt;
use std::num::NonZeroUsize;
use std::sync::{Arc, OnceLock};

use rayon::{ThreadPoolBuildError, ThreadPoolBuilder};

#[cfg(not(target_os = "linux"))]
use elsewhere as system;
#[cfg(target_os = "linux")]
use linux as system;

pub(crate) use shares::Shares;
use topology::{Node, Topology};

/// Bytes of a share below which a matrix is not cut, but spread over the nodes: its pages would be too few for a node to have its own.
const LEAST_SHARE: usize = 2 << 20;

/// Whether computing is divided among NUMA nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Numa {
    /// Where there are several, unless somebody (`numactl`) has said already where memory is to come from.
    #[default]
    Auto,
    /// Threads and memory are wherever the system puts them.
    Off,
}

/// The compute threads of several nodes.
#[derive(Debug)]
pub struct Team {
    groups: Vec<Group>,
    least_share: usize,
    /// Why the system does not let memory be placed, if it does not.
    refusal: Option<String>,
}

/// The threads of a node.
#[derive(Debug)]
struct Group {
    node: Node,
    threads: usize,
}

impl Team {
    /// As many threads as `threads` says (0: as rayon would take), among the nodes of this machine; `None` where it is not divided.
    pub fn planned(threads: usize, numa: Numa) -> Option<Self> {
        match numa {
            Numa::Auto if !system::has_policy() => Self::new(&Topology::of_machine(), number(threads)),
            Numa::Auto | Numa::Off => None,
        }
    }

    /// Threads in proportion to the processors of each node; `None` if only one has any.
    fn new(topology: &Topology, threads: usize) -> Option<Self> {
        let mut groups: Vec<Group> =
            topology.nodes.iter().map(|node| Group { node: node.clone(), threads: 0 }).collect();
        for node in nodes_of_threads(topology.nodes.iter().map(|node| node.cpus.len()).collect()).take(threads) {
            groups[node].threads += 1;
        }
        groups.retain(|group| group.threads > 0);
        let first = groups.first().filter(|_| groups.len() > 1)?;
        let refusal = system::try_bind(first.node.id).err().map(|error| error.to_string());
        Some(Self { groups, least_share: LEAST_SHARE, refusal })
    }

    /// How many threads there are on each node.
    pub fn threads(&self) -> impl ExactSizeIterator<Item = usize> + '_ {
        self.groups.iter().map(|group| group.threads)
    }

    /// Why the system does not let memory be placed, if it does not: then it lies with the threads that write it first.
    pub fn refusal(&self) -> Option<&str> {
        self.refusal.as_deref()
    }

    /// What [`ThreadPoolBuilder::start_handler`] is to do on each of the threads.
    fn join(self: &Arc<Self>) -> impl Fn(usize) + Send + Sync + 'static {
        let team = Arc::clone(self);
        let processors = team.groups.iter().map(|group| group.node.cpus.len()).collect::<Vec<_>>();
        let nodes: Vec<usize> = nodes_of_threads(processors).take(team.threads().sum()).collect();
        move |index| {
            let Some(node) = nodes.get(index) else { return };
            // One that is not let stay is at home nowhere, and computes wherever there is work.
            if system::pin(&team.groups[*node].node.cpus) {
                PLACE.with(|place| {
                    place.get_or_init(|| (Arc::clone(&team), *node));
                });
            }
        }
    }
}

impl fmt::Display for Team {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let threads: Vec<String> = self.threads().map(|threads| threads.to_string()).collect();
        write!(f, "{} NUMA nodes: {} threads, weights split", threads.len(), threads.join(" + "))
    }
}

thread_local! {
    /// A compute thread's team, and its node there.
    static PLACE: OnceCell<(Arc<Team>, usize)> = const { OnceCell::new() };
}

/// That of the global pool.
static GLOBAL: OnceLock<Arc<Team>> = OnceLock::new();

/// The threads that will compute what is called for from here: this thread's own team, or that of the global pool.
fn in_use() -> Option<Arc<Team>> {
    PLACE.with(|place| place.get().map(|(team, _)| Arc::clone(team))).or_else(|| GLOBAL.get().cloned())
}

/// This thread's node, if it has one.
fn home() -> Option<usize> {
    PLACE.with(|place| place.get().map(|(_, node)| *node))
}

/// How many threads `threads` means, where 0 leaves it to rayon.
fn number(threads: usize) -> usize {
    let parse = |text: String| text.parse().ok();
    NonZeroUsize::new(threads)
        .or_else(|| std::env::var("RAYON_NUM_THREADS").ok().and_then(parse))
        .or_else(|| std::thread::available_parallelism().ok())
        .map_or(1, usize::from)
}

/// The node of each thread in turn, for nodes of so many processors: always the one that then has fewest threads a processor, so that any
/// number of threads is in proportion.
fn nodes_of_threads(processors: Vec<usize>) -> impl Iterator<Item = usize> {
    let mut threads = vec![0_usize; processors.len()];
    std::iter::from_fn(move || {
        let node = (0..processors.len())
            .min_by(|a, b| ((threads[*a] + 1) * processors[*b]).cmp(&((threads[*b] + 1) * processors[*a])))?;
        threads[node] += 1;
        Some(node)
    })
}

/// Builds rayon's global pool of `threads` threads (0: as many as rayon would take), divided among the nodes if there are several; what is
/// packed and allocated later is divided like that.
///
/// # Errors
/// If there is a global pool already.
pub fn build_global(
    builder: ThreadPoolBuilder,
    threads: usize,
    numa: Numa,
) -> Result<Option<Arc<Team>>, ThreadPoolBuildError> {
    let Some(team) = Team::planned(threads, numa).map(Arc::new) else {
        return builder.num_threads(threads).build_global().map(|()| None);
    };
    builder.num_threads(team.threads().sum()).start_handler(team.join()).build_global()?;
    Ok(Some(Arc::clone(GLOBAL.get_or_init(|| team))))
}

/// That of the global pool, if it is divided.
pub fn global() -> Option<&'static Team> {
    GLOBAL.get().map(AsRef::as_ref)
}
