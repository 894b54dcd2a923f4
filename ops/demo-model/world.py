"""Small fictional worlds in simple English: passages, facts, questions and answers.

Three kinds of passage:
  company page   "Halden Works"    facts about a company, and who holds a role there
  person page    "Mira Vosman"     facts about a person, by name
  note           "Harbour notes"   facts about a person named ONLY by a role
                                   ("The founder of Halden Works keeps 7 herons.")
Types of question:
  T1  a fact that one passage states by name
  T2  bridge: a note states the fact by role, a company page names the role holder, the question has the name only
  T3  comparison of two people's counts; the model answers "Mira Vosman 24, Lora Belgard 18, so Mira Vosman",
      the answer follows "so"
  T4  the way back from a note's fact to the holder's surname; for training only, where it teaches to make the link
A note comes after the company pages that name its role holders; otherwise the order is random.
"""
import random
from dataclasses import dataclass, field

from names import (ANIMALS, COLOURS, COMPANY_KINDS, COMPANY_ROOTS, COUNTS, FIRST_NAMES, FOODS, INSTRUMENTS, MONTHS,
                   NOTE_KINDS, PRODUCTS, ROLES, SEASONS, SURNAMES, THINGS, TOWNS, YEARS, split_of)

PERSON_FACTS = {  # kind: (sentence, question)
    "keep": ("{who} keeps {n} {x}", "How many {x} are kept by {who}?"),
    "own": ("{who} owns {n} {x}", "How many {x} are owned by {who}?"),
    "visit": ("{who} visits {x}", "Which town is visited by {who}?"),
    "play": ("{who} plays {x}", "Which instrument is played by {who}?"),
    "like": ("{who} likes {x}", "Which food is liked by {who}?"),
    "wear": ("{who} wears {x}", "Which colour is worn by {who}?"),
}
COMPANY_FACTS = {
    "based": ("{who} is based in {x}", "Which town is home to {who}?"),
    "make": ("{who} makes {x}", "What is made by {who}?"),
    "year": ("{who} opened in {x}", "What is the opening year of {who}?"),
    "staff": ("{who} employs {x} people", "How many people work for {who}?"),
}
VALUES = {"visit": TOWNS, "play": INSTRUMENTS, "like": FOODS, "wear": COLOURS, "based": TOWNS, "make": PRODUCTS,
          "year": YEARS, "staff": COUNTS, "keep": COUNTS, "own": COUNTS}
COUNTED = {"keep": ANIMALS, "own": THINGS}
FILLERS = ["the {season} market sells {product} and {food}", "it rained for {n} days in {month}",
           "the road was closed in {month}", "the old bridge needs new stones", "the price of {food} rose in {month}",
           "the school won a prize for its garden", "a {colour} flag hangs over the hall",
           "the winter was long and cold", "nobody saw the {animal} this year", "the river was high in {month}"]


@dataclass
class Level:
    """How large a world is. `facts` a person, company; `fillers` sentences a passage, at most; `companies`, `notes` their
    shares of the pages, no notes for T1 alone. Two notes or more, or who is not found elsewhere would be the one of the note."""
    pages: tuple = (6, 10)
    facts: tuple = (2, 4)
    fillers: int = 2
    companies: tuple = (0.3, 0.45)
    notes: tuple = (0.25, 0.45)
    comparisons: bool = True


LEVELS = {
    "seed": Level(pages=(4, 5), facts=(1, 2), fillers=0, companies=(0.4, 0.5), notes=(0.4, 0.5), comparisons=False),
    "bridge": Level(pages=(4, 6), facts=(2, 3), fillers=0, companies=(0.4, 0.5), notes=(0.4, 0.5), comparisons=False),
    "compare": Level(pages=(5, 7), facts=(2, 3), fillers=1, companies=(0.35, 0.45), notes=(0.35, 0.45)),
    "full": Level(),
}


