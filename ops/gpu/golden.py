"""Whether ragstone's answers are those of transformers, through HTTP.

    python golden.py --ragstone PROGRAM --device cuda|cpu --model FOLDER [--questions N] [--tokens N]

ragstone gives its likeliest tokens; transformers, in f32, then reads prompt and answer and says at each place how much likelier
its own favourite is than the token that ragstone took: the regret, in nats, 0 where both take the same. transformers in the
checkpoint's own dtype is measured the same way, and says how large regrets are that come from rounding alone. ragstone may have
twice of it. A blend is an approximation: it is reported, not judged. Answers that are not blended must also have the same
log-probabilities, to the last bit, alone, beside others, over stored KV and after a restart.

Prints JSON; ends with 1 where something is off.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
import transformers
from reference import Prompts, Reference, stored_dtype, write_embedder
from service import Failed, Service

ROOT = Path(__file__).resolve().parents[2]
PASSAGES = 4
AT_ONCE = 8
RATIO = 0.15
# Beside twice what rounding alone does.
MORE = {"mean": 0.002, "p99": 0.05, "max": 0.1}


def answers(service: Service, prompts: list, reuse, tokens: int, at_once: int = 1) -> list[dict]:
    """The answer to every prompt."""
    with ThreadPoolExecutor(at_once) as pool:
        return list(pool.map(lambda prompt: service.ask(*prompt, reuse, tokens), prompts))


def every_mode(given, prompts: list, folder: Path) -> dict[str, list[dict]]:
    """The answers to all prompts, by the way that they were computed."""

    def service(*settings: str) -> Service:
        program, embedder = Path(given.ragstone), folder / "embedder"
        return Service(program, given.device, Path(given.model), embedder, folder / "data", folder / "log", list(settings))

    modes = {}
    backwards = [(passages[::-1], question) for passages, question in prompts]
    with service() as running:
        modes["alone"] = answers(running, prompts, "off", given.tokens)
        modes["batched"] = answers(running, prompts, "off", given.tokens, AT_ONCE)
        answers(running, prompts, "exact", given.tokens)
        modes["exact"] = answers(running, prompts, "exact", given.tokens, AT_ONCE)
    with service("device_cache=false") as running:
        modes["restarted"] = answers(running, prompts, "exact", given.tokens, AT_ONCE)
        # Each passage right after the system prompt: what blends are made of.
        alone = [([passage], question) for passages, question in prompts for passage in passages]
        answers(running, alone, "exact", 1, AT_ONCE)
        modes["blended"] = answers(running, backwards, {"ratio": RATIO}, given.tokens)
    return modes


def said(prompts: Prompts, answer: dict) -> tuple[list[int], list[float]]:
    """An answer's tokens and what ragstone thinks of them, up to one that is not known by its bytes."""
    ids, logprobs = [], []
    for token in answer["choices"][0]["logprobs"]["content"]:
        best = token["top_logprobs"][0]
        id = prompts.id_of(best["bytes"])
        if id is None:
            break
        ids.append(id)
        logprobs.append(best["logprob"])
    return ids, logprobs


def check_prompt(parts: list[list[int]], answer: dict) -> list[int]:
    """The prompt's tokens; it is ragstone's if its parts are as long."""
    report = answer["ragstone"]["report"]["segments"]
    theirs = [segment["tokens"] for segment in report if segment["kind"] in ("system_prompt", "passage")]
    ours = [len(part) for part in parts[:-1]]
    total = sum(map(len, parts))
    if theirs != ours or answer["usage"]["prompt_tokens"] != total:
        raise Failed(
            f"this model's prompts are made otherwise (system prompt and passages of {ours} tokens, ragstone's of {theirs}); "
            "take a model with another chat template, or leave --model out"
        )
    return [id for part in parts for id in part]


