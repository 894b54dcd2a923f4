#!/usr/bin/env python3
"""Counts how many answers of a fixture folder the program's search finds, by kind of file or of identifier.

    python3 ops/fixtures/mixed.py FOLDER
    ops/eval/found.py FOLDER --binary target/release/ragstone --json OUT.json

FOLDER has `papers` and `questions.json`, as ops/fixtures/mixed.py, identifiers.py and editions.py write them; the first one's docstring says
what its fields mean. `papers` are ingested into a data folder that goes away. Each question is searched for by words (`full_text`), by meaning
(`vector`) and as the service does by itself (`fused`).

  text       the text of the right file has the answer, perhaps in two passages: the most that the reader leaves
  read       one passage of it has it, in its text or its title: the most that a search can find
  top 1, 5   such a passage is the first, or among the first five
  page       of those in the top 5 by default whose page is known: the passage says the right one

Then: texts that must not be in passages and are; files that were not taken, and what was said; the scores of questions that nothing answers
beside those of questions whose answer was first. With --ask, questions that nothing answers, and as many others, are asked, and refusals are
counted: that takes a model that answers (--model; the default one by its path with --set adapter=reader). Standard library alone.
"""

import argparse
import contextlib
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request

from answers import plain, refuses

MODES = {"words": "full_text", "meaning": "vector", "default": None}
COLLECTION = "found"


class Service:
    def __init__(self, address, data):
        self.address = address.rstrip("/")
        self.token = json.loads((pathlib.Path(data) / "service.json").read_text(encoding="utf-8"))["token"]

    def open(self, path, body=None):
        headers = {"content-type": "application/json", "x-ragstone-token": self.token}
        data = None if body is None else json.dumps(body).encode()
        return urllib.request.urlopen(urllib.request.Request(self.address + path, data, headers), timeout=900)

    def call(self, path, body=None):
        try:
            with self.open(path, body) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            return {"error": f"{error.code} {error.read().decode(errors='replace')[:300]}"}

    def ready(self):
        """Waits until models are loaded."""
        for _ in range(1200):
            with contextlib.suppress(urllib.error.HTTPError), self.open("/readyz"):
                return
            time.sleep(0.1)
        sys.exit("the service does not become ready")

    def ingest(self, folder):
        """What the ingest told, event by event."""
        events = {}
        with self.open(f"/v1/collections/{COLLECTION}/ingest", {"paths": [str(folder.resolve())]}) as answer:
            for line in answer:
                if line.startswith(b"data: "):
                    for name, value in json.loads(line[6:]).items():
                        events.setdefault(name, []).append(value)
        return events

    def passages(self):
        """All passages: (source, text)."""
        found, offset = [], 0
        while True:
            page = self.call(f"/v1/collections/{COLLECTION}/documents?limit=1000&offset={offset}")
            for one in page["data"]:
                document = self.call(f"/v1/collections/{COLLECTION}/documents/{urllib.parse.quote(one['id'], safe='')}")
                found += [(one.get("source") or one["id"], passage) for passage in document["passages"]]
            offset += len(page["data"])
            if not page.get("has_more"):
                return found

    def search(self, question, mode, top_k=5):
        body = {"query": question, "top_k": top_k} | ({"mode": mode} if mode else {})
        answer = self.call(f"/v1/collections/{COLLECTION}/search", body)
        return answer.get("data", []), answer.get("error")


@contextlib.contextmanager
def served(arguments):
    with tempfile.TemporaryDirectory() as data:
        command = [arguments.binary, "--data", data, "--model", arguments.model]
        command += ["--embedder", arguments.embedder] if arguments.embedder else []
        command += [f"--set={setting}" for setting in ["calibrate_when_idle=false", *arguments.set]]
        with subprocess.Popen([*command, "serve", "--listen", "127.0.0.1:0"], stdout=subprocess.PIPE, text=True) as process:
            try:
                first = process.stdout.readline()
                if not first.startswith("listening on "):
                    sys.exit("the service did not start; its message stands above")
                service = Service(first.split()[-1], data)
                service.ready()
                yield service
            finally:
                process.terminate()


def is_of(source, file):
    """Whether a source (a path, perhaps with a place in the file behind it) is this file."""
    return bool(re.search(rf"(^|/){re.escape(file)}($|[#?:!/])", source or ""))


