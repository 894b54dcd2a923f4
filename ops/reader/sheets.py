"""Pages with several values of one kind: price lists, programmes, minutes, manuals. What is asked is told apart by the question's words alone.

A sheet's text (sheets.*.txt):

    # NAME
    title: TITLE | ANOTHER
    o: WHOSE IT IS | THE SAME WITH ITS PREPOSITION
    i: A THING ON IT | ANOTHER
    + LABEL = KIND                  what is said of a thing: what a table calls it, and the kind of its value (values.py)
    - A sentence with {i} and {v}.
    ? A question with {i}?
    = the answer, with {v}; without it, the value alone
"""

import dataclasses
import pathlib
import re

import values
from documents import FILLERS, INTRODUCTIONS, Document, Fact, filled, sentence

ARTICLE = re.compile(r"^(?:(?:der|die|das|ein|eine|le|la|les|un|une|the|a|an) |l')", re.IGNORECASE)


@dataclasses.dataclass
class Relation:
    label: str
    kind: str
    sentences: list = dataclasses.field(default_factory=list)
    questions: list = dataclasses.field(default_factory=list)
    answer: str = "{v}"


@dataclasses.dataclass
class Sheet:
    name: str
    language: str
    titles: list = dataclasses.field(default_factory=list)
    owners: list = dataclasses.field(default_factory=list)
    things: list = dataclasses.field(default_factory=list)
    relations: list = dataclasses.field(default_factory=list)


def read_sheets(language):
    sheets = []
    path = pathlib.Path(__file__).parent / f"sheets.{language}.txt"
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.strip():
            continue
        mark, _, rest = line.partition(" ")
        parts = [part.strip() for part in rest.split("|")]
        if mark == "#":
            sheets.append(Sheet(rest, language))
        elif mark == "title:":
            sheets[-1].titles = parts
        elif mark == "o:":
            sheets[-1].owners.append(parts)
        elif mark == "i:":
            sheets[-1].things = parts
        elif mark == "+":
            label, _, kind = rest.partition(" = ")
            sheets[-1].relations.append(Relation(label, kind))
        elif mark == "-":
            sheets[-1].relations[-1].sentences.append(rest)
        elif mark == "?":
            sheets[-1].relations[-1].questions.append(rest)
        elif mark == "=":
            sheets[-1].relations[-1].answer = rest
        else:
            raise ValueError(f"{path.name}: {line}")
    return sheets


SHEETS = {language: read_sheets(language) for language in ("en", "de", "fr")}


class Thing:
    """One of a sheet, as a subject of a document."""

    world = None

    def __init__(self, name, sheet):
        self.name, self.sheet, self.values = name, sheet, {}

    def answer(self, fact):
        return filled(fact.answer, {"v": self.values[fact.slot]})

    def question(self, fact, rng, name=None):
        return rng.choice(fact.questions)


