"""Free-running answers on held-out worlds: exact match and F1 by question type, with and without the passages."""
import argparse
import collections
import json
import re
import string
from pathlib import Path

import torch

import prompt
from world import LEVELS, held_out

EOS = 2


def prompt_ids(encode, item, passages=True):
    ids = [1] + encode(prompt.SYSTEM)
    for page in item["ctxs"] if passages else []:
        ids += encode(prompt.passage(page))
    return ids + encode(prompt.question(item["question"]))


def words(text):
    """SQuAD normalisation; of a comparison only what follows "so"."""
    text = "".join(c for c in text.split(", so ")[-1].lower() if c not in string.punctuation)
    return re.sub(r"\b(a|an|the)\b", " ", text).split()


def f1(said, golds):
    def one(a, b):
        shared = sum((collections.Counter(a) & collections.Counter(b)).values())
        return 2 * shared / (len(a) + len(b)) if shared else 0.0
    return max(one(words(said), words(g)) for g in golds)


@torch.no_grad()
def answer(model, encode, ids, limit=16):
    """Greedy decoding; the whole prompt is computed again for each token, which is fast enough here."""
    device, said = model.embed.weight.device, []
    while len(said) < limit:
        row = torch.tensor([ids + said], device=device)
        n = row.shape[1]
        mask = torch.ones(n, n, dtype=torch.bool, device=device).tril()[None, None]
        token = int(model(row, torch.arange(n, device=device)[None], mask, torch.tensor([n - 1], device=device)).argmax())
        if token == EOS:
            break
        said.append(token)
    return encode.tokenizer.decode(said).strip()


def exact(said, golds):
    return float(words(said) in [words(g) for g in golds])


def free_running(model, encode, items, passages=True, scores=(exact,)):
    """Means by score and type, {"exact": {"T1": ...}}, of the model's own greedy answers."""
    found = {score.__name__: collections.defaultdict(list) for score in scores}
    for item in items:
        said = answer(model, encode, prompt_ids(encode, item, passages))
        for score in scores:
            found[score.__name__][item["type"]].append(score(said, item["answers"]))
    return {name: {t: round(sum(v) / len(v), 3) for t, v in sorted(by.items())} for name, by in found.items()}


def load(folder):
    """The exported model (bf16 weights, widened to f32) and its tokenizer."""
    from safetensors.torch import load_file

    from model import Model
    from vocabulary import Encoder
    folder = Path(folder)
    config, weights = json.loads((folder / "config.json").read_text()), load_file(folder / "model.safetensors")
    model, heads = Model(config), lambda i, names, part: torch.cat(
        [weights[f"model.layers.{i}.{part}.{n}_proj.weight"] for n in names])
    state = {"embed.weight": weights["model.embed_tokens.weight"], "norm.weight": weights["model.norm.weight"]}
    for i in range(config["num_hidden_layers"]):
        state |= {f"layers.{i}.qkv.weight": heads(i, "qkv", "self_attn"), f"layers.{i}.out.weight": heads(i, "o", "self_attn"),
                  f"layers.{i}.gate_up.weight": heads(i, ("gate", "up"), "mlp"),
                  f"layers.{i}.down.weight": heads(i, ("down",), "mlp"),
                  f"layers.{i}.norm1.weight": weights[f"model.layers.{i}.input_layernorm.weight"],
                  f"layers.{i}.norm2.weight": weights[f"model.layers.{i}.post_attention_layernorm.weight"]}
    model.load_state_dict({n: t.float() for n, t in state.items()})
    return model.eval(), Encoder(folder / "tokenizer.json")


class Transformers:
    """What transformers makes of the exported folder, in f32."""

    def __init__(self, folder):
        from transformers import AutoTokenizer, LlamaForCausalLM
        self.model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        self.tokenizer = AutoTokenizer.from_pretrained(folder)

    @torch.no_grad()
    def answer(self, ids):
        row = torch.tensor([ids])
        said = self.model.generate(row, attention_mask=torch.ones_like(row), max_new_tokens=16, do_sample=False,
                                   eos_token_id=EOS, pad_token_id=0)[0, len(ids):]
        return self.tokenizer.decode(said, skip_special_tokens=True).strip()


def same_answers(folder, encode, items, path):
    """Share of the answers in a file of `ragstone eval --mode full --answers FILE` that are those of transformers."""
    theirs = Transformers(folder)
    lines = [line for line in map(json.loads, open(path)) if line["mode"] == "full"]
    assert all(line["question"] == items[line["item"]]["question"] for line in lines), "answers to other questions: give their --data"
    same = [line["answer"] == theirs.answer(prompt_ids(encode, items[line["item"]])) for line in lines]
    return {"answers": len(same), "same": sum(same) / len(same)}


def same_as_transformers(folder, model, encode, items):
    """Largest logit difference, share of equal greedy answers, share of prompts tokenized alike whole and in pieces."""
    theirs, worst, answers, pieces = Transformers(folder), 0.0, 0, 0
    for item in items:
        ids = prompt_ids(encode, item)
        text = prompt.BOS + prompt.SYSTEM + "".join(map(prompt.passage, item["ctxs"])) + prompt.question(item["question"])
        pieces += theirs.tokenizer(text, add_special_tokens=False)["input_ids"] == ids
        row, n = torch.tensor([ids]), len(ids)
        with torch.no_grad():
            mine = model(row, torch.arange(n)[None], torch.ones(n, n, dtype=torch.bool).tril()[None, None])
            worst = max(worst, float((mine - theirs.model(row).logits).abs().max()))
        answers += theirs.answer(ids) == answer(model, encode, ids)
    return {"largest_logit_difference": worst, "same_answers": answers / len(items), "same_tokens": pieces / len(items)}


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--checkpoint", default="checkpoint")
    p.add_argument("--each", type=int, default=100, help="questions of each type")
    p.add_argument("--split", default="test", choices=("dev", "test"))
    p.add_argument("--level", default="full")
    p.add_argument("--check", type=int, default=20, help="questions to compare with transformers")
    p.add_argument("--threads", type=int, default=1)
    p.add_argument("--data", help="a dataset in the evaluation format instead of new worlds")
    p.add_argument("--compare", metavar="FILE", help="only compare the answers that `ragstone eval DATA --mode full --answers FILE` "
                   "wrote with those of transformers")
    p.add_argument("--write", help="write the questions to this file, in the evaluation format")
    a = p.parse_args()
    torch.set_num_threads(a.threads)
    types = ("T1", "T2", "T3") if LEVELS[a.level].comparisons else ("T1", "T2")
    items = json.loads(Path(a.data).read_text()) if a.data else held_out(a.split, a.each, 2, a.level, types)
    if a.write:
        Path(a.write).write_text(json.dumps(items, indent=0))
    model, encode = load(a.checkpoint)
    if a.compare:
        print(json.dumps(same_answers(a.checkpoint, encode, items, a.compare)))
        return
    result = {"split": a.data or a.split, "level": a.level, "questions": len(items),
              "prompt_tokens_mean": round(sum(len(prompt_ids(encode, i)) for i in items) / len(items)),
              "with_passages": free_running(model, encode, items, scores=(exact, f1)),
              "without_passages": free_running(model, encode, items, passages=False, scores=(exact, f1))}
    if a.check:
        result["against_transformers"] = same_as_transformers(a.checkpoint, model, encode, items[:a.check])
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