def places(text, forms):
    """Where one of the forms begins, as whole words: what is fused with its neighbours is not found by words."""
    forms = [forms] if isinstance(forms, str) else forms
    each = "|".join(re.escape(plain(form)) for form in forms)
    return [match.span() for match in re.finditer(rf"(?<!\w)(?:{each})(?!\w)", text)]


def has(text, item):
    """Whether a text has the answer."""
    text = plain(text)
    found = [places(text, forms) for forms in item["words"]]
    if "within" not in item or not all(found):
        return all(found)
    starts = [start for spans in found for start, _ in spans]
    return any(all(any(start <= begin and end <= start + item["within"] for begin, end in spans) for spans in found) for start in starts)


def told(passage):
    """What a model is told of a passage."""
    return f"{passage.get('title') or ''}\n{passage['text']}"


def page_of(passage):
    """The pages that a passage says it is from, or none."""
    for place in (passage, passage.get("metadata") or {}):
        for key in ("page", "pages", "page_number"):
            if place.get(key) not in (None, [], ""):
                numbers = [int(number) for number in re.findall(r"\d+", str(place[key]))]
                return list(range(numbers[0], numbers[-1] + 1))
    return None


def rank_of(hits, item):
    """The place of the first passage that has the answer, from 1, and its pages; of the file's first passage, whatever it has."""
    found = file = pages = None
    for at, hit in enumerate(hits, 1):
        passage = hit["passage"]
        sources = [passage.get("source") or passage["document_id"], *(other.get("source") for other in hit.get("also_in", []))]
        if any(is_of(source, item["file"]) for source in sources):
            file = file or at
            if found is None and has(told(passage), item):
                found, pages = at, page_of(passage)
    return found, file, pages


def measure(service, asked, passages):
    results = []
    for item in asked["questions"]:
        of_file = [passage for source, passage in passages if is_of(source, item["file"])]
        one = dict(item, taken=bool(of_file), read=any(has(told(passage), item) for passage in of_file), found={})
        one["text"] = one["read"] or has("\n".join(passage["text"] for passage in of_file), item)
        for name, mode in MODES.items():
            hits, error = service.search(item["question"], mode)
            rank, file_rank, pages = rank_of(hits, item)
            one["found"][name] = {"rank": rank, "file_rank": file_rank, "top": [top(hit) for hit in hits]} | ({"error": error} if error else {})
            if name == "default" and "page" in item and rank:
                one["page_right"] = bool(pages) and item["page"] in pages
        results.append(one)
    return results


def top(hit):
    passage = hit["passage"]
    return {"source": passage.get("source"), "score": hit["score"], "text": passage["text"][:120]}


def forbidden(asked, passages):
    """Texts that must not occur and do, with what stands around them."""
    found = []
    for item in asked.get("must_not", []):
        wanted = plain(item["text"])
        for source, passage in passages:
            text = plain(passage["text"])
            if is_of(source, item["file"]) and wanted in text:
                at = text.index(wanted)
                found.append(item | {"around": text[max(0, at - 40) : at + len(wanted) + 40]})
                break
    return found


def unanswered(service, asked, results):
    """The first score of each question, by mode, beside those of questions whose answer was first."""
    rows = []
    for item in asked.get("unanswered", []):
        row = dict(item)
        for name, mode in MODES.items():
            hits, _ = service.search(item["question"], mode)
            row[name] = {"hits": len(hits), "score": hits[0]["score"] if hits else None}
        rows.append(row)
    summed = {}
    for name in MODES:
        right = [one["found"][name]["top"][0]["score"] for one in results if one["found"][name]["rank"] == 1]
        for kind in sorted({row["kind"] for row in rows}):
            wrong = [row[name]["score"] for row in rows if row["kind"] == kind and row[name]["score"] is not None]
            summed[f"{kind}, {name}"] = {"nothing": quartiles(wrong), "answered": quartiles(right), "apart": apart(wrong, right),
                                       "without hits": sum(row[name]["hits"] == 0 for row in rows if row["kind"] == kind)}  # fmt: skip
    return rows, summed


