"""What a run says: times to the first token by engine, ratios beside what is wanted of them, and the JSON of everything."""

from __future__ import annotations

import statistics
from dataclasses import asdict, dataclass, field

from peers_report import DISTURBED, number, table
from rag_client import Answer

OURS = "ragstone"
LLAMA = "llama.cpp"
REFERENCE = "transformers"
# How many times lower ragstone's median is wanted, at this size.
WANTED_TOKENS = 4096
WANTED = {"llama.cpp": 10.0, "the best of the others": 5.0}


@dataclass
class Engine:
    """What is told of an engine beside its times."""

    name: str
    setting: str = ""
    start_seconds: float | None = None
    failed: str = ""
    settled: dict[int, dict] = field(default_factory=dict)  # By size of the prompt.

    def as_json(self) -> dict:
        return asdict(self)


@dataclass(frozen=True)
class Sample:
    """One question's answer."""

    series: str
    tokens: int
    phase: str  # "first": passages that were not met before; "shuffled": known ones in a new order.
    number: int
    answer: Answer
    other_work: float  # Processors that others kept busy meanwhile.

    def as_json(self) -> dict:
        named = {"series": self.series, "tokens": self.tokens, "phase": self.phase, "number": self.number}
        return {**named, **asdict(self.answer), "other_work": self.other_work}


