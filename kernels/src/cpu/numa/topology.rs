//! Which nodes there are, and which processors each has.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use super::system;

/// The most numbers of a range: more processors no system has, and a damaged file is not to fill memory.
const MOST_OF_A_RANGE: usize = 1 << 16;

/// A NUMA node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// Its number in the system.
    pub id: usize,
    /// The processors that compute next to its memory, by number.
    pub cpus: Vec<usize>,
}

/// The nodes that this process may compute on. None where that is not known.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Topology {
    /// Those with memory and processors, by number.
    pub nodes: Vec<Node>,
}

impl Topology {
    /// Of this machine, as far as this process may use it.
    pub fn of_machine() -> Self {
        let Some(cpus) = system::allowed_cpus() else { return Self::default() };
        let memories = fs::read_to_string("/proc/self/status").ok().and_then(|status| allowed_memories(&status));
        Self::read(Path::new("/sys/devices/system/node"), &cpus, memories.as_deref())
    }

    /// As `folder` says, which is laid out as Linux's `/sys/devices/system/node`: of the processors `cpus`, and of nodes whose memory is among
    /// `memories`. Processors of a node without such memory are counted to the nearest that has some.
    pub fn read(folder: &Path, cpus: &[usize], memories: Option<&[usize]>) -> Self {
        Self::try_read(folder, cpus, memories).unwrap_or_default()
    }

    fn try_read(folder: &Path, cpus: &[usize], memories: Option<&[usize]>) -> Option<Self> {
        let id = |name: std::ffi::OsString| name.to_str()?.strip_prefix("node")?.parse().ok();
        let mut ids: Vec<usize> = fs::read_dir(folder).ok()?.filter_map(|entry| id(entry.ok()?.file_name())).collect();
        ids.sort_unstable();
        let text = |name: String| fs::read_to_string(folder.join(name)).ok();
        // A system that does not say has memory in each.
        let filled = text("has_memory".into()).and_then(|text| numbers(&text));
        let is_in = |list: Option<&[usize]>, id: &usize| list.is_none_or(|list| list.contains(id));
        let has_memory = |id: &usize| is_in(filled.as_deref(), id) && is_in(memories, id);
        let nearest = |id: usize| -> Option<usize> {
            // One number a node, in the nodes' order.
            let distances = text(format!("node{id}/distance")).unwrap_or_default();
            let mut distances = distances.split_whitespace().map(|word| word.parse().unwrap_or(u32::MAX));
            let apart = ids.iter().map(|other| (distances.next().unwrap_or(u32::MAX), *other));
            apart.filter(|(_, other)| has_memory(other)).min().map(|(_, other)| other)
        };
        let mut nodes = BTreeMap::<usize, Vec<usize>>::new();
        for id in &ids {
            let mut own = numbers(&text(format!("node{id}/cpulist"))?)?;
            own.retain(|cpu| cpus.contains(cpu));
            if !own.is_empty() {
                let home = if has_memory(id) { *id } else { nearest(*id)? };
                nodes.entry(home).or_default().extend(own);
            }
        }
        Some(Self { nodes: nodes.into_iter().map(|(id, cpus)| Node { id, cpus }).collect() })
    }
}

/// The nodes whose memory a process may have, of its `/proc/PID/status`. Unlike the call for it, containers let it be read.
fn allowed_memories(status: &str) -> Option<Vec<usize>> {
    numbers(status.lines().find_map(|line| line.strip_prefix("Mems_allowed_list:"))?)
}

