"""The workload: questions over passages that were met before, in another order each time. The same token ids for all."""

from __future__ import annotations

import random
from dataclasses import dataclass

from peers_shapes import ModelShape, word

SYSTEM_TOKENS = 32
QUESTION_TOKENS = 64
# The tokens below are a model's own: unknown, begin, end.
FIRST_TOKEN = 3


@dataclass(frozen=True)
class Question:
    """A prompt: system prompt, passages, question; token ids each."""

    system: tuple[int, ...]
    passages: tuple[tuple[int, ...], ...]
    question: tuple[int, ...]

    def ids(self) -> list[int]:
        """The prompt."""
        return [*self.system, *(token for passage in self.passages for token in passage), *self.question]


def text(ids: tuple[int, ...]) -> str:
    """What the model's tokenizer makes these ids of."""
    return " ".join(map(word, ids))


class Workload:
    """A corpus, and questions over some of its passages. Equal seeds and sizes give equal questions."""

    def __init__(self, shape: ModelShape, tokens: int, passages: int, corpus: int, seed: int):
        self.random = random.Random(f"{seed} {tokens} {passages} {corpus}")
        self.shape, self.tokens, self.count = shape, tokens, passages
        self.passage_tokens = (tokens - SYSTEM_TOKENS - QUESTION_TOKENS) // passages
        self.system = self.draw(SYSTEM_TOKENS)
        self.corpus = [self.draw(self.passage_tokens) for _ in range(corpus)]
        self.orders: set[tuple[int, ...]] = set()

    def draw(self, count: int) -> tuple[int, ...]:
        return tuple(self.random.randrange(FIRST_TOKEN, self.shape.vocab) for _ in range(count))

    def question(self, order: tuple[int, ...]) -> Question:
        """Of these passages, and a question that nobody asked before. It has what the division left over, too."""
        self.orders.add(order)
        rest = self.tokens - SYSTEM_TOKENS - self.count * self.passage_tokens
        return Question(self.system, tuple(self.corpus[index] for index in order), self.draw(rest))

    def first(self) -> list[Question]:
        """Questions that meet every passage of the corpus, as few as do: what was asked before."""
        starts = range(0, len(self.corpus), self.count)
        return [
            self.question(tuple(range(start, start + self.count)))
            for start in (min(start, len(self.corpus) - self.count) for start in starts)
        ]

    def shuffled(self, count: int) -> list[Question]:
        """Questions over known passages, drawn and ordered at random; no order comes twice."""
        found = []
        while len(found) < count:
            order = tuple(self.random.sample(range(len(self.corpus)), self.count))
            if order not in self.orders:
                found.append(self.question(order))
        return found
