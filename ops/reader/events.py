"""Sentences about single events, and what they answer: events.*.txt. `- ` begins a sentence, `? QUESTION = ANSWER` is asked about it."""

import dataclasses
import pathlib
import re

import values
from documents import FILLERS, Document, Fact, filled

KINDS = {"n": "int 11 480", "n3": "int 2 12"}
"""Those of slots whose name is no kind of value."""


@dataclasses.dataclass
class Event:
    text: str
    asked: list
    open: list
    """Questions in its words that it does not answer: `? QUESTION = -`."""


def read_events(language):
    path = pathlib.Path(__file__).parent / f"events.{language}.txt"
    events = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith("- "):
            events.append(Event(line[2:], [], []))
        elif line.startswith("? "):
            question, _, answer = line[2:].rpartition(" = ")
            if answer == "-":
                events[-1].open.append(question)
            else:
                events[-1].asked.append((question, answer))
    return events


EVENTS = {language: read_events(language) for language in ("en", "de", "fr")}


class Happened:
    """An event with its values, as a subject of a document."""

    world = None
    name = "an event"

    def __init__(self, event, rng, language="en"):
        self.event = event
        self.slots = {}
        # In the order of the text: a set has another one in each process.
        for slot in dict.fromkeys(re.findall(r"\{(\w+)\}", event.text)):
            kind = KINDS.get(slot) or KINDS.get(slot.rstrip("0123456789")) or slot.rstrip("0123456789")
            self.slots[slot] = values.value(rng, language, kind)
        self.text = filled(event.text, self.slots)
        self.name = self.text

    def facts(self):
        return [
            Fact(f"{self.event.text}{at}", question, questions=[question], answer=answer)
            for at, (question, answer) in enumerate(self.event.asked)
        ]

    def answer(self, fact):
        return filled(fact.answer, self.slots)

    def question(self, fact, rng, name=None):
        return filled(fact.questions[0], self.slots)

    def unanswered(self, rng):
        return filled(rng.choice(self.event.open), self.slots)


TITLES = {
    "en": [
        "Notes", "Diary", "Letter", "News", "notes.txt", "Notice board", "Re: this week", "report-{}.docx", "Chronicle", "To all", "Page {}",
        "Log {}", "{}.md", "Mail of {}",
    ],
    "de": ["Notizen", "Tagebuch", "Brief", "Neues", "notizen.txt", "Aushang", "Re: diese Woche", "bericht-{}.docx", "Chronik", "Seite {}", "{}.md"],
    "fr": ["Notes", "Journal", "Lettre", "Nouvelles", "notes.txt", "Affichage", "Re : cette semaine", "rapport-{}.docx", "Chronique", "Page {}", "{}.md"],
}


def page(events, rng, language="en"):
    """A passage of several events."""
    happened = [Happened(event, rng, language) for event in events]
    said = [one.text for one in happened]
    for _ in range(rng.choice([0, 0, 1, 1, 2])):
        said.insert(rng.randint(0, len(said)), rng.choice(FILLERS[language]))
    style = rng.random()
    if style < 0.65:
        text = " ".join(said)
    elif style < 0.85:
        text = "\n\n".join(said)
    else:
        text = "\n".join("- " + one for one in said)
    title = rng.choice(TITLES[language]).format(values.invented(rng) if rng.random() < 0.5 else rng.randint(1, 99))
    return Document(title, text, [(one, fact) for one in happened for fact in one.facts()], happened)
