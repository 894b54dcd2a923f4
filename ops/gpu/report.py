"""Makes report.md and report.json of what the steps of check.py left in a folder."""

from __future__ import annotations

import json
import platform
import subprocess
from functools import cache
from pathlib import Path


def read(folder: Path, name: str):
    """A step's JSON; of several lines the last one that can be read, or what the lines before it have together. None where it printed none."""
    try:
        text = (folder / f"{name}.json").read_text()
    except OSError:
        return None
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        parts = []
    for line in text.splitlines():
        try:
            parts.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return joined(parts) if parts and all(isinstance(part, dict) and "families" in part for part in parts) else None


def joined(parts: list[dict]) -> dict:
    """Families of kernels: the line of all of them, where it came; else what came."""
    whole = parts[-1]
    if len(whole["families"]) > 1 or len(parts) == 1:
        return whole
    return whole | {name: [row for part in parts for row in part[name]] for name in ("families", "kernels", "bits")}


def steps(folder: Path) -> list[dict]:
    """What ran, in order."""
    known = json.loads((folder / "steps.json").read_text())
    return [step | {"output": read(folder, step["step"])} for step in known]


def is_ok(step: dict) -> bool:
    """Whether it found nothing wrong; what was left out did not. The doctor looks at more than the GPU."""
    if step["status"] == "skipped":
        return True
    if step["step"] == "gpu":
        return gpu_finding(step)["state"] == "ok"
    return step["status"] == 0 and step["output"] is not None


def gpu_finding(step: dict) -> dict:
    findings = (step["output"] or {}).get("findings", [])
    return next((one for one in findings if one["what"] == "gpu"), {"state": "problem", "found": "nothing is said of it"})


@cache
def driver() -> str | None:
    """The driver's own number, where its tool is there."""
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=20).stdout.splitlines()[0].strip()
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
    quick = ", few shapes" if step["step"] == "parity-quick" else ""
    lines = [f"## Kernels beside f64 on the host{quick}", "", f"{output['gpu']['name']}, seed {output['seed']}", ""]
    families = [[row["family"], number(row["seconds"], 1), row["problem"] or "ok"] for row in output.get("families", [])]
    lines += table(["family", "s", ""], families)
    lines += table(["kernel", "compared", "greatest difference", "relative", "of what is tolerated", ""], rows)
    return lines + table(["bits that must be the same", ""], [[row["what"], row["problem"] or "ok"] for row in output["bits"]])


def of_golden(step: dict) -> list[str]:
    output = step["output"]
    reference, noise = output["reference"], output["rounding"]
    by = reference if isinstance(reference, str) else f"transformers {reference['transformers']} in f32 on {reference['device']}"
    said = f"{Path(output['model']).name} on {output['device']}; beside {by}. Regret in nats:"
    said += " how much likelier the reference's own favourite is than the token that was taken."

    def row(name: str, regret: dict, *rest) -> list:
        return [name, *(number(regret[key], 4) for key in ("mean", "p99", "max")), *rest]

    rows = [row(f"the reference in {noise['dtype']}", noise["regret"], "", "", "", ""), row("limit", output["limits"], "", "", "", "")]
    for mode in output["modes"]:
        same = {None: "-", True: "yes", False: "NO"}[mode["same_bits_as_alone"]]
        off, reused = number(mode["logprob_off"]["mean"], 4), sum(mode.get("reused_tokens", {}).values())
        rows.append(row(mode["mode"], mode["regret"], mode["positions"], off, reused, f"{same}, {'ok' if mode['ok'] else 'NOT ok'}"))
    head = ["", "mean", "p99", "max", "positions", "log-probability off by", "tokens reused", "bits as alone"]
    return ["## Answers beside the reference", "", said, "", *table(head, rows)]


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
    def row(name: str, of: dict, what: int) -> list:
        seconds, tokens = of["seconds"]["median"], of.get("new_tokens", 1)
        predicted = of.get("predicted_seconds")
        share = predicted / seconds if predicted else None
        gbps = of["gbps"]["median"] if "gbps" in of else None
        return [name, what, number(1e3 * seconds / tokens, 2), number(predicted and 1e3 * predicted / tokens, 2), number(share),
                number(of["tokens_per_second"]["median"], 0), number(gbps, 0)]  # fmt: skip

    rows = [row("prefill", of, of["tokens"]) for of in output["prefill"]] + [row("decode, a token", of, of["context"]) for of in output["decode"]]
    lines += [f"{output['machine'].get('gpu') or ''}; weights {output['weights']}, made in {number(output['load_seconds'], 1)} s. Predicted: operations or bytes at their peak.", ""]
    lines += table(["", "tokens, context", "ms", "predicted", "of the peak", "tokens/s", "GB/s"], rows)
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
    """What a step found; of one that printed nothing, its error stands in the table of steps. One that was cut off may have printed anything."""
    if step["output"] is None:
        return []
    try:
        return SECTIONS[step["step"].split("-")[0]](step)
    except (KeyError, TypeError, IndexError) as error:
        return [f"## {step['step']}", "", f"What it printed cannot be read ({error!r}): see {step['step']}.json.", ""]


