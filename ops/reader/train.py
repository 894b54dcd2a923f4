#!/usr/bin/env python3
"""Trains a reader: a low-rank adapter that answers from passages in a few words, and says when they do not.

    ops/reader/train --model SmolLM2-135M-Instruct.Q4_1.gguf --out reader [--contexts 1000]

MODEL is a folder of transformers or a GGUF file of a Llama-like model with a chat template in ChatML's form. Half of the contexts are read
in full, half as ragstone's store has them (a passage's KV computed after system prompt and a primer of unrelated passages, moved to its
place). Every other step also keeps to what the model says in ordinary chats. All from one seed, but with --minutes, where it
is the machine that says how far it comes. OUT is a PEFT folder, written again and again; `state.pt` in it is what a run that broke off goes on with, by the same command.
"""

import argparse
import json
import pathlib
import random
import tempfile
import time

import torch
import torch.distributed
import torch.multiprocessing
import torch.nn.functional as F
import transformers
from safetensors.torch import load_file, save_file
from tokenizers import pre_tokenizers

import chats
import model as models
import samples


def load(path):
    """transformers' model and tokenizer."""
    path = pathlib.Path(path)
    where = {"pretrained_model_name_or_path": str(path)}
    if path.suffix == ".gguf":
        where = {"pretrained_model_name_or_path": str(path.parent), "gguf_file": path.name}
    tokenizer = transformers.AutoTokenizer.from_pretrained(**where)
    if path.suffix == ".gguf":
        # transformers reads vocabulary and merges of the file, but not how SmolLM2 sets digits apart.
        tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)]
        )
    return transformers.AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32).eval(), tokenizer


class Prompts:
    """The program's prompts as token ids, each part on its own (actors/src/question/prompt.rs)."""

    def __init__(self, tokenizer):
        self.tokenizer = tokenizer
        self.end = tokenizer.convert_tokens_to_ids("<|im_end|>")

    def encode(self, text):
        return self.tokenizer(text, add_special_tokens=False).input_ids

    def system(self, text):
        return self.encode(f"<|im_start|>system\n{text}<|im_end|>\n<|im_start|>user\n")

    def passage(self, title, text):
        return self.encode(samples.PASSAGE.format(title=title, text=text))

    def question(self, text, is_first=True):
        begin = "" if is_first else "\n<|im_start|>user\n"
        return self.encode(f"{begin}{samples.QUESTION.format(question=text)}<|im_end|>\n<|im_start|>assistant\n")

    def branch(self, turns):
        """Token ids of a conversation, and where each answer stands in them."""
        ids, spans = [], []
        for at, (question, answer) in enumerate(turns):
            ids += self.question(question, at == 0)
            words = self.encode(answer) + [self.end]
            spans.append((len(ids), len(ids) + len(words)))
            ids += words
        return ids, spans


def context(prompts, rng, primers, reuse, questions, long):
    """The tokens of a sample, how they are read, and its answers' spans in the branches."""
    made = samples.Samples(rng, questions, long)
    one = made.sample()
    system = prompts.system(one.system)
    passages = [prompts.passage(*passage) for passage in one.passages]
    branches = [prompts.branch(turns) for turns in one.conversations]
    ids = [branch for branch, _ in branches]
    if reuse:
        primer = [prompts.passage(*made.filler()) for _ in range(rng.choice(primers))]
        read = models.reused(system, primer, passages, ids, rng.random() < 0.5)
    else:
        read = models.full_prompt(system, passages, ids)
    spans, at = [], 0
    for branch, own in branches:
        spans += [(at + low, at + high) for low, high in own]
        at += len(branch)
    return read, spans


def loss_of(model, read, spans):
    """Cross-entropy of the answers' tokens: the mean of each answer, then of all."""
    ids, how, count = read
    hidden = model.forward(ids, how, count)
    last = ids[-count:]
    at = torch.cat([torch.arange(low, high) for low, high in spans])
    losses = F.cross_entropy(model.logits(hidden[at - 1]), last[at], reduction="none")
    return torch.stack([part.mean() for part in losses.split([high - low for low, high in spans])]).mean()


def chat_loss(model, prompts, chat):
    """How far the next words of an ordinary chat are from the model's own: the divergence, token by token."""
    before, words = prompts.encode(chat["prompt"]), chat["reply"]
    read = models.full_prompt(before[:1], [], [before[1:] + words])
    with torch.no_grad():
        model.with_adapter = False
        wanted = F.log_softmax(model.logits(model.forward(*read)[-len(words) - 1 : -1]), -1)
        model.with_adapter = True
    has = F.log_softmax(model.logits(model.forward(*read)[-len(words) - 1 : -1]), -1)
    return F.kl_div(has, wanted, log_target=True, reduction="batchmean")


def save(model, out, base):
    """A PEFT folder."""
    out.mkdir(parents=True, exist_ok=True)
    tensors = {f"base_model.model.{name}": tensor.detach().to(torch.bfloat16).contiguous() for name, tensor in model.adapter.items()}
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": model.rank,
        "lora_alpha": round(model.scale * model.rank),
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
        "target_modules": [name for names in models.PARTS.values() for name in names],
    }
    new = out / "adapter_model.safetensors.new"
    save_file(tensors, new, metadata={"format": "pt"})
    new.rename(out / "adapter_model.safetensors")
    (out / "adapter_config.json").write_text(json.dumps(config, indent=2) + "\n")


