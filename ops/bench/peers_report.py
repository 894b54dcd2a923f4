"""What a run says: ratios beside what is wanted of them, tables, and the JSON of everything."""

from __future__ import annotations

from dataclasses import dataclass

from peers_engines import FILE_KINDS, KINDS
from peers_series import Case, Measured, Series, Spread, speedup
from peers_shapes import BYTES_PER_WEIGHT, MODELS


# Processors that other work takes, from which on a run says nothing: engines whose threads wait for each other lose
# much more than others.
DISTURBED = 0.2


@dataclass(frozen=True)
class Ratio:
    """A comparison; `wanted` is the least median that this project asks of it, where it asks something."""

    what: str
    model: str
    case: Case
    spread: Spread
    wanted: float | None

    def as_json(self) -> dict:
        met = None if self.wanted is None else self.spread.median >= self.wanted
        named = {"what": self.what, "model": self.model, "case": self.case.kind, "size": self.case.size}
        return {**named, **self.spread.as_json(), "wanted": self.wanted, "met": met}


def read_bandwidth(measured: Measured, ceilings: list[dict]) -> float | None:
    """Bytes a second that memory gives: the best that PyTorch's sum or ragstone's own loop reached in any round,
    because other work can only make it less."""
    found = [series.rate().greatest for series in measured.series.values() if series.case.kind == "read"]
    found += [entry["read_gbps"]["median"] * 1e9 for entry in ceilings if "read_gbps" in entry]
    return max(found, default=None)


def ratios(measured: Measured, models: list[str], bandwidth: float | None, new_tokens: int, amx: bool) -> list[Ratio]:
    """Every comparison that the samples allow."""
    found: list[Ratio] = []

    def compare(what: str, model: str, ours: Series | None, theirs: Series | None, wanted: float | None) -> None:
        spread = speedup(ours, theirs) if ours and theirs else None
        if spread:
            found.append(Ratio(what, model, ours.case, spread, wanted))

    def compare_with_vllm(case: Case) -> None:
        for ours in ("ragstone", "ragstone-q8"):
            for theirs, title in (("vllm", "vLLM bf16"), ("vllm-f32", "vLLM f32")):
                compare(f"{ours} / {title}", case.model, measured.get(case, ours), measured.get(case, theirs), None)

    for case in measured.cases("linear"):
        compare(
            "ragstone bf16 (its best path) / PyTorch bf16", "", best_path(measured, case, "bf16"),
            measured.get(case, "pytorch bf16"), 1.0 if amx else None,
        )  # fmt: skip
        compare(
            "ragstone f32 (its best path) / PyTorch f32", "", best_path(measured, case, "f32"),
            measured.get(case, "pytorch f32"), None,
        )  # fmt: skip
    for case in measured.cases("attention"):
        for dtype in ("bf16", "f32"):
            ours = best_path(measured, case, dtype)
            theirs = measured.get(case, f"pytorch {dtype}")
            wanted = 1.2 if dtype == "bf16" else None
            compare(f"ragstone {dtype} / PyTorch {dtype}", "", ours, theirs, wanted)
    for model in models:
        for case in measured.cases("prefill", model):
            at_4096 = case.size == "4096"
            both = [measured.get(case, name) for name in ("llama.cpp-bf16", "llama.cpp-q8")]
            llama = min((series for series in both if series), key=lambda each: each.spread().median, default=None)
            transformers = measured.get(case, "transformers")
            times_transformers = 2.5 if amx and at_4096 else None
            times_llama = (6.0 if at_4096 else None) if amx else 1.2
            ours = measured.get(case, "ragstone")
            compare("ragstone / transformers bf16", model, ours, transformers, times_transformers)
            compare("ragstone / llama.cpp's better", model, ours, llama, times_llama)
            ours = measured.get(case, "ragstone-q8")
            compare("ragstone-q8 / transformers bf16", model, ours, transformers, None)
            compare("ragstone-q8 / llama.cpp's better", model, ours, llama, None)
            compare_with_vllm(case)
            compare("ragstone-file / llama.cpp-file", model, measured.get(case, "ragstone-file"), measured.get(case, "llama.cpp-file"), 2.0)
        for case in measured.cases("decode", model):
            ours, ours_q8 = measured.get(case, "ragstone"), measured.get(case, "ragstone-q8")
            wanted = 1.2 if amx else None
            compare("ragstone / llama.cpp-bf16", model, ours, measured.get(case, "llama.cpp-bf16"), wanted)
            compare("ragstone-q8 / llama.cpp-q8", model, ours_q8, measured.get(case, "llama.cpp-q8"), wanted)
            ours_q4 = measured.get(case, "ragstone-q4")
            compare("ragstone-q4 / llama.cpp-q4", model, ours_q4, measured.get(case, "llama.cpp-q4"), 1.2)
            ours_gguf = measured.get(case, "ragstone-gguf")
            compare("ragstone-gguf / llama.cpp-q4", model, ours_gguf, measured.get(case, "llama.cpp-q4"), 1.2)
            compare("ragstone-q4 / ragstone-q8", model, ours_q4, ours_q8, 1.7)
            compare("ragstone / transformers bf16", model, ours, measured.get(case, "transformers"), None)
            compare_with_vllm(case)
            compare("ragstone-file / llama.cpp-file", model, measured.get(case, "ragstone-file"), measured.get(case, "llama.cpp-file"), 1.2)
        # What a file's weights take in memory depends on its mixture of types.
        of_shapes = [series for series in measured.find("decode", model) if series.engine not in FILE_KINDS]
        for series in of_shapes if bandwidth else []:
            share = bandwidth_share(series, bandwidth, new_tokens)
            wanted = 0.7 if amx and series.engine in ("ragstone", "ragstone-q8") else None
            found.append(Ratio(f"{series.engine} / read bandwidth", model, series.case, share, wanted))
    return found


