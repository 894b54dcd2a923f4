#!/usr/bin/env python3
"""Counts how many questions of a corpus a model answers right, as it is asked by the program or in a layout of this script.

    ops/eval/answers.py examples/house --model MODEL                    # as `ragstone ask` asks
    ops/eval/answers.py examples/house --model MODEL --questions choosing.json --layout short,few-words --vary top_k=3,5
    ops/eval/answers.py examples/house --service http://127.0.0.1:7411 --collection house

FOLDER has `questions.json` ({"question", "answers": [accepted forms], "files"} a row; no answers: it cannot be answered) and `papers`.
Without --service, `ragstone` (--binary) is started on a data folder (--data, else one that goes away) and ingests `papers`.

Of a layout, this script finds the passages by the service's search and writes the prompt itself; the service adds the model's chat
template, or nothing where it has none. So layouts are compared over the same passages, in one run of the service, before one of them is
made the program's. `--vary KEY=V1,V2` multiplies the layouts: any field of Layout. Greedy, unless `temperature` says otherwise.

A question counts as answered right if one of its accepted forms occurs in the answer, as whole words. "found" counts the questions of
which some passage of the prompt has an accepted form: the most that a model could answer right. An answer is in circles if eight words in
a row occur three times, or it was cut at its greatest length. "refused" counts those without an answer that were refused, of the eight.
Choose among layouts on `--questions choosing.json`, and report what was chosen on questions.json, once. Standard library alone.
"""

import argparse
import contextlib
import dataclasses
import itertools
import json
import math
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request


@dataclasses.dataclass(frozen=True)
class Layout:
    """How a model is asked."""

    name: str = ""
    system: str = ""
    """What stands first: the system prompt; of a base model, the prompt's beginning."""
    passage: str = "Passage: {title} | {text}\n"
    before: str = ""
    """What stands before the passages, in the same message. `{question}` in it is for measuring only: no stored KV of a passage fits
    behind it."""
    question: str = "Question: {question}\nAnswer:"
    top_k: int = 5
    order: str = "best-first"
    max_tokens: int = 256
    temperature: float = 0.0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    stop: str = ""
    """Ends the answer."""
    end_at_repeat: int = 0
    """The answer ends where so many words in a row come a second time, without them; 0: it does not. Done here, to the text."""
    raw: bool = False
    """Without the model's chat template, by /v1/completions."""


BEFORE = "Answer each question from the passages."
"""The system prompt before this was measured."""
SHORT = "Answer the question from the passages, in one short sentence."
HONEST = SHORT + " If the passages do not say it, answer: The passages do not say."
ASSISTANT = "You are a helpful assistant. You answer questions about the user's papers."
PAGE = "{title}\n{text}\n\n"
SENTENCE = "Question: {question}\nAnswer in one short sentence."
FROM = "Using only the passages above, answer in one short sentence: {question}"
SHOTS = """Passage: Library | The library is open on Mondays and Fridays. Its librarian is Rosa Finch.

Question: Who is the librarian?
Answer: The librarian is Rosa Finch.

"""
LAYOUTS = {
    # What decision 0099 has, for chat models and for models without a chat template.
    "chosen": Layout(system=BEFORE, top_k=2, order="best-last", end_at_repeat=8),
    "base-chosen": Layout(
        system=SHOTS, passage="Passage: {title} | {text}\n\n", top_k=2, order="best-last", max_tokens=32, stop="\n", raw=True
    ),
    # The passages and question of before, other system prompts.
    "before": Layout(system=BEFORE),
    "no-system": Layout(),
    "short": Layout(system=SHORT),
    "honest": Layout(system=HONEST),
    "assistant": Layout(system=ASSISTANT),
    # Other words of the question.
    "sentence": Layout(system=BEFORE, question=SENTENCE),
    "bare": Layout(system=BEFORE, question="{question}"),
    "few-words": Layout(system=BEFORE, question="Question: {question}\nAnswer in a few words:"),
    "from": Layout(system=ASSISTANT, passage=PAGE, question=FROM),
    # Pages instead of passages.
    "page": Layout(system=BEFORE, passage=PAGE),
    "page-sentence": Layout(system=BEFORE, passage=PAGE, question=SENTENCE),
    "page-bare": Layout(system=ASSISTANT, passage=PAGE, question="{question}"),
    # The question twice: what stands before the passages makes their stored KV useless.
    "twice": Layout(system=BEFORE, before="Question: {question}\n\n"),
    "first": Layout(system=BEFORE, before="{question}\n\n", question=""),
    # Models without a chat template.
    "base": Layout(system=BEFORE + "\n", raw=True),
    "base-line": Layout(system=BEFORE + "\n", raw=True, stop="\n"),
    "base-page": Layout(passage=PAGE, raw=True, stop="\n"),
    "base-according": Layout(passage=PAGE, question="According to the text above:\nQ: {question}\nA:", raw=True, stop="\n"),
    "base-shot": Layout(system=SHOTS, passage="Passage: {title} | {text}\n\n", raw=True, stop="\n"),
    "base-quoted": Layout(passage=PAGE, question="Question: {question}\nThe answer in one short sentence:", raw=True, stop="\n"),
}
LAYOUTS = {name: dataclasses.replace(layout, name=name) for name, layout in LAYOUTS.items()}


