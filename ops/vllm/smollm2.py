"""The default model's GGUF file as a folder that vLLM serves, in bf16: `smollm2.py FILE.gguf FOLDER`."""

import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

file, folder = Path(sys.argv[1]), sys.argv[2]
tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
model = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.bfloat16)
model.save_pretrained(folder)
tokenizer.save_pretrained(folder)
