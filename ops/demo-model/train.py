"""Trains the demo model from scratch: seeded, resumable, on a CPU or a CUDA GPU.

A row is [<s> system passages | question answer </s> | question answer </s> | ...]. Questions see the passages and
themselves only, and their positions start right behind the passages, so each is exactly a one-question prompt.
Bridge masking: a share of the bridge and comparison questions may not look at the page that names the role holder, so the
link must be made while the note is read. Stages follow one another when free-running answers on dev worlds pass a mark.
"""
import argparse
import json
import os
import random
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

import prompt
from evaluate import free_running, load
from model import SHAPES, Model, export
from start import grow, shape_heads
from vocabulary import Encoder
from world import LEVELS, World, held_out

# stage: level of the worlds, tokens of context and of questions a row, rows a step
STAGES = [("seed", 144, 144, 12), ("bridge", 208, 208, 8), ("compare", 272, 272, 7), ("full", 464, 336, 4)]
HIDE, CONTEXT_WEIGHT, CONTEXT_EVERY, EOS = 0.9, 0.2, 4, 2
PASS_MARK, EASIER_EVERY = 0.9, 3
DTYPES = {"bf16": torch.bfloat16, "f32": torch.float32}
PATIENCE = (2, 3, 4)  # millions of tokens in a stage, after which the next begins anyway


class Row:
    """One world packed into arrays of `length` tokens."""

    def __init__(self, length):
        self.ids = np.zeros(length, np.int64)
        self.target = np.full(length, -100, np.int64)
        self.weight = np.zeros(length, np.float32)
        self.position = np.zeros(length, np.int64)
        self.segment = np.full(length, -1, np.int16)   # 0 context, 1.. questions, -1 padding
        self.page = np.full(length, -1, np.int16)      # page of a context token
        self.hidden = np.full((2, length), -2, np.int16)  # pages that a question token may not see
        self.type = np.zeros(length, np.int8)          # 1..4 at the place that predicts the first answer token


def fill_context(row, encode, world, room, rng):
    """Writes the passages; returns their length, or None if they do not fit."""
    ids, pages = [1] + encode(prompt.SYSTEM), []
    pages += [-1] * len(ids)
    for i, page in enumerate(world.pages):
        piece = encode(prompt.passage(page.as_dict()))
        ids, pages = ids + piece, pages + [i] * len(piece)
    n = len(ids)
    if n > room:
        return None
    row.ids[:n], row.page[:n], row.segment[:n], row.position[:n] = ids, pages, 0, range(n)
    row.target[:n - 1] = ids[1:]
    row.weight[rng.randrange(CONTEXT_EVERY):n - 1:CONTEXT_EVERY] = CONTEXT_WEIGHT
    return n


def fill_questions(row, encode, world, context, at, rng):
    """Packs questions, the rarer types first, until the row is full."""
    questions = world.questions()
    many = sum(q.type in ("T2", "T3") for q in questions)
    if many:  # of the easiest no more than of the others
        single = [q for q in questions if q.type == "T1"]
        questions = [q for q in questions if q.type != "T1"] + rng.sample(single, min(len(single), many + 1))
    order = sorted(questions, key=lambda q: rng.random() ** {"T1": 1, "T2": 0.4, "T3": 0.4, "T4": 0.7}[q.type], reverse=True)
    for number, q in enumerate(order, 1):
        asked, told = encode(prompt.question(q.text)), encode(prompt.answer(q.answer)) + [EOS]
        end = at + len(asked) + len(told) - 1
        if end > len(row.ids):
            continue
        first = at + len(asked) - 1
        row.ids[at:end], row.segment[at:end] = (asked + told)[:-1], number
        row.position[at:end] = range(context, context + end - at)
        row.target[first:end], row.weight[first:end] = told, 1.0
        row.type[first] = int(q.type[1])
        if q.link and (q.type == "T4" or rng.random() < HIDE):
            for slot, page in enumerate(dict.fromkeys(q.link)):
                row.hidden[slot, at:end] = page
        at = end


def batch(encode, seed, step, stage):
    """Batch number `step` of a stage, a pure function of its arguments."""
    rng = random.Random(f"{seed}:{stage}:{step}")
    name, room, asked, count = STAGES[stage]
    rows = []
    while len(rows) < count:
        row, world = Row(room + asked), World(rng, "train", LEVELS[name])
        context = fill_context(row, encode, world, room, rng)
        if context is not None:
            fill_questions(row, encode, world, context, context, rng)
            rows.append(row)
    longest = max(int((r.segment >= 0).sum()) for r in rows)
    stack = lambda key: torch.from_numpy(np.stack([getattr(r, key)[..., :longest] for r in rows]))
    return {key: stack(key) for key in vars(rows[0])}