@dataclass
class Page:
    title: str
    kind: str                                     # company, person or note
    sentences: list = field(default_factory=list)
    after: list = field(default_factory=list)     # pages that must stand before this one

    def as_dict(self):
        return {"title": self.title, "text": " ".join(s[0].upper() + s[1:] + "." for s in self.sentences)}


@dataclass
class Question:
    text: str
    answer: str                                   # what the model is to write
    type: str
    kind: str
    link: list = field(default_factory=list)      # places of the company pages that name the role holders
    final: str = ""                               # the answer proper, where it differs

    def gold(self):
        return self.final or self.answer


class World:
    """One world: `pages` in order and `questions`. The same (rng state, split, level) gives the same world."""

    def __init__(self, rng, split="train", level=LEVELS["full"], pages=None):
        self.rng, self.split, self.level = rng, split, level
        self._used, self._facts, self._questions = set(), [], []
        # Few kinds of fact a world, so that a fact is told of several people and only its subject tells which is asked for.
        counted = rng.choice(list(COUNTED))
        self._kinds = [counted] + rng.sample([kind for kind in PERSON_FACTS if kind != counted], 2)
        self._things = {kind: rng.choice(things) for kind, things in COUNTED.items()}
        count = pages or rng.randint(*level.pages)
        notes = max(2, round(count * rng.uniform(*level.notes))) if level.notes else 0
        companies = max(2 if notes else 1, round(count * rng.uniform(*level.companies)))
        people = max(0 if notes else 1, count - notes - companies)
        holders = []
        made = [self._company(holders) for _ in range(companies)]
        made += self._notes(notes, holders)
        made += [self._person_page(holders) for _ in range(people)]
        self.pages = self._order(made)
        self.place = {id(p): i for i, p in enumerate(self.pages)}

    # names -------------------------------------------------------------------------------------------------
    def _pair(self, firsts, seconds):
        """An unused combination that belongs to this world's split; its telling word is not used twice."""
        while True:
            i, j = self.rng.randrange(len(firsts)), self.rng.randrange(len(seconds))
            name = firsts[i], seconds[j]
            key = name[1] if seconds is SURNAMES else name[0]
            if split_of(i, j) == self.split and key not in self._used:
                self._used.add(key)
                return " ".join(name)

    def _amount(self, facts):
        return min(self.rng.randint(*self.level.facts), facts)

    def _value(self, kind):
        """What is said in a fact of this kind, and of nobody else in this world."""
        while True:
            value = str(self.rng.choice(VALUES[kind]))
            if (kind, value) not in self._used:
                self._used.add((kind, value))
                return value

    # pages -------------------------------------------------------------------------------------------------
    def _company(self, holders):
        name = self._pair(COMPANY_ROOTS, COMPANY_KINDS)
        page = Page(name, "company")
        for kind in self.rng.sample(list(COMPANY_FACTS), self._amount(4)):
            sentence, question = COMPANY_FACTS[kind]
            value = self._value(kind)
            page.sentences.append(sentence.format(who=name, x=value))
            self._questions.append((Question(question.format(who=name), value, "T1", kind), []))
        role, person = self.rng.choice(ROLES), self._pair(FIRST_NAMES, SURNAMES)
        page.sentences.append(f"the {role} of {name} is {person}")
        self._questions.append((Question(f"Who is the {role} of {name}?", person, "T1", "role"), []))
        holders.append((person, f"the {role} of {name}", page))
        return self._finish(page)

    def _notes(self, count, holders):
        """Notes about role holders, each holder in one note, one to three holders a note."""
        pages = [Page(t, "note") for t in self.rng.sample(NOTE_KINDS, count)]
        chosen = self.rng.sample(holders, min(len(holders), max(count, len(holders) * 2 // 3)))
        for i, page in enumerate(pages):
            for person, described, company in chosen[i::count] if i < len(chosen) else []:
                self._tell(page, person, described, company)
                page.after.append(company)
            if not page.sentences:
                page.sentences.append(self._filler())
            self._finish(page)
        return pages

    def _person_page(self, holders):
        told = {fact["who"] for fact in self._facts}
        free = [h[0] for h in holders if h[0] not in told]
        person = self.rng.choice(free) if free and self.rng.random() < 0.2 else self._pair(FIRST_NAMES, SURNAMES)
        page = Page(person, "person")
        self._tell(page, person, person, None)
        return self._finish(page)

    def _tell(self, page, person, described, company):
        """Adds facts about `person`, called `described`, to the page. Counts come often, for comparisons."""
        for kind in self.rng.sample(self._kinds, self._amount(3)):
            sentence, question = PERSON_FACTS[kind]
            answer = self._value(kind)
            count, thing = (int(answer), self._things[kind]) if kind in COUNTED else (None, answer)
            page.sentences.append(sentence.format(who=described, n=count, x=thing))
            link = [company] if company else []
            self._questions.append((Question(question.format(who=person, x=thing), answer, "T2" if link else "T1", kind), link))
            if link:
                told = sentence.format(who="", n=count, x=thing).strip()
                self._questions.append((Question(f"Which family {told}?", person.split()[1], "T4", "family"), link))
            self._facts.append({"kind": kind, "who": person, "n": count, "x": thing, "link": link})

    def _filler(self):
        pick = self.rng.choice
        return pick(FILLERS).format(season=pick(SEASONS), product=pick(PRODUCTS), food=pick(FOODS), n=pick(COUNTS),
                                    month=pick(MONTHS), colour=pick(COLOURS), animal=pick(ANIMALS))

    def _finish(self, page):
        self.rng.shuffle(page.sentences)
        for _ in range(self.rng.randint(0, self.level.fillers)):
            page.sentences.insert(self.rng.randint(0, len(page.sentences)), self._filler())
        return page

    def _order(self, pages):
        place = {id(p): self.rng.random() for p in pages}
        for page in pages:
            floor = max((place[id(c)] for c in page.after), default=0.0)
            if place[id(page)] < floor:
                place[id(page)] = self.rng.uniform(floor, 1.0)
        return sorted(pages, key=lambda p: place[id(p)])

    # questions ---------------------------------------------------------------------------------------------
    def questions(self):
        """All questions of the world, in the order of their making."""
        out = []
        for question, link in self._questions + (self._comparisons() if self.level.comparisons else []):
            question.link = [self.place[id(p)] for p in link]
            out.append(question)
        return out

    def _comparisons(self):
        counts, out = [f for f in self._facts if f["kind"] in COUNTED], []
        for i, one in enumerate(counts):
            for two in counts[i + 1:]:
                if (one["kind"], one["x"]) != (two["kind"], two["x"]) or one["n"] == two["n"] or one["who"] == two["who"]:
                    continue
                a, b = (one, two) if self.rng.random() < 0.5 else (two, one)
                most = a["who"] if a["n"] > b["n"] else b["who"]
                text = f"Who {one['kind']}s more {one['x']}, {a['who']} or {b['who']}?"
                answer = f"{a['who']} {a['n']}, {b['who']} {b['n']}, so {most}"
                out.append((Question(text, answer, "T3", "compare", final=most), one["link"] + two["link"]))
        return out


def held_out(split, each, seed, level="full", types=("T1", "T2", "T3")):
    """`each` questions of each type, at most one of a type a world, in the evaluation format."""
    rng, found = random.Random(f"{split}:{seed}"), {t: [] for t in types}
    while min(map(len, found.values())) < each:
        world = World(rng, split, LEVELS[level])
        pool = world.questions()
        for t, items in found.items():
            fit = [q for q in pool if q.type == t and (t != "T3" or q.link)]
            if fit and len(items) < each:
                q = rng.choice(fit)
                items.append({"ctxs": [p.as_dict() for p in world.pages], "question": q.text, "answers": [q.gold()],
                              "type": t, "kind": q.kind})
    items = [item for t in types for item in found[t]]
    rng.shuffle(items)
    return items
