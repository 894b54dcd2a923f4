"""Makes report.md and report.json of what the steps of ops/gpu-check left in a folder. Ends with 1 where a step failed."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from pathlib import Path


def read(folder: Path, name: str):
    """A step's JSON; None where it printed none."""
    try:
        return json.loads((folder / f"{name}.json").read_text())
    except (OSError, json.JSONDecodeError):
        return None


def steps(folder: Path) -> list[dict]:
    """What ran, in order."""
    lines = [line.split("\t") for line in (folder / "steps.tsv").read_text().splitlines()]
    return [
        {"step": name, "status": int(status), "seconds": int(seconds), "command": command, "output": read(folder, name)}
        for name, status, seconds, command in lines
    ]


def is_ok(step: dict) -> bool:
    """Whether it found nothing wrong. The doctor looks at more than the GPU."""
    if step["step"] == "gpu":
        return gpu_finding(step)["state"] == "ok"
    return step["status"] == 0 and step["output"] is not None


def gpu_finding(step: dict) -> dict:
    findings = (step["output"] or {}).get("findings", [])
    return next((one for one in findings if one["what"] == "gpu"), {"state": "problem", "found": "the doctor says nothing"})


def driver() -> str | None:
    """The driver's own number, where its tool is there."""
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.splitlines()[0].strip()
    except (OSError, subprocess.SubprocessError, IndexError):
        return None


def number(value, digits: int = 2) -> str:
    """A number for a table; what is none (an infinity, an unknown peak) is null in JSON."""
    if value is None:
        return "-"
    return f"{value:.1e}" if value and abs(value) < 0.01 else f"{value:,.{digits}f}"


def table(head: list[str], rows: list[list]) -> list[str]:
    lines = [" | ".join(map(str, row)) for row in [head, ["---"] * len(head), *rows]]
    return [f"| {line} |" for line in lines] + [""]


def of_gpu(step: dict) -> list[str]:
    return ["## GPU", "", f"{gpu_finding(step)['found']}; the driver's number: {driver() or 'unknown'}; {platform.platform()}", ""]


def of_parity(step: dict) -> list[str]:
    output = step["output"]
    rows = [
        [row["kernel"], row["compared"], number(row["absolute"]), number(row["relative"]), number(row["of_tolerance"]), row["problem"] or "ok"]
        for row in output["kernels"]
    ]
    lines = ["## Kernels beside f64 on the host", "", f"{output['gpu']['name']}, seed {output['seed']}", ""]
    lines += table(["kernel", "compared", "greatest difference", "relative", "of what is tolerated", ""], rows)
    return lines + table(["bits that must be the same", ""], [[row["what"], row["problem"] or "ok"] for row in output["bits"]])


def of_golden(step: dict) -> list[str]:
    output = step["output"]
    reference, noise = output["reference"], output["rounding"]
    said = f"{Path(output['model']).name} on {output['device']}; transformers {reference['transformers']} in f32 on {reference['device']}. Regret in nats:"
    said += " how much likelier transformers' own favourite is than the token that was taken."

    def row(name: str, regret: dict, *rest) -> list:
        return [name, *(number(regret[key], 4) for key in ("mean", "p99", "max")), *rest]

    rows = [row(f"transformers in {noise['dtype']}", noise["regret"], "", "", "", ""), row("limit", output["limits"], "", "", "", "")]
    for mode in output["modes"]:
        same = {None: "-", True: "yes", False: "NO"}[mode["same_bits_as_alone"]]
        off, reused = number(mode["logprob_off"]["mean"], 4), sum(mode["reused_tokens"].values())
        rows.append(row(mode["mode"], mode["regret"], mode["positions"], off, reused, f"{same}, {'ok' if mode['ok'] else 'NOT ok'}"))
    head = ["", "mean", "p99", "max", "positions", "log-probability off by", "tokens reused", "bits as alone"]
    return ["## Answers beside transformers", "", said, "", *table(head, rows)]


def of_kernels(step: dict) -> list[str]:
    output = step["output"]
    peak = output["peak"]
    said = f"Peak: {number(peak['bf16_gflops'], 0)} GFLOP/s bf16, {number(peak['f32_gflops'], 0)} f32, {number(peak['read_gbps'], 0)} GB/s: {peak['by']}."
    rows = [
        [row["kernel"], row["precision"], row["shape"], number(1e3 * row["seconds"]["median"], 3), number(row["gflops"]["median"], 0),
         number(row["gbps"]["median"], 0), number(row["of_ceiling"])]
        for row in output["results"]
    ]  # fmt: skip
    return ["## Products and attention", "", said, "", *table(["kernel", "type", "shape", "ms", "GFLOP/s", "GB/s", "of peak"], rows)]