def attention_mask(b):
    """[rows, 1, length, length] bool: causal, context or own question, and no hidden page."""
    segment, page, n = b["segment"], b["page"], b["ids"].shape[1]
    mask = torch.ones(n, n, dtype=torch.bool, device=page.device).tril()
    mask = mask & ((segment[:, None, :] == 0) | (segment[:, None, :] == segment[:, :, None]))
    for slot in (0, 1):
        mask = mask & (page[:, None, :] != b["hidden"][:, slot, :, None])
    return mask[:, None]


def loss_of(model, b):
    chosen = (b["weight"] > 0).flatten().nonzero()[:, 0]
    logits = model(b["ids"], b["position"], attention_mask(b), chosen).float()
    target, weight, kind = (b[k].flatten()[chosen] for k in ("target", "weight", "type"))
    each = F.cross_entropy(logits, target, reduction="none")
    right = (logits.argmax(-1) == target).float()
    hits = {f"T{t}": right[kind == t].mean().item() for t in (1, 2, 3, 4) if (kind == t).any()}
    return (each * weight).sum() / weight.sum(), hits


def dev_set(stage, each=40):
    """Held-out dev questions at the size of the stage's worlds."""
    level = LEVELS[STAGES[stage][0]]
    types = ["T1"] + ["T2"] * bool(level.notes) + ["T3"] * bool(level.notes and level.comparisons)
    return held_out("dev", each, 1, STAGES[stage][0], types)


class Muon(torch.optim.Optimizer):
    """Momentum whose update is made orthogonal by Newton-Schulz steps (Jordan et al. 2024), for the matrices of the layers."""

    def __init__(self, params, dtype, momentum=0.95):
        super().__init__(params, {"lr": 0.0, "momentum": momentum})
        self.dtype = dtype

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                mean = self.state[p].setdefault("mean", torch.zeros_like(p))
                mean.lerp_(p.grad, 1 - group["momentum"])
                update = orthogonal(p.grad.lerp(mean, group["momentum"]), self.dtype)
                p.add_(update, alpha=-group["lr"] * max(1.0, p.shape[0] / p.shape[1]) ** 0.5)


def orthogonal(matrix, dtype, steps=5):
    """About U V^T of the singular value decomposition U S V^T."""
    x = matrix.to(dtype)
    x = x / (x.norm() + 1e-7)
    tall = x.shape[0] > x.shape[1]
    x = x.mT if tall else x
    for _ in range(steps):
        a = x @ x.mT
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    return (x.mT if tall else x).to(matrix.dtype)


class Run:
    """A training run: what `state.pt` holds, and one step."""

    def __init__(self, a, encode, device):
        self.a, self.device = a, device
        torch.manual_seed(a.seed)
        self.model = Model(SHAPES[a.shape] | {"vocab_size": encode.tokenizer.get_vocab_size()})
        if a.grow:
            grow(self.model, load(a.grow)[0])
        else:
            shape_heads(self.model, a.seed, encode.ids(" is", " of"))
        self.model.to(device)
        matrices = [p for n, p in self.model.named_parameters() if p.dim() == 2 and "embed" not in n]
        others = [p for n, p in self.model.named_parameters() if p.dim() == 1]
        groups = [{"params": others}, {"params": [self.model.embed.weight], "lr_scale": 0.5}]
        self.optimizers = [torch.optim.AdamW(groups, betas=(0.9, 0.95), weight_decay=0.0), Muon(matrices, DTYPES[a.dtype])]
        self.at = {"step": 0, "stage": a.stage, "in_stage": 0, "tokens": 0, "seconds": 0.0}
        self.averages = {}  # of what was reported, moving

    def save(self, path):
        temporary = path.with_suffix(".new")
        optimizers = [o.state_dict() for o in self.optimizers]
        torch.save({"model": self.model.state_dict(), "optimizers": optimizers, "at": self.at, "averages": self.averages},
                   temporary)
        os.replace(temporary, path)

    def load(self, path):
        state = torch.load(path, map_location=self.device)
        self.model.load_state_dict(state["model"])
        for optimizer, saved in zip(self.optimizers, state["optimizers"]):
            optimizer.load_state_dict(saved)
        self.at, self.averages = state["at"], state["averages"]

    def step(self, encode):
        """One step. The rate warms up over 100 steps, stays, and falls linearly over the last four fifths of the tokens."""
        started = time.monotonic()
        left = 1 - self.at["tokens"] / (self.a.tokens * 1e6)
        rate = min(1.0, (self.at["step"] + 1) / 100) * min(1.0, max(0.02, left / 0.8))
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate * (self.a.muon_lr if isinstance(optimizer, Muon) else self.a.lr * group.get("lr_scale", 1.0))
        stage = self.at["stage"]
        if stage and self.at["step"] % EASIER_EVERY == 0:
            draw = random.Random(self.at["step"])
            stage = max(draw.randrange(stage), draw.randrange(stage))   # easier worlds stay in the mix
        b = {k: v.to(self.device) for k, v in batch(encode, self.a.seed, self.at["step"], stage).items()}
        with torch.autocast(self.device, torch.bfloat16, enabled=self.a.dtype == "bf16"):
            loss, hits = loss_of(self.model, b)
        self.model.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for optimizer in self.optimizers:
            optimizer.step()
        self.at["step"] += 1
        tokens = int((b["segment"] >= 0).sum())
        self.at["tokens"] += tokens
        self.at["in_stage"] += tokens
        self.at["seconds"] += time.monotonic() - started
        return loss.item(), hits