def best_path(measured: Measured, case: Case, precision: str) -> Series | None:
    """ragstone's fastest path of `precision`."""
    paths = [
        series
        for series in measured.find(case.kind)
        if series.case == case and series.details.get("precision") == precision
    ]
    return min(paths, key=lambda series: series.spread().median, default=None)


def bandwidth_share(series: Series, bandwidth: float, new_tokens: int) -> Spread:
    """The bytes a second that decoding must read, as a share of what memory gives."""
    shape = MODELS[series.case.model]
    per_weight = BYTES_PER_WEIGHT[KINDS[series.engine].weights]
    bytes_a_token = shape.decode_bytes(int(series.case.size), new_tokens, per_weight)
    return Spread.of([bytes_a_token * new_tokens / seconds / bandwidth for seconds in series.seconds.values()])


def table(head: list[str], rows: list[list[str]]) -> str:
    """A Markdown table with its columns aligned."""
    widths = [max(len(row[column]) for row in [head, *rows]) for column in range(len(head))]
    line = lambda row: "| " + " | ".join(text.ljust(width) for text, width in zip(row, widths)) + " |"
    return "\n".join([line(head), "|" + "|".join("-" * (width + 2) for width in widths) + "|", *map(line, rows)])


def number(value: float) -> str:
    """Three figures that count, thousands separated."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}" if value < 10 else f"{value:.1f}"


def with_spread(spread: Spread) -> str:
    """`median (least .. greatest)`"""
    return f"{number(spread.median)} ({number(spread.least)} .. {number(spread.greatest)})"


def rate_table(measured: Measured, kind: str, model: str, scale: float) -> str:
    """Engines down, sizes across; work a second divided by `scale`."""
    cases = measured.cases(kind, model)
    engines = list(dict.fromkeys(series.engine for series in measured.find(kind, model)))
    rows = []
    for engine in engines:
        found = [measured.get(case, engine) for case in cases]
        rows.append([engine, *(with_spread(Spread(*scaled(one.rate(), scale))) if one else "" for one in found)])
    return table(["engine", *(case.size for case in cases)], rows)


def scaled(spread: Spread, scale: float) -> tuple[float, float, float]:
    return spread.median / scale, spread.least / scale, spread.greatest / scale


def text(report: dict, measured: Measured, found: list[Ratio], bandwidth: float | None) -> str:
    """The readable report."""
    machine = report["machine"]
    flags = " ".join(machine["flags"]) or "none of interest"
    cores = f"{machine['physical_cores']} cores, {machine['threads']} threads, {machine['memory_gib']} GiB"
    parts = [
        f"# Peers, commit {report['commit']}, {report['started']}",
        f"{machine['cpu']}, {cores}; {flags}",
        "; ".join(f"{name} {version}" for name, version in report["versions"].items()),
        f"{report['rounds']} rounds; median (least .. greatest)",
    ]
    if system := next((entry["info"]["system"] for entry in report["engines"] if "system" in entry["info"]), None):
        parts.append(f"llama.cpp's {system}")
    if (other := measured.other_work()) and other.greatest >= 0.1:
        spread = f"{other.median:.2f} ({other.least:.2f} .. {other.greatest:.2f})"
        parts.append(f"Processors kept busy by other work during a sample: {spread}")
        if other.median >= DISTURBED:
            parts.append("**Disturbed: neither times nor ratios hold. Run this again with nothing beside it.**")
    if report["interrupted"]:
        parts.append("**Interrupted: only the rounds that were done.**")
    if report["failed"]:
        parts.append("## Failed\n\n" + "\n".join(map(failure, report["failed"])))
    if report["agreement"]:
        rows = [
            [entry["model"], entry["engine"], f"{entry['cosine_least']:.5f}", f"{entry['top1']:.3f}"]
            for entry in report["agreement"]
        ]
        head = ["model", "engine", "least cosine", "same first token"]
        parts.append("## Logits against transformers in f32\n\n" + table(head, rows))
    if measured.find("linear"):
        title = "## Linear layers, GFLOP/s\n\nRows x inputs x outputs.\n\n"
        parts.append(title + rate_table(measured, "linear", "", 1e9))
    if measured.find("attention"):
        title = "## Attention, GFLOP/s\n\nThe last queries of a sequence, 14 heads over 2 of 64; visible keys only.\n\n"
        parts.append(title + rate_table(measured, "attention", "", 1e9))
    if bandwidth:
        parts.append(f"Memory read, best: {bandwidth / 1e9:.1f} GB/s")
    for model in report["models"]:
        for kind, by in (("prefill", "prompt"), ("decode", "context")):
            if measured.find(kind, model):
                title = f"## {MODELS[model].title if model in MODELS else model}: {kind}, tokens a second by {by}\n\n"
                parts.append(title + rate_table(measured, kind, model, 1.0))
        for entry in report["engines"]:
            if entry["model"] == model and entry["settings"]:
                parts.append(f"{entry['engine']}: {settings(entry['settings'])}")
    if found:
        rows = []
        for ratio in found:
            wanted = "" if ratio.wanted is None else f">= {ratio.wanted:g}"
            met = "" if ratio.wanted is None else ("yes" if ratio.spread.median >= ratio.wanted else "NO")
            rows.append([ratio.model, str(ratio.case), ratio.what, with_spread(ratio.spread), wanted, met])
        head = ["model", "case", "ratio", "median (least .. greatest)", "wanted", "met"]
        parts.append("## Ratios\n\nOf rates, within a round: above 1 is faster.\n\n" + table(head, rows))
    return "\n\n".join(parts) + "\n"


def failure(entry: dict) -> str:
    """A line about an engine that failed."""
    retried = " (tried again with the weights in the file's layout)" if entry["retried"] else ""
    return f"- {entry['engine']} {entry['model']}: {entry['why']}{retried}"


def settings(chosen: dict | str) -> str:
    """What an engine runs with, on a line."""
    if isinstance(chosen, str):
        return chosen
    parts = []
    for kind, value in chosen.items():
        if isinstance(value, dict):
            value = ", ".join(f"{size}: {setting}" for size, setting in value.items())
        parts.append(f"{kind} ({value})")
    return "; ".join(part for part in parts if not part.endswith("()"))


def series_as_json(series: Series) -> dict:
    """One series with every sample."""
    rate, unit = series.rate(), {"linear": "flops", "attention": "flops", "read": "bytes"}.get(series.case.kind, "tokens") + "_per_second"
    return {
        "case": series.case.kind,
        "size": series.case.size,
        "model": series.case.model or None,
        "engine": series.engine,
        "work": series.case.work,
        "seconds": series.spread().as_json(),
        unit: rate.as_json(),
        "samples": [
            {"round": round, "seconds": seconds, "other_work": series.other_work[round]}
            for round, seconds in series.seconds.items()
        ],
        "details": series.details,
    }