class Service:
    """A service that answers, and the collection that it is asked about."""

    def __init__(self, address, collection, key=None):
        self.address, self.collection, self.key = address.rstrip("/"), collection, key
        self.found = {}

    def post(self, path, body):
        headers = {"content-type": "application/json"}
        if self.key:
            headers["authorization"] = f"Bearer {self.key}"
        request = urllib.request.Request(self.address + path, json.dumps(body).encode(), headers)
        try:
            with urllib.request.urlopen(request, timeout=600) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            sys.exit(f"{path}: {error.read().decode(errors='replace')}")

    def search(self, question, top_k):
        """Passages, the best first."""
        if (question, top_k) not in self.found:
            path = f"/v1/collections/{self.collection}/search"
            hits = self.post(path, {"query": question, "top_k": top_k})["data"]
            self.found[question, top_k] = [hit["passage"] for hit in hits]
        return self.found[question, top_k]

    def ask(self, question, layout):
        """The answer, how it ended, and the passages that were read. Without a layout, as the program asks."""
        if layout is None:
            body = {"messages": [{"role": "user", "content": question}]}
            body["ragstone"] = {"collection": self.collection, "sampling": "model"}
            answer = self.post("/v1/chat/completions", body)
            passages = answer["ragstone"]["citations"]
        else:
            passages = self.search(question, layout.top_k)
            answer = self.post(*layout_request(question, passages, layout))
        choice = answer["choices"][0]
        text = choice["message"]["content"] if "message" in choice else choice["text"]
        return text or "", choice["finish_reason"], passages


def fill(form, **fields):
    """Fields in one pass, so that braces of a passage stay what they are."""
    return re.sub(r"\{(\w+)\}", lambda match: fields.get(match[1], match[0]), form)


def layout_request(question, passages, layout):
    """The path and body of a question, written as the layout has it."""
    ordered = passages if layout.order == "best-first" else passages[::-1]
    read = "".join(fill(layout.passage, title=one.get("title") or "", text=one["text"]) for one in ordered)
    message = fill(layout.before, question=question) + read + fill(layout.question, question=question)
    body = {
        key: getattr(layout, key)
        for key in ("max_tokens", "temperature", "repetition_penalty", "frequency_penalty", "presence_penalty")
    }
    if layout.stop:
        body["stop"] = layout.stop
    if layout.raw:
        return "/v1/completions", body | {"prompt": layout.system + message}
    messages = [{"role": "system", "content": layout.system}] if layout.system else []
    return "/v1/chat/completions", body | {"messages": [*messages, {"role": "user", "content": message}]}


