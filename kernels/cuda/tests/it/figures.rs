//! What ptxas says of every kernel (`kernels/cuda/ptxas.tsv`): of the kernels as they are, within what a GPU has, and what it says today.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use sha2::{Digest, Sha256};

const PTX: &str = include_str!("../../ragstone.ptx");
const HOPPER: &[u8] = include_bytes!("../../hopper.cubin");
const TABLE: &str = include_str!("../../ptxas.tsv");
const TARGETS: [&str; 6] = ["sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120"];

/// Registers, bytes of static shared memory, bytes in local memory.
type Figures = [u32; 3];

fn sum(bytes: &[u8]) -> String {
    Sha256::digest(bytes)[..8].iter().map(|byte| format!("{byte:02x}")).collect()
}

fn rows(target: &str) -> BTreeMap<&str, Figures> {
    let rows = TABLE.lines().skip(2).map(|line| line.split('\t').collect::<Vec<_>>());
    let of_target = rows.filter(|row| row[0] == target);
    of_target.map(|row| (row[1], [2, 3, 4].map(|at| row[at].parse().unwrap()))).collect()
}

/// Of each entry of the PTX the most threads of a block that it may have; 1,024 where nothing is said.
fn most_threads() -> BTreeMap<&'static str, u32> {
    let entry = |text: &'static str| {
        let (name, rest) = text.split_once(['(', '\n']).unwrap();
        let head = rest.split('{').next().unwrap();
        let most = head.split(".maxntid").nth(1).and_then(|most| most.trim_start().split([',', '\n', ' ']).next());
        (name.trim(), most.map_or(1024, |most| most.trim().parse().unwrap()))
    };
    PTX.split(".entry ").skip(1).map(entry).collect()
}

#[test]
fn the_table_is_of_these_kernels_and_names_each_for_each_target() {
    let first = TABLE.lines().next().unwrap();
    for (file, sum) in [("ragstone.ptx", sum(PTX.as_bytes())), ("hopper.cubin", sum(HOPPER))] {
        assert!(first.contains(&format!("{file} {sum}")), "{file} has changed: run ops/cuda/ptx");
    }
    let of_ptx: BTreeSet<&str> = most_threads().into_keys().collect();
    assert!(of_ptx.len() >= 63, "{of_ptx:?}");
    for target in TARGETS {
        let named: BTreeSet<&str> = rows(target).into_keys().collect();
        assert_eq!(named, of_ptx, "{target}: run ops/cuda/ptx");
    }
    let hopper = rows("sm_90a");
    let is_there = |name: &str| {
        let section = format!(".text.{name}\0");
        HOPPER.windows(section.len()).any(|at| at == section.as_bytes())
    };
    assert!(hopper.len() >= 20 && hopper.keys().all(|name| is_there(name)), "{hopper:?}");
}

/// A block's registers are those of all its threads, given in groups of 256 a warp; a multiprocessor has 65,536 of them.
#[test]
fn every_kernel_fits_a_multiprocessor_and_keeps_its_sums_in_registers() {
    let threads = most_threads();
    for target in TARGETS {
        for (kernel, [registers, shared, spilled]) in rows(target) {
            let warps = threads[kernel].div_ceil(32);
            let granted = (32 * registers).next_multiple_of(256) * warps;
            assert!(granted <= 65_536, "{target} {kernel}: {registers} registers of {} threads", threads[kernel]);
            assert!(shared <= 48 << 10 && spilled == 0, "{target} {kernel}: {shared} bytes shared, {spilled} spilled");
        }
    }
    // Three warpgroups, which share out 504 registers a thread among them.
    for (kernel, [registers, _, spilled]) in rows("sm_90a") {
        assert!(registers <= 168 && spilled <= 320, "{kernel}: {registers} registers, {spilled} bytes spilled");
    }
}

/// Where its compiler has been fetched before (`ops/cuda/ptx`); of one target, as the others take as long.
#[test]
fn ptxas_says_what_the_table_says() {
    let Some(ptxas) = ptxas() else {
        eprintln!("no ptxas: ops/cuda/ptx fetches it");
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let [source, made] = ["ragstone.ptx", "cubin"].map(|name| folder.path().join(name));
    std::fs::write(&source, PTX).unwrap();
    let done = Command::new(ptxas).args(["-v", "-arch=sm_90", "-o"]).args([&made, &source]).output().unwrap();
    let said = String::from_utf8(done.stderr).unwrap();
    assert!(done.status.success(), "{said}");
    let mut found: BTreeMap<&str, Figures> = BTreeMap::new();
    let (mut name, mut spilled) = ("", 0);
    for line in said.lines() {
        if let Some(entry) = line.split("Compiling entry function '").nth(1) {
            name = entry.split('\'').next().unwrap();
        } else if line.contains("spill stores") {
            let number = |word: usize| line.split_whitespace().nth(word).unwrap().parse::<u32>().unwrap();
            spilled = number(4) + number(8);
        } else if let Some(used) = line.split("Used ").nth(1) {
            let first = |text: &str| text.split(' ').next().unwrap().parse().unwrap();
            let shared = used.split(", ").find_map(|part| part.strip_suffix(" bytes smem"));
            found.insert(name, [first(used), shared.map_or(0, first), spilled]);
        }
    }
    assert_eq!(found, rows("sm_90"));
}

fn ptxas() -> Option<PathBuf> {
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let cache = cache.or_else(|| Some(Path::new(&std::env::var_os("HOME")?).join(".cache")))?;
    let pythons = std::fs::read_dir(cache.join("ragstone/cuda/venv/lib")).ok()?.flatten();
    let tools = pythons.map(|python| python.path().join("site-packages/nvidia/cu13/bin/ptxas"));
    tools.into_iter().find(|tool| tool.is_file())
}
