#!/usr/bin/env python3
"""Counts of which questions the program says that a collection has nothing about them.

    ops/eval/relevance.py --binary target/release/ragstone --musique SET.json --json OUT.json

Collections are made of this repository's own sets (examples/house, ops/eval/reading, and what ops/fixtures/mixed.py, languages.py and
identifiers.py make) and, with --musique, of a file of that data set's form. Each collection is searched for

  answered   its own questions of which a passage with the answer is among the first five: none of these may be lost
  near       questions about what it is about, which nothing in it answers
  far        questions about something else: those of the sets' own lists, and those of the other collections in its language
  unrelated  the questions that embedding models are measured with (storage/corpus/src/relevance/unrelated.json), in the collection's languages;
             some collections do answer some of them

and `nothing found` is counted. Then, for each of --bounds, what a fixed `min_similarity` leaves: answered questions whose passage it takes away,
and far ones of which it leaves nothing. --ask also asks with the model (--model), and counts answers that refuse, with and without
`on_nothing_found`. Standard library alone.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

import found
from answers import plain, refuses

ROOT = pathlib.Path(__file__).resolve().parents[2]
LANGUAGES = {"house": ["english"], "reading-en": ["english"], "reading-de": ["german"], "reading-fr": ["french"], "mixed": ["english", "german", "french"],
             "identifiers": ["english"], "musique": ["english"],
             "languages": ["arabic", "chinese", "english", "french", "german", "japanese", "korean", "thai"]}  # fmt: skip
FOREIGN = ("house", "reading-en", "mixed", "musique")


def own(path):
    """Questions of a folder such as examples/house: those without an answer are near."""
    for item in json.loads(path.read_text(encoding="utf-8")):
        yield {"question": item["question"], "kind": "answered" if item.get("answers") else "near", "item": item}


def made(folder):
    """Questions of a folder that a script of ops/fixtures made."""
    asked = json.loads((folder / "questions.json").read_text(encoding="utf-8"))
    for item in asked["questions"]:
        yield {"question": item["question"], "kind": "answered", "item": item}
    for item in asked.get("unanswered", []):
        yield {"question": item["question"], "kind": "far" if "far" in item["kind"] else "near", "item": item}


def is_right(passage, item):
    """Whether a passage answers a question: by the form of its set."""
    if "file" in item:
        return found.is_of(passage.get("source") or passage["document_id"], item["file"]) and found.has(found.told(passage), item)
    text = plain(found.told(passage))
    is_of = any((passage.get("source") or "").endswith(file) for file in item.get("files", [])) or passage["document_id"] in item.get("documents", [])
    return is_of and any(plain(answer) in text for answer in item["answers"])


def collections(folder, musique):
    """Each collection's name, its files or documents, and its questions."""
    house, reading = ROOT / "examples/house", ROOT / "ops/eval/reading"
    yield "house", house / "papers", [*own(house / "questions.json"), *own(house / "choosing.json")]
    for language in ("en", "de", "fr"):
        yield f"reading-{language}", reading / language / "papers", [*own(reading / language / "questions.json")]
    for name in ("mixed", "languages", "identifiers"):
        subprocess.run([sys.executable, ROOT / f"ops/fixtures/{name}.py", folder / name], check=True, stdout=subprocess.DEVNULL)
        yield name, folder / name / "papers", [*made(folder / name)]
    if musique:
        items = json.loads(musique.read_text(encoding="utf-8"))
        ids = {}
        for item in items:
            for one in item["ctxs"]:
                ids.setdefault(one["text"], (f"m{len(ids)}", one.get("title", "")))
        documents = [{"id": id, "title": title, "text": text} for text, (id, title) in ids.items()]
        questions = [{"question": item["question"], "kind": "answered",
                      "item": {"answers": item["answers"], "documents": [ids[one["text"]][0] for one in item["ctxs"]]}} for item in items]  # fmt: skip
        yield "musique", documents, questions


def fill(service, name, papers):
    found.COLLECTION = name
    if isinstance(papers, pathlib.Path):
        service.ingest(papers)
        return
    for at in range(0, len(papers), 400):
        service.call(f"/v1/collections/{name}/documents", {"documents": papers[at : at + 400]})


def searched(service, name, question, **fields):
    return service.call(f"/v1/collections/{name}/search", {"query": question, "top_k": 5, **fields})