def spread(values: list[float]) -> dict[str, float]:
    """Mean, 99th percentile by the nearest rank, greatest."""
    if not values:
        raise Failed("no token of any answer is known by its bytes; take another model")
    values = sorted(values)
    return {"mean": sum(values) / len(values), "p99": values[-(-len(values) * 99 // 100) - 1], "max": values[-1]}


def measured(prompts: Prompts, reference: Reference, asked: list, given: list[dict]) -> dict:
    """Regrets of a mode's answers, and how far its log-probabilities are off."""
    regrets, off, loaded = [], [], {"exact": 0, "blended": 0}
    for (passages, question), answer in zip(asked, given):
        prompt = check_prompt(prompts.parts(passages, question), answer)
        ids, logprobs = said(prompts, answer)
        for kind in loaded:
            loaded[kind] += answer["ragstone"]["report"]["tokens"][kind]
        if not ids:
            continue
        theirs = reference.logprobs(prompt, ids)
        chosen = theirs[torch.arange(len(ids)), torch.tensor(ids)]
        regrets += (theirs.max(dim=-1).values - chosen).tolist()
        off += (chosen - torch.tensor(logprobs)).abs().tolist()
    return {"positions": len(regrets), "regret": spread(regrets), "logprob_off": spread(off), "reused_tokens": loaded}


def rounding(prompts: Prompts, exact: Reference, rounded: Reference, asked: list, given: list[dict]) -> dict[str, float]:
    """Regrets of transformers itself in the checkpoint's dtype, over the same texts."""
    regrets = []
    for (passages, question), answer in zip(asked, given):
        ids, _ = said(prompts, answer)
        if ids:
            prompt = [id for part in prompts.parts(passages, question) for id in part]
            theirs, taken = exact.logprobs(prompt, ids), rounded.logprobs(prompt, ids).argmax(dim=-1)
            regrets += (theirs.max(dim=-1).values - theirs[torch.arange(len(ids)), taken]).tolist()
    return spread(regrets)


def content(answer: dict) -> list:
    """What must be the same, to the last bit."""
    return answer["choices"][0]["logprobs"]["content"]


def compare(given) -> dict:
    """Everything, and whether it is as it should be."""
    questions = json.loads(Path(given.set).read_text())[: given.questions]
    asked = [(one["ctxs"][:PASSAGES], one["question"]) for one in questions]
    asked = [([{"title": p["title"], "text": p["text"]} for p in passages], question) for passages, question in asked]
    model = Path(given.model)
    with tempfile.TemporaryDirectory() as folder:
        write_embedder(Path(folder) / "embedder")
        try:
            modes = every_mode(given, asked, Path(folder))
        except Failed:
            log = Path(folder) / "log"
            print(log.read_text()[-4000:] if log.exists() else "", file=sys.stderr)
            raise
    prompts = Prompts(model)
    device = given.reference or ("cuda" if torch.cuda.is_available() else "cpu")
    exact, dtype = Reference(model, torch.float32, device), stored_dtype(model)
    noise = rounding(prompts, exact, Reference(model, dtype, device), asked, modes["alone"])
    limits = {name: 2 * noise[name] + MORE[name] for name in MORE}
    rows = []
    for mode, answered in modes.items():
        is_blend = mode == "blended"
        row = measured(prompts, exact, [(p[::-1], q) for p, q in asked] if is_blend else asked, answered)
        row["same_bits_as_alone"] = None if is_blend else list(map(content, answered)) == list(map(content, modes["alone"]))
        # What is not reused shows nothing of reuse.
        wanted = {"exact": "exact", "restarted": "exact", "blended": "blended"}.get(mode)
        reused = wanted is None or row["reused_tokens"][wanted] > 0
        within = all(row["regret"][name] <= limits[name] for name in limits)
        row["ok"] = reused and (is_blend or (within and row["same_bits_as_alone"]))
        rows.append({"mode": mode, **row})
    return {
        "model": given.model, "device": given.device, "questions": len(asked), "tokens": given.tokens,
        "reference": {"transformers": transformers.__version__, "torch": torch.__version__, "device": device, "dtype": "float32"},
        "rounding": {"dtype": str(dtype).removeprefix("torch."), "regret": noise}, "limits": limits,
        "modes": rows, "ok": all(row["ok"] for row in rows),
    }  # fmt: skip


def at_least_one(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("at least 1")
    return number


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    add = parser.add_argument
    add("--ragstone", required=True, help="the program")
    add("--device", default="cuda", help="where ragstone computes: cuda, cuda:1, cpu")
    add("--reference", help="where transformers computes: cuda or cpu (a GPU, if it finds one)")
    add("--model", default=str(ROOT / "ops/demo-model/checkpoint"), help="a folder (the demo model)")
    add("--set", default=str(ROOT / "examples/world/held-out.json"), help="questions with their passages")
    add("--questions", type=at_least_one, default=16, help="how many of them (16)")
    add("--tokens", type=at_least_one, default=32, help="of each answer (32)")
    given = parser.parse_args()
    try:
        report = compare(given)
    except Failed as error:
        print(f"golden.py: {error}", file=sys.stderr)
        return 1
    print(json.dumps(report, indent=1))
    return 0 if report["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
