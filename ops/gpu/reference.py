"""The same model in transformers: prompts as ragstone makes them, and what it thinks of each token of an answer."""

from __future__ import annotations

import json
from pathlib import Path

import torch
import transformers

# ragstone's own, which golden.py leaves as they are.
SYSTEM = "Answer each question from the passages.\n"
PLACE = "\x02place\x02"


def passage_text(passage: dict) -> str:
    return f"Passage: {passage['title']} | {passage['text']}\n"


def question_text(question: str) -> str:
    return f"Question: {question}\nAnswer:"


class Prompts:
    """The tokens of prompts: system prompt, passages and question are tokenized apart, as ragstone does."""

    def __init__(self, folder: Path):
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        config = folder / "tokenizer_config.json"
        stated = json.loads(config.read_text()).get("add_bos_token") if config.exists() else None
        added = self.tokenizer.encode("a")[:1] == [self.tokenizer.bos_token_id]
        self.bos = self.tokenizer.bos_token if (added if stated is None else stated) else ""
        self.by_bytes: dict[bytes, list[int]] = {}
        for token, id in self.tokenizer.get_vocab().items():
            self.by_bytes.setdefault(self.bytes_of(token), []).append(id)

    def parts(self, passages: list[dict], question: str) -> list[list[int]]:
        """System prompt, each passage, question."""
        tokenizer = self.tokenizer
        begin, end = SYSTEM, question_text(question)
        if tokenizer.chat_template:
            turns = [{"role": "system", "content": SYSTEM.rstrip()}, {"role": "user", "content": PLACE + end}]
            text = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
            begin, end = text.split(PLACE)
        else:
            begin = self.bos + begin
        texts = [begin, *map(passage_text, passages), end]
        return [tokenizer.encode(text, add_special_tokens=False) for text in texts]

    def id_of(self, spelled: list[int]) -> int | None:
        """The token of these bytes; None where there is not exactly one."""
        ids = self.by_bytes.get(bytes(spelled), [])
        return ids[0] if len(ids) == 1 else None

    def bytes_of(self, token: str) -> bytes:
        if not hasattr(self, "letters"):
            # Tokenizers that work on bytes write each as a letter (GPT-2's table); others write a space as a low line.
            spelled = self.tokenizer.backend_tokenizer.to_str()
            self.letters = byte_letters() if '"ByteLevel"' in spelled else None
        if token in self.tokenizer.all_special_tokens:
            return token.encode()
        if self.letters is not None:
            return bytes(self.letters[letter] for letter in token) if all(letter in self.letters for letter in token) else token.encode()
        if len(token) == 6 and token.startswith("<0x"):
            return bytes([int(token[3:5], 16)])
        return token.replace("\u2581", " ").encode()


def byte_letters() -> dict[str, int]:
    """GPT-2's table: printable bytes stand for themselves, the others for letters from 256 on."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + at): byte for at, byte in enumerate(others)}


class Reference:
    """The model in one dtype."""

    def __init__(self, folder: Path, dtype: torch.dtype, device: str):
        torch.backends.cuda.matmul.allow_tf32 = False
        self.device = device
        self.model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).to(device).eval()

    @torch.inference_mode()
    def logprobs(self, prompt: list[int], answer: list[int]) -> torch.Tensor:
        """Of every token of the vocabulary at each place of the answer, the tokens before it being given: [answer, vocabulary]."""
        ids = torch.tensor([prompt + answer[:-1]], device=self.device)
        logits = self.model(ids, logits_to_keep=len(answer)).logits[0]
        return torch.log_softmax(logits.float(), dim=-1).cpu()


def stored_dtype(folder: Path) -> torch.dtype:
    """What the checkpoint's weights are."""
    config = json.loads((folder / "config.json").read_text())
    name = config.get("dtype") or config.get("torch_dtype") or "float32"
    return getattr(torch, name)


def write_embedder(folder: Path) -> Path:
    """The least embedding model, of random weights: a service needs one, and nothing is searched for here."""
    config = transformers.BertConfig(
        vocab_size=3, hidden_size=64, num_hidden_layers=1, num_attention_heads=2, intermediate_size=128, max_position_embeddings=256
    )
    transformers.BertModel(config, add_pooling_layer=False).save_pretrained(folder)
    special = [("[UNK]", 0), ("[CLS]", 1), ("[SEP]", 2)]
    around = [{"SpecialToken": {"id": name, "type_id": 0}} for name, _ in special]
    text = {"Sequence": {"id": "A", "type_id": 0}}
    other = {"Sequence": {"id": "B", "type_id": 0}}
    tokens = {name: {"id": name, "ids": [id], "tokens": [name]} for name, id in special[1:]}
    tokenizer = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"}, "decoder": None,
        "post_processor": {"type": "TemplateProcessing", "single": [around[1], text, around[2]],
                           "pair": [around[1], text, around[2], other, around[2]], "special_tokens": tokens},
        "model": {"type": "WordLevel", "vocab": dict(special), "unk_token": "[UNK]"},
    }  # fmt: skip
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    return folder
