#!/usr/bin/env python3
"""Fine-tunes all-MiniLM-L6-v2 into a small cross-encoder, to measure what reranking does for recall where no published one can be had.

    python ops/bench/train_reranker.py MINILM_FOLDER DATASET.json OUT

The questions of DATASET (an array of {"question", "ctxs": [{"title"?, "text"}]}) are split: those at even places teach, those at odd ones are
written to OUT/test.json, and `ragstone eval OUT/test.json --retrieval --rerank 20 --reranker OUT/model` measures. A question's own passages
are to score 1; those of others that MiniLM finds most like it, 0. Needs torch and transformers (5.x); seeded; some minutes on two cores.
"""

import json
import random
import shutil
import sys
from pathlib import Path

import torch
import transformers
from transformers import BertForSequenceClassification, BertModel, PreTrainedTokenizerFast

EPOCHS, BATCH, RATE, NEGATIVES, TOKENS = 3, 32, 4e-5, 20, 192


def passage(context):
    return f"{context['title']}\n\n{context['text']}" if context.get("title") else context["text"]


@torch.no_grad()
def vectors(model, tokenizer, texts):
    found = []
    for begin in range(0, len(texts), 32):
        batch = tokenizer(texts[begin:begin + 32], padding=True, truncation=True, max_length=256, return_tensors="pt")
        hidden, mask = model(**batch).last_hidden_state, batch["attention_mask"][..., None]
        found.append(torch.nn.functional.normalize((hidden * mask).sum(1) / mask.sum(1), dim=-1))
    return torch.cat(found)


def pairs(examples, minilm, tokenizer):
    texts = sorted({passage(context) for example in examples for context in example["ctxs"]})
    known, asked = vectors(minilm, tokenizer, texts), vectors(minilm, tokenizer, [example["question"] for example in examples])
    for example, vector in zip(examples, asked):
        own = {passage(context) for context in example["ctxs"]}
        yield from ((example["question"], text, 1.0) for text in sorted(own))
        nearest = [texts[at] for at in (known @ vector).argsort(descending=True).tolist() if texts[at] not in own]
        yield from ((example["question"], text, 0.0) for text in nearest[:NEGATIVES])


def main():
    source, dataset, out = map(Path, sys.argv[1:])
    torch.manual_seed(7)
    random.seed(7)
    transformers.utils.logging.set_verbosity_error()
    examples = json.loads(dataset.read_text())
    out.mkdir(parents=True, exist_ok=True)
    (out / "test.json").write_text(json.dumps(examples[1::2]))
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(source / "tokenizer.json"), pad_token="[PAD]")
    taught = list(pairs(examples[::2], BertModel.from_pretrained(source).eval(), tokenizer))
    model = BertForSequenceClassification.from_pretrained(source, num_labels=1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    steps = EPOCHS * -(-len(taught) // BATCH)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1, (step + 1) / (steps / 10)) * (1 - step / steps))
    model.train()
    for epoch in range(EPOCHS):
        random.shuffle(taught)
        losses = []
        for begin in range(0, len(taught), BATCH):
            questions, texts, labels = zip(*taught[begin:begin + BATCH])
            batch = tokenizer(list(questions), list(texts), padding=True, truncation="longest_first", max_length=TOKENS, return_tensors="pt")
            logits = model(**batch).logits[:, 0]
            loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, torch.tensor(labels))
            loss.backward()
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        print(f"epoch {epoch + 1}: {len(taught)} pairs, loss {sum(losses) / len(losses):.3f}", flush=True)
    model.eval().save_pretrained(out / "model")
    shutil.copy(source / "tokenizer.json", out / "model" / "tokenizer.json")


if __name__ == "__main__":
    main()