def plain(text):
    """As answers are compared: without case, marks, commas within numbers and breaks of lines; `96pounds` is `96 pounds`."""
    text = re.sub(r"(?<=\d),(?=\d{3})", "", text.casefold().replace("’", "'"))
    text = re.sub(r"(?<=\d)(?=[a-z])", " ", text)
    return " ".join(re.sub(r"[*|_`]", " ", text).split())


def says(text, answers):
    """Whether one of the accepted forms occurs, as whole words and numbers."""
    text = plain(text)
    forms = (re.escape(plain(answer)) for answer in answers)
    return any(re.search(rf"(?<!\w)(?<!\d[.,]){form}(?!\w)(?!\.\d)", text) for form in forms)


def without_repeat(text, count):
    """The text up to where `count` words in a row come a second time, and whether they do."""
    words = list(re.finditer(r"\S+", text))
    seen = set()
    for at in range(len(words) - count + 1):
        part = tuple(word[0] for word in words[at : at + count])
        if part in seen:
            return text[: words[at].start()].strip(), True
        seen.add(part)
    return text, False


def in_circles(text, ending):
    words = plain(text).split()
    counts = {}
    for at in range(len(words) - 7):
        part = tuple(words[at : at + 8])
        counts[part] = counts.get(part, 0) + 1
    return ending == "length" or max(counts.values(), default=0) >= 3


REFUSAL = re.compile(
    r"(\b(not|no|never|cannot|unable|unknown)|n't)\b.{0,60}\b(say|says|said|state|stated|mention|mentioned|give|given|specif\w+|provid\w+"
    r"|know|known|contain\w*|includ\w+|information|answer\w*|passages?|found|find|clear|written)\b|\b(unknown|unclear|i do not know|i don't know)\b"
    # What the program takes for one in German and French (actors/src/report/grounding.rs).
    r"|\bsteht nicht in den passagen\b|\bin den passagen nicht\b|\bpassages ne (le disent|mentionnent) pas\b",
    re.DOTALL,
)


def refuses(text):
    return bool(REFUSAL.search(plain(text)))


def interval(right, count):
    """Wilson's interval of 95 %, in questions."""
    if not count:
        return 0.0, 0.0
    z, share = 1.96, right / count
    middle = (share + z * z / (2 * count)) / (1 + z * z / count)
    half = z / (1 + z * z / count) * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    return (middle - half) * count, (middle + half) * count


def measure(service, questions, layout, log):
    """A row of the table, and every answer."""
    answers = []
    begin = time.monotonic()
    for item in questions:
        text, ending, passages = service.ask(item["question"], layout)
        text = text.strip()
        if layout and layout.end_at_repeat:
            text, repeats = without_repeat(text, layout.end_at_repeat)
            ending = "stop" if repeats else ending
        one = {"question": item["question"], "answer": text, "ending": ending}
        one["has_answer"] = bool(item["answers"])
        one["right"] = says(text, item["answers"])
        one["found"] = any(says(passage["text"], item["answers"]) for passage in passages)
        one["circles"] = in_circles(text, ending)
        one["refused"] = refuses(text)
        one["words"] = len(text.split())
        answers.append(one)
        if log:
            mark = "right" if one["right"] else "refused" if one["refused"] else "circles" if one["circles"] else "wrong"
            print(f"  {mark:8}{'' if one['found'] or not item['answers'] else '(not found) '}{item['question']}  {text!r}", flush=True)
    seconds = time.monotonic() - begin
    answered = [one for one in answers if one["has_answer"]]
    others = [one for one in answers if not one["has_answer"]]
    right = sum(one["right"] for one in answered)
    row = {
        "layout": layout.name if layout else "the program's",
        "right": right,
        "of": len(answered),
        "interval": interval(right, len(answered)),
        "found": sum(one["found"] for one in answered),
        "circles": sum(one["circles"] for one in answers),
        "refused_wrongly": sum(one["refused"] and not one["right"] for one in answered),
        "refused": sum(one["refused"] for one in others),
        "unanswerable": len(others),
        "words": sum(one["words"] for one in answers) / max(len(answers), 1),
        "seconds": seconds / max(len(answers), 1),
    }
    return row, answers