def begin_with(model, folder):
    """Takes over what an earlier training came to."""
    tensors = load_file(folder / "adapter_model.safetensors")
    with torch.no_grad():
        for name, tensor in model.adapter.items():
            tensor.copy_(tensors[f"base_model.model.{name}"].float())


def resume(path, model, optimizer, how):
    """The step to go on with, and the seconds so far: the same bits as if nothing had broken off."""
    if not path.exists():
        return 0, 0
    state = torch.load(path)
    if state["how"] != how:
        raise SystemExit(f"{path} is of a training with other options; remove it, or give another --out")
    with torch.no_grad():
        for name, tensor in model.adapter.items():
            tensor.copy_(state["adapter"][name])
    optimizer.load_state_dict(state["optimizer"])
    return state["step"], state.get("seconds", 0)


def train(rank, arguments, meeting):
    """One of the processes: it takes every `processes`th context of each step, and all add up their gradients.

    A process has one thread: on a busy machine, threads of one product wait for the slowest of them.
    """
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", f"file://{meeting}", rank=rank, world_size=arguments.processes)
    source, tokenizer = load(arguments.model)
    prompts = Prompts(tokenizer)
    if rank == 0:
        chats.replies(source, tokenizer, arguments.out / "chats.json")
    torch.distributed.barrier()
    ordinary = chats.replies(source, tokenizer, arguments.out / "chats.json")
    model = models.Model(source, arguments.rank, 2 * arguments.rank, arguments.seed)
    del source
    if arguments.begin:
        begin_with(model, arguments.begin)
    parameters = list(model.adapter.values())
    optimizer = torch.optim.AdamW(parameters, lr=arguments.rate, weight_decay=0.01)
    steps = arguments.contexts // arguments.batch
    how = [getattr(arguments, name) for name in ("contexts", "questions", "long", "batch", "rank", "rate", "seed", "processes", "minutes")]
    state = arguments.out / "state.pt"
    first, before = resume(state, model, optimizer, how)
    torch.distributed.barrier()
    begin, recent = time.monotonic(), {"full": [], "reuse": [], "chat": []}
    for step in range(first, steps):
        share = torch.tensor(step / steps)
        if arguments.minutes:
            # One clock for all: their rates are the same.
            share = torch.tensor((before + time.monotonic() - begin) / 60 / arguments.minutes)
            torch.distributed.broadcast(share, 0)
        share = share.item()
        is_last = step == steps - 1 or share >= 1
        rate = arguments.rate * min(1, (step + 1) / 10) * max(0.04, 1 - share)
        for group in optimizer.param_groups:
            group["lr"] = rate
        for at in range(rank, arguments.batch, arguments.processes):
            reuse = at % 4 in (0, 3)
            rng = random.Random(f"{arguments.seed}/{step}/{at}")
            loss = loss_of(model, *context(prompts, rng, (0, 2, 2, 4), reuse, arguments.questions, arguments.long)) / arguments.batch
            loss.backward()
            recent["reuse" if reuse else "full"].append(loss.item() * arguments.batch)
        if step % (2 * arguments.processes) == 2 * rank:
            chosen = random.Random(f"{arguments.seed}/{step}").choice(ordinary)
            loss = chat_loss(model, prompts, chosen) * 0.4
            loss.backward()
            recent["chat"].append(loss.item() / 0.4)
        whole = torch.cat([one.grad.flatten() for one in parameters])
        torch.distributed.all_reduce(whole)
        for one, grad in zip(parameters, whole.split([one.numel() for one in parameters])):
            one.grad = grad.view_as(one)
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if step % 10 == 9 and rank == 0:
            row = {"step": step + 1, "seconds": round(time.monotonic() - begin)}
            row |= {name: round(sum(part) / max(len(part), 1), 4) for name, part in recent.items()}
            recent = {name: [] for name in recent}
            print(json.dumps(row), flush=True)
            with (arguments.out / "training-log.jsonl").open("a") as log:
                log.write(json.dumps(row) + "\n")
        if rank == 0 and (step % arguments.every == arguments.every - 1 or is_last):
            save(model, arguments.out, arguments.model.stem)
            fresh = state.with_suffix(".new")
            seconds = before + time.monotonic() - begin
            torch.save({"how": how, "adapter": model.adapter, "optimizer": optimizer.state_dict(), "step": step + 1, "seconds": seconds}, fresh)
            fresh.rename(state)
        if is_last:
            break


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, type=pathlib.Path)
    parser.add_argument("--out", required=True, type=pathlib.Path)
    parser.add_argument("--begin", type=pathlib.Path, help="an adapter of the same rank to go on from")
    parser.add_argument("--contexts", type=int, default=1000, help="how many are read in all, of so many questions each")
    parser.add_argument("--questions", type=int, default=8)
    parser.add_argument("--long", type=float, default=0.65, help="the share of contexts with passages as long as a corpus's")
    parser.add_argument("--batch", type=int, default=4, help="contexts a step")
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--rate", type=float, default=6e-4)
    parser.add_argument("--seed", type=int, default=56)
    parser.add_argument("--processes", type=int, default=2, help="of one thread each; another number gives other bits")
    parser.add_argument(
        "--minutes", type=float, default=0, help="the rate falls with the clock, and training ends with it: not repeatable from the seed"
    )
    parser.add_argument("--every", type=int, default=20, help="steps between two writings")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(train, (arguments, f"{folder}/meeting"), nprocs=arguments.processes)


if __name__ == "__main__":
    main()
