"""Prints what lm-evaluation-harness found of a served model, beside what it found of the same model in transformers.

    python3 ops/eval/compare_lm_eval.py FOLDER [--reference RESULTS.json]

FOLDER is what `ops/eval/lm_eval --out` wrote. Ends with 1 where a score differs by more than two standard errors of the difference, or,
where no error is told (perplexities), by more than half a percent. Standard library alone.
"""

import json
import math
import sys
from pathlib import Path


def newest(folder):
    """The last results file below a folder."""
    files = sorted(folder.rglob("results_*.json"), key=lambda file: file.stat().st_mtime)
    return json.loads(files[-1].read_text()) if files else None


def scores(results):
    """(task, metric) -> (value, standard error or None)."""
    found = {}
    for task, metrics in (results or {}).get("results", {}).items():
        for name, value in metrics.items():
            metric, _, rest = name.partition(",")
            if metric not in ("alias", "sample_len") and not metric.endswith("_stderr") and isinstance(value, (int, float)):
                error = metrics.get(f"{metric}_stderr,{rest}")
                found[task, metric] = value, error if isinstance(error, (int, float)) else None
    return found


def agree(ours, theirs):
    (a, a_error), (b, b_error) = ours, theirs
    if a_error is None or b_error is None:
        return abs(a - b) <= 0.005 * abs(b)
    return abs(a - b) <= 2 * math.hypot(a_error, b_error) + 1e-9


def samples(folder, task):
    """By document, the values that each of its requests came to."""
    files = sorted(folder.rglob(f"samples_{task}_*.jsonl"), key=lambda file: file.stat().st_mtime)
    lines = files[-1].read_text().splitlines() if files else []
    return {one["doc_id"]: one["filtered_resps"] for one in map(json.loads, lines)}


def main():
    folder = Path(sys.argv[1])
    served, chat = scores(newest(folder / "served")), scores(newest(folder / "chat"))
    other = Path(sys.argv[sys.argv.index("--reference") + 1]) if "--reference" in sys.argv else None
    reference = scores(json.loads(other.read_text()) if other else newest(folder / "reference"))
    written = lambda score: "" if score is None else f"{score[0]:.4f}" + (f" ± {score[1]:.4f}" if score[1] else "")
    print("| task | metric | served | transformers, f32 | agree |\n|---|---|---|---|---|")
    differs = False
    for (task, metric), ours in served.items():
        theirs = reference.get((task, metric))
        says = "" if theirs is None else "yes" if agree(ours, theirs) else "no"
        differs |= says == "no"
        print(f"| {task} | {metric} | {written(ours)} | {written(theirs)} | {says} |")
    for (task, metric), ours in chat.items():
        print(f"| {task}, as a chat | {metric} | {written(ours)} | | |")
    both = samples(folder / "served", "ragstone_choices"), samples(other.parent if other else folder / "reference", "ragstone_choices")
    pairs = [(a, b) for document in both[0].keys() & both[1].keys() for a, b in zip(both[0][document], both[1][document])]
    if pairs:
        gaps = sorted(abs(float(a[0]) - float(b[0])) for a, b in pairs)
        same = sum(str(a[1]) == str(b[1]) for a, b in pairs)
        print(f"\nLog-likelihoods of {len(pairs)} ends: median difference {gaps[len(gaps) // 2]:.5f}, greatest {gaps[-1]:.5f}; greedy alike in {same}.")
    return 1 if differs else 0


if __name__ == "__main__":
    sys.exit(main())
