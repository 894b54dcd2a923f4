"""What the reader is trained on: passages, and questions about them with their answers. Everything follows from a seed."""

import dataclasses
import re

import values
from documents import WORLDS, Document, Subject, document, table
from events import EVENTS, Happened, page
from sheets import pages

SYSTEM = "Answer each question from the passages."
"""The program's own (`PromptFormat` in actors/src/question/prompt.rs), as are the next two."""
PASSAGE = "Passage: {title} | {text}\n"
QUESTION = "Question: {question}\nAnswer:"
OTHER_SYSTEMS = [
    "You are a helpful assistant. Answer from the passages.",
    "Answer the question with the help of the passages below, briefly.",
    "You answer questions about the user's documents.",
]
REFUSALS = {"en": "The passages do not say.", "de": "Das steht nicht in den Passagen.", "fr": "Les passages ne le disent pas."}


@dataclasses.dataclass
class Sample:
    """Passages and conversations about them; each conversation is a list of (question, answer)."""

    system: str
    passages: list  # of (title, text)
    conversations: list


class Samples:
    def __init__(self, rng, questions=6, long=0.65):
        """`long`: the share of prompts whose passages have the length of a corpus's."""
        self.rng, self.questions, self.long = rng, questions, long

    def filler(self):
        """A passage about something else, for a primer."""
        if self.rng.random() < 0.5:
            one = page(self.rng.sample(EVENTS["en"], self.rng.randint(2, 5)), self.rng)
        else:
            one = document(Subject(self.rng.choice(WORLDS["en"]), self.rng), self.rng)
        return one.title, one.text

    def sample(self):
        rng = self.rng
        language = rng.choices(["en", "de", "fr"], [56, 24, 20])[0]
        documents = self.documents(language)
        conversations = {}
        for _ in range(2 * self.questions):
            turns = self.conversation(documents, language)
            conversations.setdefault(turns[0][0], turns)
        conversations = list(conversations.values())[: self.questions]
        system = SYSTEM if rng.random() < 0.9 else rng.choice(OTHER_SYSTEMS)
        return Sample(system, [(one.title, one.text) for one in documents], conversations)

    def documents(self, language):
        rng = self.rng
        worlds = WORLDS[language]
        world = rng.choice(worlds)
        found = []
        count = rng.choice([2, 2, 2, 3, 3, 4])
        self.newest = None
        self.events = rng.sample(EVENTS[language], len(EVENTS[language]))
        if rng.random() < 0.15:
            found = self.contradicting(world)
        elif rng.random() < 0.2 and language == "en":
            found = self.two_steps(world)
        while len(found) < count:
            if rng.random() < 0.4:
                found += pages(rng, language, self.sheets_of(found))
                continue
            if len(self.events) > 5 and rng.random() < 0.4:
                found.append(page([self.events.pop() for _ in range(rng.choice([1, 2, 2, 3, 4, 5]))], rng, language))
                continue
            kind = rng.random()
            if found and kind < 0.12:
                # More about the same.
                subject = found[0].subjects[0]
                if subject.world is None:
                    continue
                taken = {fact.slot for one in found for about, fact in one.stated if about is subject}
                rest = [fact for fact in subject.world.facts if fact.slot not in taken]
                if len(rest) < 3 or self.newest:
                    continue
                found.append(document(subject, rng, rng.sample(rest, rng.choice([1, 2, 3]))))
                continue
            other = world if kind < 0.5 else rng.choice(worlds)
            one = table(other, rng) if rng.random() < 0.12 else document(Subject(other, rng), rng)
            names = {subject.name for page in found for subject in page.subjects}
            if not any(subject.name in names for subject in one.subjects):
                found.append(one)
        if len(self.events) > 12 and rng.random() < 0.5:
            # Longer pages: of two that have nothing to do with one another.
            for _ in range(rng.choice([1, 1, 2])):
                more = page([self.events.pop() for _ in range(3)], rng, language)
                one = rng.choice(found)
                one.text += f"\n\n{more.text}"
                one.add(more)
        if rng.random() < self.long:
            for one in found:
                self.lengthen(one, found, language, rng.randint(70, 170))
        for one in found:
            if self.events and rng.random() < 0.2:
                # Something else on the same page.
                happened = Happened(self.events.pop(), rng, language)
                one.text = f"{happened.text} {one.text}" if rng.random() < 0.3 else f"{one.text}\n\n{happened.text}"
                one.stated += [(happened, fact) for fact in happened.facts()]
                one.subjects = [*one.subjects, happened]
        rng.shuffle(found)
        return found

    def lengthen(self, page_, found, language, words):
        """More on a page, until it has so many words, as passages of a corpus have: other things, and of the same kind of answers."""
        rng = self.rng
        while len(page_.text.split()) < words:
            kind = rng.random()
            if self.events and kind < 0.4:
                more = page([self.events.pop() for _ in range(min(len(self.events), rng.choice([1, 2, 3])))], rng, language)
            elif kind < 0.65 and len(made := pages(rng, language, self.sheets_of(found))) == 1:
                more = made[0]
            else:
                more = document(Subject(rng.choice(WORLDS[language]), rng), rng)
                names = {subject.name for one in found for subject in one.subjects}
                if any(subject.name in names for subject in more.subjects):
                    continue
            head = f"## {more.title}\n\n" if rng.random() < 0.3 else ""
            between = rng.choice(["\n\n", "\n\n", "\n", " "])
            page_.text += ("\n\n" if head else between) + head + more.text
            page_.add(more)

    def sheets_of(self, found):
        return {filled.sheet.name for one in found for filled in one.sheets}

    def contradicting(self, world):
        """Two pages of different dates about the same; the later one holds."""
        rng, language = self.rng, world.language
        old = Subject(world, rng)
        new = Subject(world, rng, old.name)
        facts = rng.sample(world.facts, rng.choice([3, 4, 5]))
        changed = facts[: rng.choice([1, 2])]
        if any(old.answer(fact) == new.answer(fact) for fact in changed):
            return self.contradicting(world)
        first = rng.randint(2015, 2025)
        months = values.MONTHS[language]
        begin, end = sorted(rng.sample(range(24), 2))
        days = [f"{rng.randint(1, 28)} {months[at % 12]} {first + at // 12}" for at in (begin, end)]
        for slot in new.slots:
            if slot not in {fact.slot for fact in changed}:
                new.slots[slot] = old.slots[slot]
        self.newest = (old, changed)
        return [document(old, rng, facts, days[0]), document(new, rng, changed + facts[3:], days[1], True)]

    def two_steps(self, world):
        """A page that says who, and a card of that person."""
        rng = self.rng
        facts = [fact for fact in world.facts if fact.role]
        if not facts:
            return []
        subject, fact = Subject(world, rng), rng.choice(facts)
        cards = next(one for one in WORLDS["en"] if one.name == "person")
        person = Subject(cards, rng, subject.slots[fact.slot])
        if world is cards:
            return []
        rest = rng.sample([one for one in world.facts if one is not fact], 2)
        known = rng.sample(cards.facts, rng.choice([2, 3, 4]))
        person.reached = (subject, fact)
        return [document(subject, rng, [fact, *rest]), document(person, rng, known)]

    def conversation(self, documents, language):
        rng = self.rng
        first = self.asked(documents, language)
        if rng.random() > 0.15 or first[2] is None:
            return [first[:2]]
        # A second turn about the same.
        subject, used = first[2], first[3]
        again = [(about, fact) for one in documents for about, fact in one.stated if about is subject and fact is not used]
        if not again or language != "en":
            return [first[:2]]
        about, fact = rng.choice(again)
        if self.is_old(about, fact):
            return [first[:2]]
        name = None if subject.world is None or subject.world.name == "person" else "it"
        question = about.question(fact, rng, name)
        question = rng.choice([question, "And " + question[0].lower() + question[1:]])
        return [first[:2], (question, self.worded(about, fact))]

    def is_old(self, subject, fact):
        return self.newest is not None and subject is self.newest[0] and fact in self.newest[1]

    def worded(self, subject, fact):
        return subject.answer(fact) + "."

    def asked(self, documents, language):
        """A question, its answer, its subject and fact."""
        rng = self.rng
        kind = rng.random()
        if kind < 0.23:
            return self.unanswerable(documents, language)
        if kind < 0.32 and (compared := self.compared(documents)):
            return compared
        stated = [(subject, fact, one) for one in documents for subject, fact in one.stated if not self.is_old(subject, fact)]
        if self.newest and rng.random() < 0.6:
            stated = [each for each in stated if each[0].name == self.newest[0].name and each[1] in self.newest[1]] or stated
        if rng.random() < 0.6:
            stated = [each for each in stated if hasattr(each[0], "reached")] or stated
        if not stated:
            return self.unanswerable(documents, language)
        if rng.random() < 0.5:
            # A list has more facts than a letter, but is not asked about more.
            page = rng.choice([one for one in documents if any(each[2] is one for each in stated)])
            stated = [each for each in stated if each[2] is page]
        subject, fact, page = rng.choice(stated)
        name = None
        if hasattr(subject, "reached") and rng.random() < 0.7:
            other, role = subject.reached
            name = other.world and role.role.replace("{s}", other.name)
        question = self.shortened(subject, fact, documents) if name is None else None
        return question or subject.question(fact, rng, name), self.worded(subject, fact), subject, fact

    def shortened(self, subject, fact, documents):
        """The question without the subject's name, where nothing else could be meant."""
        rng = self.rng
        if subject.world is None:
            return None
        alike = {about.name for one in documents for about in one.subjects if about.world is subject.world}
        labels = {about.name for one in documents for about, other in one.stated if other.label == fact.label}
        if len(alike) > 1 or len(labels) > 1 or rng.random() < 0.6:
            return None
        form = rng.choice(fact.questions)
        short = re.sub(r"(,| of| at| for| from| under| in| about| de)? ?\{s\}(?='?s? ?[?.])", "", form, count=1)
        if short == form or "{s}" in short or re.search(r"\{s\}", form) is None or not re.search(r"(,| of| at| for| under| de) \{s\}", form):
            return None
        return short

    def compared(self, documents):
        rng = self.rng
        stated = [(subject, fact) for one in documents for subject, fact in one.stated if fact.comparison]
        pairs = [(a, b, fact) for a, fact in stated for b, other in stated if other is fact and a.name < b.name]
        if not pairs:
            return None
        a, b, fact = rng.choice(pairs)
        sizes = [float(re.sub(r"[^\d.]", "", subject.slots[fact.slot]) or 0) for subject in (a, b)]
        currencies = {re.sub(r"[\d.,]", "", subject.slots[fact.slot]) for subject in (a, b)}
        if sizes[0] == sizes[1] or len(currencies) > 1:
            return None
        best = a if sizes[0] > sizes[1] else b
        first, second = (a, b) if rng.random() < 0.5 else (b, a)
        word = {"en": "or", "de": "oder", "fr": "ou"}[a.world.language]
        return f"{fact.comparison}, {first.name} {word} {second.name}?", best.name + ".", None, None

    def unanswerable(self, documents, language):
        """What is not said of somebody who is there, or of somebody who is not."""
        rng = self.rng
        sheets = [one for page in documents for one in page.sheets]
        subjects = [subject for one in documents for subject in one.subjects]
        near = [one for one in subjects if isinstance(one, Happened) and one.event.open]
        if near and rng.random() < (0.3 if sheets else 0.5):
            return rng.choice(near).unanswered(rng), REFUSALS[language], None, None
        if sheets and rng.random() < 0.7:
            return rng.choice(sheets).unanswered(), REFUSALS[language], None, None
        subject = rng.choice(subjects)
        if subject.world is None or (self.events and rng.random() < 0.15):
            if not self.events:
                other = Subject(rng.choice(WORLDS[language]), rng)
                if other.name in {one.name for one in subjects}:
                    return self.unanswerable(documents, language)
                return other.question(rng.choice(other.world.facts), rng), REFUSALS[language], None, None
            other = Happened(rng.choice(self.events), rng, language)
            return other.question(rng.choice(other.facts()), rng), REFUSALS[language], None, None
        said = {fact.slot for one in documents for about, fact in one.stated if about.name == subject.name}
        rest = [fact for fact in subject.world.facts if fact.slot not in said]
        if rng.random() < 0.55 and rest:
            return subject.question(rng.choice(rest), rng), REFUSALS[language], None, None
        other = Subject(rng.choice([subject.world, rng.choice(WORLDS[language])]), rng)
        if other.name in {one.name for one in subjects}:
            return self.unanswerable(documents, language)
        return other.question(rng.choice(other.world.facts), rng), REFUSALS[language], None, None


__all__ = ["Document", "Sample", "Samples"]

if __name__ == "__main__":
    import random
    import sys

    made = Samples(random.Random(int(sys.argv[1]) if len(sys.argv) > 1 else 1))
    for _ in range(3):
        one = made.sample()
        for title, text in one.passages:
            print(PASSAGE.format(title=title, text=text), end="")
        for turns in one.conversations:
            print("   ", turns)
        print()