def judge(service, name, questions, bounds):
    for one in questions:
        answer = searched(service, name, one["question"])
        hits = answer["data"]
        one["nothing"] = answer.get("nothing_found", False)
        one["similarity"] = max((hit.get("similarity") or -1 for hit in hits), default=None)
        one["right"] = one["kind"] == "answered" and any(is_right(hit["passage"], one["item"]) for hit in hits)
        one["bounded"] = {}
        for bound in bounds:
            left = searched(service, name, one["question"], min_similarity=bound)["data"]
            right = one["right"] and any(is_right(hit["passage"], one["item"]) for hit in left)
            one["bounded"][str(bound)] = {"left": len(left), "right": right}
        yield one


def row(some):
    return f"{sum(one['nothing'] for one in some):4} of {len(some):4}"


def asked(service, name, questions):
    """Refusals of the program as it answers, and where it answers as usual."""
    for one in questions:
        for what in ("say", "as_usual"):
            body = {"messages": [{"role": "user", "content": one["question"]}], "max_tokens": 48, "temperature": 0,
                    "ragstone": {"collection": name, "on_nothing_found": what}}  # fmt: skip
            answer = service.call("/v1/chat/completions", body)
            if "error" in answer:
                sys.exit(f"asking failed: {answer['error']}")
            nothing = answer["ragstone"]["report"].get("nothing_found")
            one[what] = refuses(answer["choices"][0]["message"]["content"] or "") or bool(nothing and nothing["answered"] == "said")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default="ragstone")
    parser.add_argument("--model", default="demo")
    parser.add_argument("--embedder", help="the embedding model, as the program takes it")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a setting of the program")
    parser.add_argument("--musique", type=pathlib.Path, metavar="SET.json")
    parser.add_argument("--bounds", default="", help="fixed similarities to try, such as .2,.3,.4")
    parser.add_argument("--every", type=int, default=3, help="of other collections' questions each so-manieth is asked [3]")
    parser.add_argument("--ask", action="store_true", help="also ask the questions of house and reading")
    parser.add_argument("--json", type=pathlib.Path, metavar="OUT")
    arguments = parser.parse_args()
    bounds = [float(bound) for bound in arguments.bounds.split(",") if bound]
    unrelated = json.loads((ROOT / "storage/corpus/src/relevance/unrelated.json").read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory() as folder, found.served(arguments) as service:
        sets = {name: (papers, questions) for name, papers, questions in collections(pathlib.Path(folder), arguments.musique)}
        for name, (papers, _) in sets.items():
            fill(service, name, papers)
        results = {}
        for name, (_, questions) in sets.items():
            questions = list(questions)
            for other in FOREIGN if "english" in LANGUAGES[name] else ():
                if other != name and other in sets:
                    some = [one for one in sets[other][1] if one["kind"] == "answered"]
                    questions += [{"question": one["question"], "kind": "far", "of": other} for one in some[:: arguments.every]]
            questions += [{"question": question, "kind": f"unrelated, {language}"} for language in LANGUAGES[name] for question in unrelated[language]]
            results[name] = list(judge(service, name, questions, bounds))
            report(name, results[name], bounds)
            if arguments.ask and (name == "house" or name.startswith("reading")):
                some = [one for one in results[name] if "of" not in one and not one["kind"].startswith("unrelated")]
                some += [one for one in results[name] if one.get("of") == "mixed"]
                asked(service, name, some)
                for kind in ("answered", "near", "far"):
                    of_kind = [one for one in some if one["kind"] == kind]
                    print(f"  asked, {kind:9} refused as usual {sum(one['as_usual'] for one in of_kind):3}, now {sum(one['say'] for one in of_kind):3} of {len(of_kind)}", flush=True)
    report("all", [one for some in results.values() for one in some], bounds)
    if arguments.json:
        arguments.json.write_text(json.dumps(results, ensure_ascii=False, indent=1), encoding="utf-8")


def report(name, results, bounds):
    right = [one for one in results if one["right"]]
    print(f"{name}: nothing found, of answered {row(right)}, not among the first five {row([one for one in results if one['kind'] == 'answered' and not one['right']])}, "
          f"near {row([one for one in results if one['kind'] == 'near'])}, far {row([one for one in results if one['kind'] == 'far'])}")  # fmt: skip
    for kind in sorted({one["kind"] for one in results if one["kind"].startswith("unrelated")}):
        print(f"  {kind:22} {row([one for one in results if one['kind'] == kind])}")
    for bound in map(str, bounds):
        far = [one for one in results if one["kind"] == "far"]
        print(f"  {bound:>5}: answered lost {sum(not one['bounded'][bound]['right'] for one in right):3} of {len(right)}, far with nothing left {sum(not one['bounded'][bound]['left'] for one in far):4} of {len(far)}")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
