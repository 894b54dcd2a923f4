"""Documents about invented things, and what can be asked about each: made of the texts in worlds.*.txt.

A world's text:

    # NAME
    s: NAME OF THE SUBJECT | ANOTHER           what the document is about
    title: TITLE | ANOTHER
    SLOT KIND; SLOT KIND                       values (values.py); {SLOT} stands for one
    + SLOT | LABEL | ROLE | COMPARISON         a fact: its value, what a table calls it, who that is, how two are compared
    - A sentence that says it.                 one of these is written
    ? A question that it answers?              one of these is asked
    = the answer                               without it, the value alone
"""

import dataclasses
import pathlib
import re

import values

HERE = pathlib.Path(__file__).parent


@dataclasses.dataclass
class Fact:
    slot: str
    label: str
    role: str = ""
    comparison: str = ""
    sentences: list = dataclasses.field(default_factory=list)
    questions: list = dataclasses.field(default_factory=list)
    answer: str = ""


@dataclasses.dataclass
class World:
    name: str
    language: str
    subjects: list = dataclasses.field(default_factory=list)
    titles: list = dataclasses.field(default_factory=list)
    slots: dict = dataclasses.field(default_factory=dict)
    facts: list = dataclasses.field(default_factory=list)


def read_worlds(language):
    worlds = []
    for line in (HERE / f"worlds.{language}.txt").read_text(encoding="utf-8").splitlines():
        mark, rest = line[:2], line[2:].strip()
        if not line.strip():
            continue
        if mark == "# ":
            worlds.append(World(rest, language))
        elif line.startswith("s: "):
            worlds[-1].subjects = [part.strip() for part in line[3:].split("|")]
        elif line.startswith("title: "):
            worlds[-1].titles = [part.strip() for part in line[7:].split("|")]
        elif mark == "+ ":
            worlds[-1].facts.append(Fact(*[part.strip() for part in rest.split("|")]))
        elif mark == "- ":
            worlds[-1].facts[-1].sentences.append(rest)
        elif mark == "? ":
            worlds[-1].facts[-1].questions.append(rest)
        elif mark == "= ":
            worlds[-1].facts[-1].answer = rest
        else:
            # Those of a `pick` hold bars, but no semicolon.
            worlds[-1].slots |= {slot: kind for slot, _, kind in (part.strip().partition(" ") for part in line.split(";"))}
    return worlds


WORLDS = {language: read_worlds(language) for language in ("en", "de", "fr")}
FILLERS = {
    "en": [
        "More about this can be found on the notice board.", "Please read all of it before you write to us.", "The rest is as it was last year.",
        "Nobody complained.", "We thank everyone who helped.", "It rained most of the day.", "Other questions were left for another time.",
        "The paper was folded twice and kept in a drawer.", "As always, common sense helps.", "A longer text is being written.",
        "Some of this may change.", "The weather was kind, and there was coffee.", "Copies have gone to those who asked for one.",
        "It took longer than we had hoped.", "There is little to add.", "Please keep this page.", "Several people asked about it.",
        "That was a surprise to some of us.", "We were glad to see so many new faces.", "For the rest, ask whoever is there.",
        "This was discussed at length, without a result.", "It looks better than it did, even from the road.", "What was lost in the move was not replaced.",
    ],
    "de": [
        "Der Rest bleibt wie im letzten Jahr.", "Bitte alles lesen.", "Niemand hat sich beschwert.", "Es regnete fast den ganzen Tag.",
        "Wir danken allen, die geholfen haben.", "Manches kann sich noch ändern.", "Andere Fragen wurden vertagt.",
    ],
    "fr": [
        "Le reste ne change pas.", "Merci de tout lire.", "Personne ne s'est plaint.", "Il a plu presque toute la journée.",
        "Nous remercions tous ceux qui ont aidé.", "D'autres questions attendront.",
    ],
}
INTRODUCTIONS = {
    "en": ["This is about {s}.", "Notes on {s}.", "Here is what we know of {s}.", "{s}:", "A few words on {s}.", "{s} in short.", "Subject: {s}", "Dear all, some news of {s}."],
    "de": ["Es geht um: {s}.", "Notizen: {s}.", "{s}:", "Kurz gesagt: {s}.", "Betreff: {s}"],
    "fr": ["Il s'agit de : {s}.", "Notes : {s}.", "{s} :", "Objet : {s}"],
}
CHANGED = {
    "en": ["This has changed:", "Correction:", "Since our last letter there is news.", "What we wrote before no longer holds.", ""],
    "de": ["Das hat sich geändert:", "Korrektur:", ""],
    "fr": ["Ceci a changé :", "Correction :", ""],
}
DATED = {
    "en": ["{d}. ", "Date: {d}\n", "Written on {d}. ", "As of {d}: ", "From: {p}\nDate: {d}\n\n"],
    "de": ["{d}. ", "Datum: {d}\n", "Stand {d}: "],
    "fr": ["{d}. ", "Date : {d}\n", "Le {d} : "],
}