def train(a):
    torch.set_num_threads(a.threads)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    encode = Encoder(Path(a.checkpoint) / "tokenizer.json")
    run, state = Run(a, encode, device), Path(a.state)
    if state.exists():
        run.load(state)
        run.at["stage"] = max(run.at["stage"], a.stage)
        print("resumed", run.at, flush=True)
    while run.at["tokens"] < a.tokens * 1e6:
        loss, hits = run.step(encode)
        for key, value in {"loss": loss, **hits}.items():
            run.averages[key] = run.averages.get(key, value) * 0.97 + value * 0.03
        if run.at["step"] % a.every == 0:
            speed = round(run.at["tokens"] / run.at["seconds"])
            report(state, {**run.at, "per_second": speed, **{k: round(v, 3) for k, v in run.averages.items()}})
            advance(run, a, encode, state)
            run.save(state)
    run.save(state)
    export(run.model, a.checkpoint)


def advance(run, a, encode, state):
    """Goes to the next stage once free-running answers on dev worlds of this size pass the mark, or patience is at its end."""
    stage = run.at["stage"]
    types = [t for t in ("T1", "T2", "T3") if t in run.averages]
    late = stage < a.last and run.at["in_stage"] > PATIENCE[stage] * 1e6
    if stage >= a.last or min(run.averages[t] for t in types) < PASS_MARK - 0.05 and not late:
        return
    scores = free_running(run.model, encode, dev_set(stage))["exact"]
    report(state, {"dev": STAGES[stage][0], "exact_match": scores})
    if late or min(scores.values()) >= PASS_MARK:
        run.at.update(stage=stage + 1, in_stage=0)
        run.averages.clear()


def report(state, record):
    line = json.dumps({k: round(v, 1) if k == "seconds" else v for k, v in record.items()})
    print(line, flush=True)
    with open(state.with_suffix(".jsonl"), "a") as log:
        log.write(line + "\n")


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--checkpoint", default="checkpoint", help="folder with tokenizer.json; the export goes there")
    p.add_argument("--state", default="run/state.pt", help="weights, optimizer and place, to resume from")
    p.add_argument("--tokens", type=float, default=13, help="millions of tokens in all")
    p.add_argument("--lr", type=float, default=2e-3, help="AdamW's, for the norms and, halved, the embedding")
    p.add_argument("--muon-lr", type=float, default=6e-3, help="Muon's, for the matrices of the layers")
    p.add_argument("--shape", choices=SHAPES, default="demo", help="the model's shape (model.py)")
    p.add_argument("--grow", metavar="FOLDER", help="begin with this smaller model, whose layers but the first stand at the end")
    p.add_argument("--dtype", choices=DTYPES, default="bf16", help="of the arithmetic; f32 where the processor has no bf16")
    p.add_argument("--stage", type=int, default=0, help="first stage to train, also of a resumed run")
    p.add_argument("--last", type=int, default=len(STAGES) - 1, help="last stage to go to")
    p.add_argument("--every", type=int, default=50, help="steps between reports and saves")
    p.add_argument("--threads", type=int, default=1)
    p.add_argument("--seed", type=int, default=1)
    return p.parse_args()


if __name__ == "__main__":
    args = arguments()
    Path(args.state).parent.mkdir(parents=True, exist_ok=True)
    train(args)