def quartiles(scores):
    scores = sorted(scores)
    return [round(scores[min(len(scores) - 1, len(scores) * part // 4)], 3) for part in range(1, 4)] if scores else []


def apart(wrong, right):
    """How often a question with an answer has the higher score of a pair (ties are a half): .5 tells nothing, 1 tells all."""
    pairs = [(low, high) for low in wrong for high in right]
    return round(sum((high > low) + (high == low) / 2 for low, high in pairs) / len(pairs), 3) if pairs else None


def ask(service, asked, results):
    """What the service answers where nothing does, and to as many others: citations, refusals."""
    first = [one for one in results if one["found"]["default"]["rank"] == 1]
    others = first[:: max(1, len(first) // 40)][:40]
    rows = []
    for item in [*asked.get("unanswered", []), *(dict(question=one["question"], kind="answered, first") for one in others)]:
        body = {"messages": [{"role": "user", "content": item["question"]}], "max_tokens": 48, "temperature": 0, "ragstone": {"collection": COLLECTION}}
        answer = service.call("/v1/chat/completions", body)
        if "error" in answer:
            sys.exit(f"asking failed: {answer['error']}")
        text = answer["choices"][0]["message"]["content"] or ""
        cited = answer["ragstone"]["citations"]
        rows.append(item | {"answer": text, "refused": refuses(text), "citations": len(cited), "score": max((one.get("score") or 0 for one in cited), default=None)})
    return rows


def table(results, modes):
    kinds = list(dict.fromkeys(one["kind"] for one in results))
    wide = max(map(len, kinds))
    print(f"{'kind':{wide}} {'asked':>5} {'text':>5} {'read':>5} " + " ".join(f"{name + ' 1':>9} {'5':>3}" for name in modes) + "  page")
    for kind in [*kinds, "all"]:
        some = [one for one in results if kind in (one["kind"], "all")]
        counts = " ".join(f"{within(some, name, 1):9} {within(some, name, 5):3}" for name in modes)
        paged = [one["page_right"] for one in some if "page_right" in one]
        print(f"{kind:{wide}} {len(some):5} {sum(one['text'] for one in some):5} {sum(one['read'] for one in some):5} {counts}  " + (f"{sum(paged)}/{len(paged)}" if paged else ""))


def within(results, name, most):
    return sum((one["found"][name]["rank"] or 99) <= most for one in results)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--binary", default="ragstone")
    parser.add_argument("--model", default="demo", help="the language model; the small one inside the program, unless --ask is given")
    parser.add_argument("--embedder", help="the embedding model, as the program takes it")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a setting of the program")
    parser.add_argument("--ask", action="store_true", help="also ask, and count refusals")
    parser.add_argument("--json", type=pathlib.Path, metavar="OUT", help="every question with what was found")
    arguments = parser.parse_args()
    asked = json.loads((arguments.folder / "questions.json").read_text(encoding="utf-8"))
    with served(arguments) as service:
        begun = time.monotonic()
        events = service.ingest(arguments.folder / "papers")
        seconds = time.monotonic() - begun
        passages = service.passages()
        results = measure(service, asked, passages)
        seen = forbidden(asked, passages)
        rows, scores = unanswered(service, asked, results)
        answers = ask(service, asked, results) if arguments.ask else []
    finished = events["finished"][-1] if "finished" in events else events
    print(f"{arguments.folder.name}: {len(passages)} passages, ingested in {seconds:.1f} s\n")
    table(results, MODES)
    for kind in dict.fromkeys(item["kind"] for item in asked.get("must_not", [])):
        of_kind = [item for item in asked["must_not"] if item["kind"] == kind]
        print(f"must not be in passages, {kind}: {sum(item['kind'] == kind for item in seen)} of {len(of_kind)} are")
    untaken = [item["file"] for item in results if not item["taken"]]
    print(f"not taken: {len(untaken)} files", *untaken, sep="\n  ")
    for event in events.get("skipped", []) + events.get("left_alone", []):
        print("  said:", json.dumps(event, ensure_ascii=False)[:260])
    for name, row in scores.items():
        print(f"{name}: first scores (quartiles) {row['nothing']}, of answered ones {row['answered']}; told apart {row['apart']}; no hits {row['without hits']}")
    for kind in dict.fromkeys(row["kind"] for row in answers):
        some = [row for row in answers if row["kind"] == kind]
        print(f"asked, {kind}: {sum(row['refused'] for row in some)} of {len(some)} refused, {sum(row['citations'] > 0 for row in some)} with citations")
    if arguments.json:
        record = {"seconds": seconds, "ingest": finished, "skipped": events.get("skipped", []), "left_alone": events.get("left_alone", [])}
        record |= {"passages": len(passages), "results": results, "must_not": seen, "unanswered": rows, "scores": scores, "answers": answers}
        arguments.json.write_text(json.dumps(record, ensure_ascii=False, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