def of_tiers(step: dict) -> list[str]:
    rows = [
        [row["path"], number(row["ours_gbps"]["median"]), row["raw"], number(row["raw_gbps"]["median"]), number(row["ratio"]["median"])]
        for row in step["output"]["pairs"]
    ]
    return [f"## Copies, {step['step'].removeprefix('tiers-')}", "", *table(["path", "GB/s", "beside", "GB/s", "ratio"], rows)]


def of_model(step: dict) -> list[str]:
    output = step["output"]
    lines = [f"## Prefill and decode, {step['step'].removeprefix('model-')}", ""]
    rows = [["prefill", row["tokens"], number(1e3 * row["seconds"]["median"], 1), number(row["tokens_per_second"]["median"], 0), "-"] for row in output["prefill"]]
    rows += [
        ["decode", row["context"], number(1e3 * row["seconds"]["median"], 1), number(row["tokens_per_second"]["median"], 0), number(row["gbps"]["median"], 0)]
        for row in output["decode"]
    ]
    lines += table(["", "tokens, context", "ms", "tokens/s", "GB/s"], rows)
    # Of a program that has them.
    pairs = [(row, row["without_graphs"]) for row in output["decode"] if "without_graphs" in row]
    rows = [
        [row["context"], number(1e3 * row["seconds"]["median"], 1), number(1e3 * without["seconds"]["median"], 1),
         *(number(without["ratio"][key]) for key in ("median", "least", "greatest")), row["launches_per_token"], without["launches_per_token"]]
        for row, without in pairs
    ]  # fmt: skip
    head = ["context", "with graphs, ms", "without, ms", "without / with", "least", "greatest", "launches a token", "without"]
    return lines + (["Decoding by CUDA graphs and operation by operation, in turns:", "", *table(head, rows)] if rows else [])


def of_ttft(step: dict) -> list[str]:
    rows = [
        [row["mode"], number(row["ttft_ms_median"], 1), number(row["ttft_ms_min"], 1), number(row["ttft_ms_max"], 1), number(row["ratio_to_full"], 3),
         number(row["load_wait_ms_median"], 1), row["computed_tokens"]]
        for row in step["output"]
    ]  # fmt: skip
    head = ["mode", "ms", "least", "greatest", "of full", "waited for loads, ms", "tokens computed"]
    return [f"## Time to first token, {step['step'].removeprefix('ttft-')} tokens", "", *table(head, rows)]


SECTIONS = {"gpu": of_gpu, "parity": of_parity, "golden": of_golden, "kernels": of_kernels, "tiers": of_tiers, "model": of_model, "ttft": of_ttft}


def section(step: dict) -> list[str]:
    """What a step found; of one that printed nothing, its error stands in the table of steps."""
    return SECTIONS[step["step"].split("-")[0]](step) if step["output"] is not None else []


def main() -> int:
    folder = Path(sys.argv[1])
    ran = steps(folder)
    failed = [step for step in ran if not is_ok(step)]
    rows = []
    for step in ran:
        last = (folder / f"{step['step']}.log").read_text().strip().splitlines()[-1:] if step in failed else []
        rows.append([step["step"], "FAILED" if step in failed else "ok", step["seconds"], *(last or [""])])
    if not ran:
        print("no step ran: give --only some of gpu, parity, golden and bench", file=sys.stderr)
        return 1
    verdict = f"{len(failed)} of {len(ran)} steps failed." if failed else f"All {len(ran)} steps passed."
    lines = ["# ragstone on a GPU", "", verdict, "", *table(["step", "", "s", "last words"], rows)]
    lines += [line for step in ran for line in section(step)]
    (folder / "report.md").write_text("\n".join(lines).rstrip() + "\n")
    report = {"ok": not failed, "driver": driver(), "platform": platform.platform(), "steps": [step | {"ok": step not in failed} for step in ran]}
    (folder / "report.json").write_text(json.dumps(report, indent=1))
    print(f"{verdict} {folder / 'report.md'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
