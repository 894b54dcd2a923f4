"""What was measured: one series of seconds for every case and engine, a sample a round."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Case:
    """One thing to measure: `kind` is linear, prefill, decode or read; `size` a shape, or tokens; `work` what its rate
    counts (operations, tokens, bytes)."""

    kind: str
    size: str
    work: float
    model: str = ""

    def __str__(self) -> str:
        return f"{self.kind} {self.size}"


@dataclass(frozen=True)
class Spread:
    """Median, least and greatest of some samples."""

    median: float
    least: float
    greatest: float

    @staticmethod
    def of(samples: list[float]) -> "Spread":
        return Spread(statistics.median(samples), min(samples), max(samples))

    def as_json(self) -> dict[str, float]:
        return {"median": self.median, "least": self.least, "greatest": self.greatest}


@dataclass
class Series:
    """Samples of one case by one engine."""

    case: Case
    engine: str
    details: dict = field(default_factory=dict)
    seconds: dict[int, float] = field(default_factory=dict)  # By round.
    other_work: dict[int, float] = field(default_factory=dict)  # By round: processors that others kept busy meanwhile.

    def spread(self) -> Spread:
        """Of the seconds."""
        return Spread.of(list(self.seconds.values()))

    def rate(self) -> Spread:
        """Work a second: operations, tokens or bytes."""
        return Spread.of([self.case.work / seconds for seconds in self.seconds.values()])


class Measured:
    """All series of a run, in the order they first appeared."""

    def __init__(self) -> None:
        self.series: dict[tuple[Case, str], Series] = {}

    def add(self, case: Case, engine: str, round: int, seconds: float, details: dict, other_work: float) -> None:
        """Adds one sample."""
        series = self.series.setdefault((case, engine), Series(case, engine))
        series.seconds[round] = seconds
        series.other_work[round] = other_work
        series.details |= details

    def find(self, kind: str, model: str = "") -> list[Series]:
        """Series of one kind and model."""
        return [series for (case, _), series in self.series.items() if case.kind == kind and case.model == model]

    def get(self, case: Case, engine: str) -> Series | None:
        return self.series.get((case, engine))

    def other_work(self) -> Spread | None:
        """Of all samples."""
        samples = [value for series in self.series.values() for value in series.other_work.values()]
        return Spread.of(samples) if samples else None

    def cases(self, kind: str, model: str = "") -> list[Case]:
        """Cases of one kind and model, once each."""
        return list(dict.fromkeys(series.case for series in self.find(kind, model)))


def speedup(ours: Series, theirs: Series) -> Spread | None:
    """How many times faster `ours` is: the ratio of each round that has both, so that a drift of the machine's speed
    falls on both sides."""
    rounds = ours.seconds.keys() & theirs.seconds.keys()
    rate = lambda series, round: series.case.work / series.seconds[round]
    ratios = [rate(ours, round) / rate(theirs, round) for round in rounds]
    return Spread.of(ratios) if ratios else None
