"""What ops/eval/noise compares with. Runs in the environment of ops/bench/peers:

    python noise_reference.py FILE.gguf TEXTS.json OUT.json THREADS

OUT.json has, of each text: `ids`, transformers' token ids; `top`, after each token but the last, the five tokens that transformers has for
likeliest with the file unpacked to f32; `reference`, their log-probabilities; `llama.cpp`, what llama.cpp has for them.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import llama_cpp
import numpy
import torch
import transformers

LIKELIEST = 5
# Positions of a text, at most.
CONTEXT = 512


class LlamaCpp:
    """llama.cpp as it computes a file by default, with KV in f16."""

    def __init__(self, model: Path, threads: int):
        llama_cpp.llama_backend_init()
        settings = llama_cpp.llama_model_default_params()
        settings.n_gpu_layers = 0
        self.model = llama_cpp.llama_model_load_from_file(str(model).encode(), settings)
        context = llama_cpp.llama_context_default_params()
        context.n_ctx = context.n_batch = context.n_ubatch = CONTEXT
        context.n_threads = context.n_threads_batch = threads
        self.context = llama_cpp.llama_init_from_model(self.model, context)
        self.vocabulary = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self.model))

    def logits(self, ids: list[int]) -> numpy.ndarray:
        """After each token, [tokens, vocabulary]."""
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self.context), True)
        batch = llama_cpp.llama_batch_init(len(ids), 0, 1)
        batch.n_tokens = len(ids)
        for index, token in enumerate(ids):
            batch.token[index] = token
            batch.pos[index] = index
            batch.n_seq_id[index] = 1
            batch.seq_id[index][0] = 0
            batch.logits[index] = 1
        if llama_cpp.llama_decode(self.context, batch) != 0:
            raise SystemExit("llama_decode failed")
        row = lambda index: numpy.ctypeslib.as_array(llama_cpp.llama_get_logits_ith(self.context, index), (self.vocabulary,))
        logits = numpy.stack([row(index).copy() for index in range(len(ids))])
        llama_cpp.llama_batch_free(batch)
        return logits


@torch.inference_mode()
def main() -> None:
    file, asked, told, threads = Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4])
    torch.set_num_threads(threads)
    read = {"pretrained_model_name_or_path": file.parent, "gguf_file": file.name}
    tokenizer = transformers.AutoTokenizer.from_pretrained(**read)
    exact = transformers.AutoModelForCausalLM.from_pretrained(**read, dtype=torch.float32).eval()
    llama = LlamaCpp(file, threads)
    found = []
    for text in json.loads(asked.read_text()):
        ids = tokenizer(text)["input_ids"][:CONTEXT]
        reference = torch.log_softmax(exact(torch.tensor([ids]), use_cache=False).logits[0, :-1].double(), -1)
        values, top = reference.topk(LIKELIEST)
        theirs = torch.log_softmax(torch.from_numpy(llama.logits(ids)[:-1]).double(), -1).gather(1, top)
        found.append({"ids": ids, "top": top.tolist(), "reference": values.tolist(), "llama.cpp": theirs.tolist()})
    told.write_text(json.dumps(found))


if __name__ == "__main__":
    transformers.utils.logging.disable_progress_bar()
    main()