class Filled:
    """A sheet with things and values: its page, and what it does not say."""

    def __init__(self, sheet, rng, is_alone=True):
        self.sheet, self.rng, language = sheet, rng, sheet.language
        slots = {kind: values.value(rng, language, kind) for kind in ("place", "last", "brand", "code", "room", "year")}
        owner, phrase = rng.choice(sheet.owners)
        self.owner, self.phrase, self.is_alone = filled(owner, slots), filled(phrase, slots), is_alone
        self.slots = slots | {"o": self.owner}
        self.is_named = True  # On its page, so that a question may name it.
        names = [self.named(form) for form in rng.sample(sheet.things, min(len(sheet.things), 8))]
        if len(sheet.things) < 8:
            names += [self.named(rng.choice(sheet.things)) for _ in range(4)]
        names = list(dict.fromkeys(names))
        # The last ones are on other pages.
        count = min(rng.choice([2, 3, 3, 4, 4, 5, 6]), len(names) - 1)
        self.things, self.others = [Thing(name, self) for name in names[:count]], [Thing(name, self) for name in names[count:]]
        used = rng.sample(sheet.relations, rng.choice([1, 2, 2, 3, 3, 4]))
        # As long as a passage of a corpus.
        used = used[: max(1, 14 // count)]
        kinds = {relation.kind for relation in used}
        alike = [one for one in sheet.relations if one not in used and one.kind in kinds]
        if alike and rng.random() < 0.6:
            # Two of one kind: which of them, only the question's words tell.
            used.append(rng.choice(alike))
        self.cells = {}
        for relation in used:
            taken = set()
            told = self.things if rng.random() < 0.5 else rng.sample(self.things, max(1, len(self.things) - rng.choice([1, 1, 2])))
            for thing in told:
                value = values.value(rng, language, relation.kind)
                for _ in range(20):
                    if value not in taken:
                        break
                    value = values.value(rng, language, relation.kind)
                taken.add(value)
                thing.values[relation.label] = value
                self.cells[thing.name, relation.label] = (thing, relation)
        self.used = used

    def named(self, form):
        slots = {"place": values.place(self.rng, "en"), "code": values.code(self.rng, "en"), "drug": values.value(self.rng, "en", "drug")}
        return filled(form, slots)

    def question(self, thing, relation, must_name=False):
        """With whose page it is, where there is another one, and sometimes else."""
        text = filled(self.rng.choice(relation.questions), {"i": thing.name})
        if must_name or not self.is_alone or self.is_named and self.rng.random() < 0.25:
            text = re.sub(r"( ?\?)$", lambda end: f" {self.phrase}{end[1]}", text)
        return text[:1].upper() + text[1:]

    def fact(self, thing, relation):
        return Fact(relation.label, relation.label, questions=[self.question(thing, relation)], answer=relation.answer)

    def unanswered(self):
        """A question of the page's kind whose answer is not on it: mostly one with all its words there."""
        rng, kind = self.rng, self.rng.random()
        relations = self.sheet.relations
        if kind < 0.6:
            # The thing is there, and perhaps what is asked, but of others.
            open_ = [(thing, one) for thing in self.things for one in relations if (thing.name, one.label) not in self.cells]
            near = [each for each in open_ if each[1] in self.used or each[1].kind in {one.kind for one in self.used}]
            if near and rng.random() < 0.75:
                return self.question(*rng.choice(near))
            if open_:
                return self.question(*rng.choice(open_))
        if kind < 0.9 or not self.is_alone or not self.is_named:
            return self.question(rng.choice(self.others), rng.choice(self.used))
        # What is asked is there, but elsewhere.
        other = Filled(self.sheet, rng)
        return other.question(*rng.choice(list(self.cells.values())), must_name=True)

    def page(self):
        rng, language = self.rng, self.sheet.language
        title = filled(rng.choice(self.sheet.titles), self.slots)
        cells = list(self.cells.values())
        by = rng.random()
        style = rng.random()
        if by < 0.45:
            cells.sort(key=lambda cell: [one.name for one in self.things].index(cell[0].name))
        elif by > 0.75:
            rng.shuffle(cells)
        said = [self.said(thing, relation) for thing, relation in cells]
        if style < 0.5:
            for _ in range(rng.choice([0, 0, 1, 2])):
                said.insert(rng.randint(0, len(said)), rng.choice(FILLERS[language]))
            body = " ".join(said)
            if rng.random() < 0.3:
                cut = rng.randint(1, len(said))
                body = (" ".join(said[:cut]) + "\n\n" + " ".join(said[cut:])).strip()
        elif style < 0.65:
            mark = rng.choice(["- ", "* ", "• ", ""])
            body = "\n".join(mark + one for one in said)
        elif style < 0.75:
            body = "\n".join(self.row(relation, [thing for thing in self.things if relation.label in thing.values]) for relation in self.used)
        elif style < 0.85:
            body = "\n".join(
                f"{self.bare(thing)}: " + ", ".join(f"{one.label} {self.shown(thing, one)}" for one in self.used if one.label in thing.values)
                for thing in self.things
                if thing.values
            )
        else:
            head = [{"en": "What", "de": "Was", "fr": "Quoi"}[language]] + [one.label for one in self.used]
            none = rng.choice(["-", "", "?"])
            rows = [
                [self.bare(thing)] + [self.shown(thing, one) if one.label in thing.values else none for one in self.used] for thing in self.things
            ]
            between = [head, ["---"] * len(head), *rows]
            body = "\n".join("| " + " | ".join(row) + " |" for row in between)
        self.is_named = self.owner in title
        if not self.is_named and (not self.is_alone or rng.random() < 0.7):
            begin = sentence(rng.choice(INTRODUCTIONS[language]), {"s": self.owner})
            body = begin + rng.choice(["\n", " ", "\n\n"] if style < 0.5 else ["\n", "\n\n"]) + body
            self.is_named = True
        stated = [(thing, self.fact(thing, relation)) for thing, relation in cells]
        return Document(title, body, stated, self.things, [self])

    def said(self, thing, relation):
        return sentence(self.rng.choice(relation.sentences), {"i": thing.name, "v": thing.values[relation.label]})

    def shown(self, thing, relation):
        return filled(relation.answer, {"v": thing.values[relation.label]})

    def bare(self, thing):
        name = ARTICLE.sub("", thing.name)
        return name[:1].upper() + name[1:]

    def row(self, relation, things):
        between = self.rng.choice(["; ", ", ", " / "])
        return f"{relation.label}: " + between.join(f"{self.bare(thing)} {self.shown(thing, relation)}" for thing in things)


def pages(rng, language, taken=()):
    """One page of a sheet that is not among `taken`, sometimes two, of different owners; none where all are."""
    free = [one for one in SHEETS[language] if one.name not in taken]
    if not free:
        return []
    sheet = rng.choice(free)
    if rng.random() < 0.75:
        return [Filled(sheet, rng).page()]
    two = [Filled(sheet, rng, False) for _ in range(2)]
    if two[0].owner == two[1].owner:
        return pages(rng, language, taken)
    return [one.page() for one in two]