HEAD = "| layout | right | 95 % | found | circles | refused, of those without an answer | refused wrongly | words | s a question |"


def line(row):
    low, high = row["interval"]
    return (
        f"| {row['layout']} | {row['right']} of {row['of']} | {low:.0f} .. {high:.0f} | {row['found']} "
        f"| {row['circles']} | {row['refused']} of {row['unanswerable']} | {row['refused_wrongly']} | {row['words']:.0f} | {row['seconds']:.1f} |"
    )


def varied(layouts, variations):
    """Each layout with each combination of the values."""
    kinds = {field.name: type(getattr(Layout(), field.name)) for field in dataclasses.fields(Layout)}
    axes = []
    for variation in variations:
        key, _, values = variation.partition("=")
        if key not in kinds:
            sys.exit(f"--vary {key}: a layout has {', '.join(kinds)}")
        axes.append([(key, kinds[key](value)) for value in values.split(",")])
    for layout in layouts:
        for values in itertools.product(*axes):
            name = " ".join([layout.name, *(f"{key}={value}" for key, value in values)])
            yield dataclasses.replace(layout, **dict(values), name=name)


@contextlib.contextmanager
def served(arguments):
    """A service over the folder's papers."""
    if arguments.service:
        yield Service(arguments.service, arguments.collection, os.environ.get("RAGSTONE_API_KEY"))
        return
    with tempfile.TemporaryDirectory() as scratch:
        command = [arguments.binary, "--data", arguments.data or scratch]
        extra = [f"--set={setting}" for setting in arguments.set]
        model = ["--model", arguments.model] if arguments.model else []
        serve = [*command, "serve", "--listen", "127.0.0.1:0", *model, *extra]
        with subprocess.Popen(serve, stdout=subprocess.PIPE, text=True) as process:
            try:
                first = process.stdout.readline()
                if not first.startswith("listening on "):
                    sys.exit("the service did not start; its message stands above")
                ingest = [*command, "ingest", str(arguments.folder / "papers"), "--collection", arguments.collection]
                subprocess.run(ingest, check=True, stdout=subprocess.DEVNULL)
                yield Service(first.split()[-1], arguments.collection)
            finally:
                process.terminate()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--layout", default="", help="names, with commas; without one, as the program asks")
    parser.add_argument("--vary", action="append", default=[], metavar="KEY=V1,V2")
    parser.add_argument("--questions", default="questions.json", help="the file in the folder; choosing.json is for choosing")
    parser.add_argument("--only", default="", help="questions that contain this")
    parser.add_argument("--service", help="a service that runs already, with the corpus in --collection")
    parser.add_argument("--collection", default="house")
    parser.add_argument("--binary", default=os.environ.get("RAGSTONE", "ragstone"))
    parser.add_argument("--model")
    parser.add_argument("--data")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a setting of the service")
    parser.add_argument("--json", type=pathlib.Path, help="every answer, a line a layout; is appended to")
    parser.add_argument("--answers", action="store_true", help="print each answer")
    arguments = parser.parse_args()
    questions = json.loads((arguments.folder / arguments.questions).read_text(encoding="utf-8"))
    questions = [item for item in questions if arguments.only in item["question"]]
    names = [name for name in arguments.layout.split(",") if name]
    if unknown := [name for name in names if name not in LAYOUTS]:
        sys.exit(f"no layout {', '.join(unknown)}; there are {', '.join(LAYOUTS)}")
    layouts = list(varied([LAYOUTS[name] for name in names], arguments.vary)) or [None]
    with served(arguments) as service:
        print(HEAD + "\n|" + "---|" * HEAD.count(" | ") + "---|", flush=True)
        for layout in layouts:
            row, answers = measure(service, questions, layout, arguments.answers)
            print(line(row), flush=True)
            if arguments.json:
                record = row | {"how": dataclasses.asdict(layout) if layout else None, "answers": answers}
                with arguments.json.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(record, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