/// Reads a list such as `0-3,8`.
fn numbers(text: &str) -> Option<Vec<usize>> {
    let mut numbers = Vec::new();
    for range in text.trim().split(',').filter(|range| !range.is_empty()) {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        if last.checked_sub(first)? >= MOST_OF_A_RANGE {
            return None;
        }
        numbers.extend(first..=last);
    }
    Some(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder of nodes as (number, its processors, its distances), and which have memory.
    fn folder(nodes: &[(usize, &str, &str)], has_memory: Option<&str>) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for (id, cpus, distances) in nodes {
            let node = folder.path().join(format!("node{id}"));
            fs::create_dir(&node).unwrap();
            fs::write(node.join("cpulist"), format!("{cpus}\n")).unwrap();
            fs::write(node.join("distance"), format!("{distances}\n")).unwrap();
        }
        // What else is there.
        fs::write(folder.path().join("online"), "0-1\n").unwrap();
        if let Some(has_memory) = has_memory {
            fs::write(folder.path().join("has_memory"), format!("{has_memory}\n")).unwrap();
        }
        folder
    }

    fn nodes(folder: &tempfile::TempDir, cpus: &[usize], memories: Option<&[usize]>) -> Vec<(usize, Vec<usize>)> {
        let found = Topology::read(folder.path(), cpus, memories);
        found.nodes.into_iter().map(|node| (node.id, node.cpus)).collect()
    }

    #[test]
    fn each_node_has_its_processors_that_may_be_used() {
        let two = folder(&[(1, "2-3,6-7", "21 10"), (0, "0-1,4-5", "10 21")], Some("0-1"));
        let all: Vec<usize> = (0..8).collect();
        assert_eq!(nodes(&two, &all, None), [(0, vec![0, 1, 4, 5]), (1, vec![2, 3, 6, 7])]);
        assert_eq!(nodes(&two, &[1, 3, 7], Some(&[0, 1])), [(0, vec![1]), (1, vec![3, 7])], "a cpuset");
        assert_eq!(nodes(&two, &[0, 5], None), [(0, vec![0, 5])]);
        assert_eq!(nodes(&two, &all, Some(&[1])), [(1, vec![0, 1, 4, 5, 2, 3, 6, 7])], "memory of one alone");
        assert_eq!(nodes(&folder(&[(0, "0-1", "10")], None), &[0, 1], None), [(0, vec![0, 1])]);
    }

    #[test]
    fn which_memory_may_be_used_is_read_of_the_status() {
        let status =
            "Name:\tragstone\nCpus_allowed_list:\t0-7\nMems_allowed:\t00000000,00000005\nMems_allowed_list:\t0,2\n";
        assert_eq!(allowed_memories(status), Some(vec![0, 2]));
        assert_eq!(allowed_memories("Name:\tragstone\n"), None);
    }

    #[test]
    fn processors_without_memory_are_counted_to_the_nearest_that_has_some() {
        let four = [(0, "0", "10 40 20 30"), (1, "1", "40 10 30 20"), (2, "2", "20 30 10 40"), (5, "3", "30 20 40 10")];
        let all = [0, 1, 2, 3];
        assert_eq!(nodes(&folder(&four, Some("0,5")), &all, None), [(0, vec![0, 2]), (5, vec![1, 3])]);
        // Memory without processors, as behind CXL.
        let far = folder(&[(0, "0-1", "10 20 50"), (1, "2-3", "20 10 50"), (2, "", "50 50 10")], Some("0-2"));
        assert_eq!(nodes(&far, &all, None), [(0, vec![0, 1]), (1, vec![2, 3])]);
    }

    #[test]
    fn what_cannot_be_read_is_no_topology() {
        let nothing = tempfile::tempdir().unwrap();
        assert_eq!(Topology::read(&nothing.path().join("missing"), &[0], None), Topology::default());
        assert_eq!(Topology::read(nothing.path(), &[0], None), Topology::default());
        for damaged in ["x", "3-1", "0-", "0-99999999999", "0-18446744073709551615", "-"] {
            assert_eq!(nodes(&folder(&[(0, "0", "10"), (1, damaged, "10")], None), &[0, 1], None), [], "{damaged}");
        }
        let without = folder(&[(0, "0", "10 20"), (1, "1", "20 10")], Some(""));
        assert_eq!(nodes(&without, &[0, 1], None), [], "no memory that may be used");
    }
}
