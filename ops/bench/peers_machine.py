"""What a report says about the machine that it was made on."""

from __future__ import annotations

import os
import platform
import resource
import subprocess
from pathlib import Path

# Flags that decide which kernels an engine takes.
FLAGS = [
    "amx_tile", "amx_bf16", "amx_int8", "amx_fp16", "avx512f", "avx512_bf16", "avx512_vnni", "avx512_fp16", "avx_vnni",
    "avx2", "fma", "f16c", "asimd", "asimddp", "bf16", "i8mm", "sve",
]  # fmt: skip


def cpu_fields() -> dict[str, str]:
    """The first processor of /proc/cpuinfo."""
    fields: dict[str, str] = {}
    try:
        for line in Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines():
            name, _, value = line.partition(":")
            fields[name.strip()] = value.strip()
    except OSError:
        pass
    return fields


def cpu_flags() -> list[str]:
    """Those of FLAGS that the processor has."""
    fields = cpu_fields()
    have = set((fields.get("flags") or fields.get("Features") or "").split())
    return [flag for flag in FLAGS if flag in have]


def usable_cpus() -> set[int]:
    """Logical processors that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))


def cores() -> list[list[int]]:
    """The usable processors, by physical core."""
    found: dict[str, list[int]] = {}
    for cpu in sorted(usable_cpus()):
        siblings = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        try:
            core = siblings.read_text().strip()
        except OSError:
            core = str(cpu)
        found.setdefault(core, []).append(cpu)
    return list(found.values())


def physical_cores() -> int:
    """Physical cores among the usable processors: those that share a core count once."""
    return len(cores())


def bound_cpus(threads: int) -> list[int]:
    """Processors to bind `threads` threads to: one of every core, before a second of any."""
    firsts = [core[0] for core in cores()]
    seconds = [cpu for core in cores() for cpu in core[1:]]
    return (firsts + seconds)[:threads]


def memory_bytes(field: str) -> int:
    """MemTotal or MemAvailable, in bytes; 0 where it is not known."""
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith(field + ":"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0


TICK = os.sysconf("SC_CLK_TCK")


def busy_seconds() -> float:
    """Processor seconds that the whole machine has been busy, those that a hypervisor took away among them; 0 where it
    is not known."""
    try:
        fields = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    except OSError:
        return 0.0
    user, nice, system, _idle, _waiting, interrupts, soft_interrupts, stolen = fields
    return (user + nice + system + interrupts + soft_interrupts + stolen) / TICK


def process_seconds(pid: int | None) -> float:
    """Processor seconds of a process, or of the ended children of this one."""
    if pid is None:
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return used.ru_utime + used.ru_stime
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / TICK


def machine(threads: int) -> dict:
    """Everything about the machine, for the report."""
    fields = cpu_fields()
    return {
        "cpu": fields.get("model name") or platform.processor() or platform.machine(),
        "cpu_family_model_stepping": [fields.get(name) for name in ("cpu family", "model", "stepping")],
        "architecture": platform.machine(),
        "flags": cpu_flags(),
        "amx": "amx_bf16" in cpu_flags(),
        "physical_cores": physical_cores(),
        "logical_processors": len(usable_cpus()),
        "threads": threads,
        "memory_gib": round(memory_bytes("MemTotal") / 2**30, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load_average_at_start": os.getloadavg()[0],
    }


def commit(root: Path) -> str:
    """The checked-out commit, with a plus where files differ from it; "unknown" outside a clone."""
    git = ["git", "-C", str(root)]
    try:
        head = subprocess.run([*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True)
        changes = subprocess.run([*git, "status", "--porcelain"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return head.stdout.strip() + ("+" if changes.stdout.strip() else "")