def filled(text, slots):
    """`text` with its slots' values; `{a:SLOT}` has an article."""

    def one(match):
        name = match[1]
        if name.startswith("a:"):
            word = slots[name[2:]]
            return ("an " if word[0] in "aeiou" else "a ") + word
        return slots[name]

    return re.sub(r"\{([\w:]+)\}", one, text)


def sentence(text, slots):
    text = filled(text, slots)
    return text[:1].upper() + text[1:]


class Subject:
    """Something invented: its name and the values of all its slots, stated or not."""

    def __init__(self, world, rng, name=None):
        self.world = world
        self.slots = {slot: values.value(rng, world.language, kind) for slot, kind in world.slots.items()}
        for needed in ("place", "last", "year", "code", "n", "room", "person"):
            self.slots.setdefault(needed, values.value(rng, world.language, needed if needed != "n" else "int 1 99"))
        self.slots["s"] = self.name = name or filled(rng.choice(world.subjects), self.slots)

    def answer(self, fact):
        return filled(fact.answer or f"{{{fact.slot}}}", self.slots)

    def question(self, fact, rng, name=None):
        return sentence(rng.choice(fact.questions), self.slots | {"s": name or self.name})


@dataclasses.dataclass
class Document:
    """A passage, and which facts of which subjects it states."""

    title: str
    text: str
    stated: list  # of (Subject, Fact)
    subjects: list
    sheets: list = dataclasses.field(default_factory=list)  # of Filled (sheets.py)

    def add(self, other):
        """What another one states stands here, too; its text is the caller's."""
        self.stated, self.subjects, self.sheets = self.stated + other.stated, self.subjects + other.subjects, self.sheets + other.sheets


def document(subject, rng, facts=None, dated=None, changed=False):
    """A page about one subject."""
    world, language = subject.world, subject.world.language
    if facts is None:
        facts = rng.sample(world.facts, min(len(world.facts), rng.choice([3, 4, 5, 5, 6, 7, 8])))
    title = filled(rng.choice(world.titles), subject.slots)
    introduction = sentence(rng.choice(INTRODUCTIONS[language]), subject.slots)
    style = rng.random()
    if style < 0.62:
        said = [sentence(rng.choice(fact.sentences), subject.slots) for fact in facts]
        for _ in range(rng.choice([0, 0, 1, 2, 3])):
            said.insert(rng.randint(0, len(said)), rng.choice(FILLERS[language]))
        cut = rng.randint(1, len(said))
        body = " ".join(said) if rng.random() < 0.7 else (" ".join(said[:cut]) + "\n\n" + " ".join(said[cut:])).strip()
    elif style < 0.76:
        mark = rng.choice(["- ", "* ", "• "])
        body = "\n".join(mark + sentence(rng.choice(fact.sentences), subject.slots) for fact in facts)
    elif style < 0.9:
        between = rng.choice(["\n", "\n", "; "])
        body = between.join(f"{fact.label}: {subject.answer(fact)}" for fact in facts)
    else:
        body = "\n".join(f"| {fact.label} | {subject.answer(fact)} |" for fact in facts)
    begin = ""
    if subject.name not in title or rng.random() < 0.4:
        begin = introduction + ("\n" if style >= 0.62 or rng.random() < 0.2 else " ")
    if changed and (word := rng.choice(CHANGED[language])):
        begin += word + " "
    if dated:
        begin = rng.choice(DATED[language]).format(d=dated, p=values.person(rng, language)) + begin
    elif rng.random() < 0.1:
        begin = f"# {title}\n\n" + begin
    return Document(title, begin + body, [(subject, fact) for fact in facts], [subject])


def table(world, rng):
    """Several subjects, a row each."""
    subjects = [Subject(world, rng) for _ in range(rng.choice([2, 3, 4, 5]))]
    if len({subject.name for subject in subjects}) < len(subjects):
        return table(world, rng)
    facts = rng.sample(world.facts, rng.choice([1, 2, 3]))
    rows = [[subject.name] + [subject.answer(fact) for fact in facts] for subject in subjects]
    head = [{"en": "Name", "de": "Name", "fr": "Nom"}[world.language]] + [fact.label for fact in facts]
    style = rng.random()
    if style < 0.5:
        lines = ["| " + " | ".join(row) + " |" for row in [head, ["---"] * len(head), *rows]]
    elif style < 0.7:
        lines = ["; ".join(row) for row in [head, *rows]]
    else:
        lines = [f"- {row[0]}: " + ", ".join(f"{label} {cell}" for label, cell in zip(head[1:], row[1:])) for row in rows]
    title = rng.choice([f"{world.name}.csv", f"{world.name}.xlsx", "Overview", "List", f"All of {world.name}"])
    return Document(title, "\n".join(lines), [(subject, fact) for subject in subjects for fact in facts], subjects)