def percentile(samples: list[float], percent: int) -> float:
    """By the nearest rank, as ragstone's own benchmarks have it."""
    ordered = sorted(samples)
    return ordered[max(-(-len(ordered) * percent // 100), 1) - 1]


def times(samples: list[Sample], series: str, tokens: int, phase: str) -> list[float]:
    """Seconds of one series."""
    return [
        sample.answer.seconds
        for sample in samples
        if (sample.series, sample.tokens, sample.phase) == (series, tokens, phase)
    ]


def names(samples: list[Sample]) -> list[str]:
    """The series, in the order they came."""
    return list(dict.fromkeys(sample.series for sample in samples))


def series_as_json(samples: list[Sample]) -> list[dict]:
    """Every series' figures, by size and phase."""
    keys = dict.fromkeys((sample.tokens, sample.series, sample.phase) for sample in samples)
    found = []
    for tokens, series, phase in keys:
        seconds = times(samples, series, tokens, phase)
        of = [sample for sample in samples if (sample.tokens, sample.series, sample.phase) == (tokens, series, phase)]
        cached = [sample.answer.cached_tokens for sample in of if sample.answer.cached_tokens is not None]
        found.append({
            "series": series,
            "tokens": tokens,
            "phase": phase,
            "questions": len(seconds),
            "p50": percentile(seconds, 50),
            "p95": percentile(seconds, 95),
            "least": min(seconds),
            "greatest": max(seconds),
            "prompt_tokens": sorted({sample.answer.prompt_tokens for sample in of}),
            "cached_tokens_median": statistics.median(cached) if cached else None,
        })  # fmt: skip
    return found


def ratios(samples: list[Sample]) -> list[dict]:
    """How many times lower ragstone's median is than each other engine's, and than the best of them."""
    found = []
    others = [name for name in names(samples) if not name.startswith(OURS)]
    for tokens in sorted({sample.tokens for sample in samples}):
        ours = times(samples, OURS, tokens, "shuffled")
        medians = {name: times(samples, name, tokens, "shuffled") for name in others}
        medians = {name: percentile(seconds, 50) for name, seconds in medians.items() if seconds}
        if not ours or not medians:
            continue
        best = min(medians, key=medians.__getitem__)
        compared = {**medians, "the best of the others": medians[best]}
        for name, median in compared.items():
            ratio = median / percentile(ours, 50)
            wanted = WANTED.get(name) if tokens == WANTED_TOKENS else None
            met = None if wanted is None else ratio >= wanted
            named = f"{name} ({best})" if name not in medians else name
            found.append({"tokens": tokens, "of": named, "ratio": ratio, "wanted": wanted, "met": met})
    return found


def same_first_token(samples: list[Sample]) -> list[dict]:
    """How many measured questions begin their answer with the token that transformers begins it with: engines that load
    other weights, or other prompts, have none. Blending is not exact, and rounding decides between near tokens."""
    reference = next((name for name in names(samples) if name.startswith(REFERENCE)), None)
    if reference is None:
        return []
    measured = [sample for sample in samples if sample.phase == "shuffled"]
    expected = {(sample.tokens, sample.number): sample.answer.token for sample in measured if sample.series == reference}
    found = []
    for name in names(measured):
        of = [sample for sample in measured if sample.series == name and (sample.tokens, sample.number) in expected]
        same = sum(sample.answer.token == expected[sample.tokens, sample.number] for sample in of)
        found.append({"series": name, "questions": len(of), "same": same, "as": reference})
    return found


def text(report: dict) -> str:
    """The readable report."""
    machine = report["machine"]
    cores = f"{machine['physical_cores']} cores, {machine['threads']} threads, {machine['memory_gib']} GiB"
    asked = f"{report['questions']} questions over {report['passages']} of {report['corpus']} passages"
    parts = [
        f"# Shuffled passages, commit {report['commit']}, {report['started']}",
        f"{machine['cpu']}, {cores}; {' '.join(machine['flags']) or 'no flags of interest'}",
        "; ".join(f"{name} {version}" for name, version in report["versions"].items()),
        f"{asked}, in a new order each; seconds to the first streamed token",
    ]
    other = [sample["other_work"] for sample in report["samples"]]
    if other and max(other) >= 0.1:
        spread = f"{statistics.median(other):.2f} ({min(other):.2f} .. {max(other):.2f})"
        parts.append(f"Processors kept busy by other work during a question: {spread}")
        if statistics.median(other) >= DISTURBED:
            parts.append("**Disturbed: neither times nor ratios hold. Run this again with nothing beside it.**")
    if report["interrupted"]:
        parts.append("**Interrupted: only the questions that were asked.**")
    for tokens in dict.fromkeys(entry["tokens"] for entry in report["series"]):
        parts.append(f"## {tokens:,} tokens\n\n" + times_table(report, tokens))
    failed = [entry for entry in report["engines"] if entry["failed"]]
    if failed:
        parts.append("## Not measured\n\n" + "\n".join(f"- {entry['name']}: {entry['failed']}" for entry in failed))
    parts.append("\n".join(engine_line(entry) for entry in report["engines"] if entry["setting"]))
    if report["ratios"]:
        rows = [ratio_row(ratio) for ratio in report["ratios"]]
        head = ["tokens", "median of", "times ragstone's", "wanted", "met"]
        parts.append("## Ratios\n\n" + table(head, rows))
    if report["same_first_token"]:
        rows = [[entry["series"], f"{entry['same']} of {entry['questions']}"] for entry in report["same_first_token"]]
        parts.append(f"## First token as {report['same_first_token'][0]['as']}'s\n\n" + table(["engine", "same"], rows))
    return "\n\n".join(part for part in parts if part) + "\n"


def times_table(report: dict, tokens: int) -> str:
    """Engines down; the first questions' median beside the measured figures."""
    of = [entry for entry in report["series"] if entry["tokens"] == tokens]
    first = {entry["series"]: number(entry["p50"]) for entry in of if entry["phase"] == "first"}
    rows = []
    for entry in of:
        if entry["phase"] == "shuffled":
            cached = entry["cached_tokens_median"]
            rows.append([
                entry["series"], number(entry["p50"]), number(entry["p95"]),
                f"{number(entry['least'])} .. {number(entry['greatest'])}", first.get(entry["series"], ""),
                ", ".join(map(str, entry["prompt_tokens"])), "" if cached is None else f"{cached:g}",
            ])  # fmt: skip
    head = ["engine", "p50", "p95", "min .. max", "passages new", "prompt tokens", "cached"]
    return table(head, rows)


def ratio_row(ratio: dict) -> list[str]:
    wanted = "" if ratio["wanted"] is None else f">= {ratio['wanted']:g}"
    met = {None: "", True: "yes", False: "NO"}[ratio["met"]]
    return [f"{ratio['tokens']:,}", ratio["of"], number(ratio["ratio"]), wanted, met]


def engine_line(entry: dict) -> str:
    """How an engine was started, and what it did between meeting the passages and the questions."""
    line = f"- {entry['name']}: {entry['setting']}"
    if entry["start_seconds"] is not None:
        line += f"; started in {entry['start_seconds']:.0f} s"
    waited = [f"{seconds:.0f} s at {tokens:,} tokens" for tokens, done in entry["settled"].items()
              if (seconds := done.get("background_seconds")) is not None]  # fmt: skip
    return line + (f"; computed known passages' own entries in the background in {', '.join(waited)}" if waited else "")