def wanted(ran: list[dict]) -> list[str]:
    """What is wanted of a model of 7 billion weights, 4,096 tokens and 8 passages, beside what was measured."""
    output = {step["step"]: step["output"] for step in ran if step["output"] is not None and is_ok(step)}
    rows = []

    def add(what: str, want: str, measured, predicted=None) -> None:
        rows.append([what, want, number(predicted, 3), number(measured, 3)])

    model = output.get("model-qwen-7b")
    if model:
        prefill = next(of for of in model["prefill"] if of["tokens"] == 4096)
        share = lambda of: of["predicted_seconds"] / of["seconds"]["median"] if of.get("predicted_seconds") else None
        add("full prefill, share of the tensor cores' peak", "at least 0.6", share(prefill), 1.0)
        for of in model["decode"]:
            add(f"decode after {of['context']:,}, share of memory bandwidth", "at least 0.75", share(of), 1.0)
    for row in output.get("ttft-qwen-7b-4096", []):
        want = {"blend_host": "at most 0.25", "exact_device": "at most 0.03", "exact_host": "at most 0.03"}.get(row["mode"])
        if want:
            add(f"{row['mode']}, of a full prefill", want, row["ratio_to_full"])
    for row in (output.get("tiers-qwen-7b") or {}).get("pairs", []):
        add(f"{row['path']}, of {row['raw']}", "at least 0.8", row["ratio"]["median"])
    return ["## Beside what is wanted", "", *table(["", "wanted", "predicted", "measured"], rows)] if rows else []


def last_words(folder: Path, step: dict) -> str:
    if step.get("why"):
        return step["why"]
    try:
        return ((folder / f"{step['step']}.log").read_text(errors="replace").strip().splitlines() or [""])[-1]
    except OSError:
        return ""


def state(step: dict) -> str:
    if step["status"] in ("skipped", "running", "cut off"):
        return step["status"]
    return "ok" if is_ok(step) else "FAILED"


def verdict_of(ran: list[dict]) -> str:
    counted = [step for step in ran if step["status"] != "skipped"]
    failed = [step for step in counted if not is_ok(step)]
    return f"{len(failed)} of {len(counted)} steps failed." if failed or not counted else f"All {len(counted)} steps passed."


def verdict(folder: Path) -> str:
    return verdict_of(steps(folder))


def write(folder: Path) -> bool:
    """Writes both reports; whether all that ran found nothing wrong."""
    ran = steps(folder)
    rows = [[step["step"], state(step), step["seconds"], "" if state(step) == "ok" else last_words(folder, step)] for step in ran]
    lines = ["# ragstone on a GPU", "", verdict_of(ran), "", *table(["step", "", "s", "last words"], rows), *wanted(ran)]
    lines += [line for step in ran for line in section(step)]
    passed = all(is_ok(step) for step in ran) and any(step["status"] != "skipped" for step in ran)
    found = {"ok": passed, "driver": driver(), "platform": platform.platform(), "steps": [step | {"ok": is_ok(step)} for step in ran]}
    for name, text in (("report.md", "\n".join(lines).rstrip() + "\n"), ("report.json", json.dumps(found, indent=1))):
        (folder / f"{name}.new").write_text(text)
        (folder / f"{name}.new").replace(folder / name)
    return passed
