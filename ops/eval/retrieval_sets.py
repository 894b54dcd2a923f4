"""Derives search sets from a data set, for `ragstone eval SET --retrieval`.

    python3 ops/eval/retrieval_sets.py SET.json FOLDER

SET is an array of {"question", "ctxs": [{"title"?, "text"}]}. Written are, each with its own passages:
  questions-a, questions-b   every second question, with its passages
  cloze                      a sentence of a passage asks for the passage without it (inverse cloze task)
  keywords                   four long words of a passage ask for it
Only the first two need anybody's judgement. The seed is fixed. Standard library alone.
"""

import json
import random
import re
import sys
from pathlib import Path

PASSAGES = 450
QUERIES = 300


def sentences(text):
    return [sentence for sentence in re.split(r"(?<=[.!?])\s+", text) if sentence.strip()]


def questions(items):
    """Each half, over its own passages."""
    return {"questions-a": items[0::2], "questions-b": items[1::2]}


def cloze(passages, draw):
    items = []
    for passage in draw.sample(passages, min(PASSAGES, len(passages))):
        parts = sentences(passage["text"])
        places = [place for place in range(1, len(parts)) if len(parts[place].split()) >= 6]
        if len(parts) >= 4 and places:
            place = draw.choice(places)
            rest = dict(passage, text=" ".join(parts[:place] + parts[place + 1 :]))
            items.append({"question": parts[place], "ctxs": [rest]})
    return items[:QUERIES]


def keywords(passages, draw):
    items = []
    for passage in draw.sample(passages, min(PASSAGES, len(passages))):
        words = sorted(set(re.findall(r"[A-Za-z]{5,}", passage["text"])))
        if len(words) >= 6:
            items.append({"question": " ".join(draw.sample(words, 4)), "ctxs": [passage]})
    return items[:QUERIES]


def main():
    source, folder = Path(sys.argv[1]), Path(sys.argv[2])
    items = json.loads(source.read_text(encoding="utf-8"))
    passages = {(one.get("title", ""), one["text"]): one for item in items for one in item["ctxs"]}
    passages = [passages[key] for key in sorted(passages)]
    folder.mkdir(parents=True, exist_ok=True)
    draw = random.Random(5)
    sets = questions(items) | {"cloze": cloze(passages, draw), "keywords": keywords(passages, draw)}
    for name, made in sets.items():
        (folder / f"{name}.json").write_text(json.dumps(made, ensure_ascii=False), encoding="utf-8")
        print(f"{name}: {len(made)} questions")


if __name__ == "__main__":
    main()
