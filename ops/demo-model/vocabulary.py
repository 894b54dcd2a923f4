"""The tokenizer: one token a word of the fictional worlds, merged bytes for every other text, never `<unk>`.

It is a byte-level BPE whose model has `ignore_merges`: a word that is in the vocabulary as a whole is one token, any other
word falls back to a few hundred merges learned from English prose, and in the end to single bytes.
"""
import json
import pydoc_data.topics
import random
import re
import sys

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

import names
import prompt
from world import LEVELS, World

SPECIAL = ["<pad>", "<s>", "</s>"]
MERGED = 512  # entries besides words: specials, 256 bytes, merges
_PIECE = re.compile(r" ?[A-Za-z]+| ?[0-9]+| ?[^\sA-Za-z0-9]+|\n|\s+")


def _pre_tokenizer():
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex("\n"), "isolated"), byte_level])


def words():
    """Every piece (" Vosman", "Passage", ":") that a world or the template can contain, in a fixed order."""
    found = set()
    rng = random.Random("vocabulary")
    for _ in range(3000):
        world = World(rng, "train", LEVELS["full"])
        text = prompt.SYSTEM + "".join(prompt.passage(p.as_dict()) for p in world.pages)
        text += "".join(prompt.question(q.text) + prompt.answer(q.answer) for q in world.questions())
        found |= set(_PIECE.findall(text))
    lists = [names.FIRST_NAMES, names.SURNAMES, names.COMPANY_ROOTS, names.TOWNS, names.YEARS, range(100)]
    return sorted(found | {f" {w}" for group in lists for w in group})


def build(path):
    """Writes `tokenizer.json`; returns the number of entries."""
    base = Tokenizer(models.BPE())
    base.pre_tokenizer = _pre_tokenizer()
    trainer = trainers.BpeTrainer(vocab_size=MERGED, special_tokens=SPECIAL, show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    base.train_from_iterator(sorted(pydoc_data.topics.topics.values()), trainer)
    model = json.loads(base.to_str())["model"]
    vocab = dict(model["vocab"])
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    for word in words():
        vocab.setdefault(byte_level.pre_tokenize_str(word)[0][0], len(vocab))
    tokenizer = Tokenizer(models.BPE(vocab, [tuple(m) for m in model["merges"]], ignore_merges=True))
    tokenizer.add_special_tokens(SPECIAL)
    tokenizer.pre_tokenizer = _pre_tokenizer()
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(path)
    return len(vocab)


class Encoder:
    """The tokenizer with a memory of pieces: the same ids, faster on generated text."""

    def __init__(self, path):
        self.tokenizer, self.known = Tokenizer.from_file(str(path)), {}
        sample = prompt.passage({"title": "Halden Works", "text": "Mira Vosman keeps 7 herons, in 1874. O_o 1234"})
        assert self(sample) == self.tokenizer.encode(sample).ids

    def ids(self, *pieces):
        """The tokens of pieces that are one token each, by piece."""
        return {piece: self(piece)[0] for piece in pieces}

    def __call__(self, text):
        ids = []
        for piece in _PIECE.findall(text):
            if piece not in self.known:
                self.known[piece] = self.tokenizer.encode(piece).ids
            ids += self.known[piece]
        return ids


if __name__ == "__main__":
    print(build(sys.argv[1]), "entries")
