"""Writes the sample corpus, its questions, fifty held-out questions with passages of their own (examples/world), the questions that
`ragstone calibrate` comes with, and those for the models of tests/models.

All from worlds of the test split, those of the calibration of the dev split: no training world has their combinations of names. Documents are Markdown (title in the heading), plain text (title in the file
name) and JSON lines (`title`, `text`).
"""
import argparse
import json
import random
from pathlib import Path

from world import LEVELS, World, held_out

WORLDS, PAGES, SEED = 10, 6, 2026
SHOWN = ("How many cats are kept by Lodor Nevgan?", "Who keeps more cats, Lodor Nevgan or Jovin Falgan?")  # what ops/run asks
WANTED = {"T1": 12, "T2": 12, "T3": 6}
HELD_OUT = {"T1": 10, "T2": 20, "T3": 20}
CALIBRATION = (24, 5)  # questions of each type, seed
OTHERS = {"calibration": ("dev", 36, 7), "questions": ("test", 50, 7)}  # of tests/models: split, questions of each type, seed


def write_corpus(pages, folder):
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.iterdir():
        old.unlink()
    lines = []
    for i, page in enumerate(p.as_dict() for p in pages):
        name = page["title"].lower().replace(" ", "-")
        if i % 3 == 0:
            (folder / f"{name}.md").write_text(f"# {page['title']}\n\n{page['text']}\n")
        elif i % 3 == 1:
            (folder / f"{page['title']}.txt").write_text(page["text"] + "\n")
        else:
            lines.append(json.dumps(page))
    (folder / "more.jsonl").write_text("\n".join(lines) + "\n")


def worlds(rng):
    """Worlds of which no two share a title."""
    made, titles = [], set()
    while len(made) < WORLDS:
        world = World(rng, "test", LEVELS["full"], pages=PAGES)
        own = {p.title for p in world.pages}
        if not own & titles:
            titles |= own
            made.append(world)
    return made


def choose(made, rng):
    """The questions that `ops/run` asks, and some of each type."""
    every = [q for world in made for q in world.questions()]
    chosen = [q for text in SHOWN for q in every if q.text == text]
    assert len(chosen) == len(SHOWN), "a question that ops/run asks is of no world: choose others"
    for kind, count in WANTED.items():
        pool = [q for q in every if q.type == kind and q not in chosen]
        chosen += rng.sample(pool, count - sum(q.type == kind for q in chosen))
    return [{"question": q.text, "answers": [q.gold()], "type": q.type} for q in chosen]


def fifty():
    """Questions with their own passages, as `ragstone eval` reads them."""
    left, chosen = dict(HELD_OUT), []
    for item in held_out("test", max(left.values()), SEED):
        if left[item["type"]]:
            left[item["type"]] -= 1
            chosen.append(item)
    return chosen


def unanswered(items):
    """Questions and passages without answers, as `ragstone calibrate` reads them."""
    page = lambda p: {"title": p["title"], "text": p["text"]}
    return [{"question": item["question"], "ctxs": [page(p) for p in item["ctxs"]]} for item in items]


def lines(items):
    return "[\n" + ",\n".join(map(json.dumps, items)) + "\n]\n"


def of_others(name):
    """Small worlds without comparisons: what the wide model was trained on."""
    split, each, seed = OTHERS[name]
    items = held_out(split, each, seed, "bridge", ("T1", "T2"))
    return unanswered(items) if name == "calibration" else items


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--out", default="../../examples/world")
    p.add_argument("--calibration", default="calibration-questions.json")
    p.add_argument("--others", default="../../tests/models")
    args = p.parse_args()
    out = Path(args.out)
    rng = random.Random(f"sample:{SEED}")
    made = worlds(rng)
    pages = [page for world in made for page in world.pages]
    rng.shuffle(pages)
    write_corpus(pages, out / "corpus")
    questions = choose(made, rng)
    (out / "questions.json").write_text(json.dumps(questions, indent=1) + "\n")
    (out / "held-out.json").write_text(lines(fifty()))
    bundled = unanswered(held_out("dev", *CALIBRATION))
    Path(args.calibration).write_text(json.dumps(bundled, separators=(",", ":")) + "\n")
    for name in OTHERS:
        (Path(args.others) / f"{name}.json").write_text(lines(of_others(name)))
    print(len(pages), "documents,", len(questions), "questions")


if __name__ == "__main__":
    main()
