"""The default model's GGUF file as a folder that vLLM serves, in bf16: `smollm2.py FILE.gguf FOLDER`."""

import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

file, folder = Path(sys.argv[1]), sys.argv[2]
tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
read = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.bfloat16)
# What comes of a GGUF file counts as quantized, although its weights are not any more, and is not saved.
config = read.config
if hasattr(config, "quantization_config"):
    del config.quantization_config
model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
model.load_state_dict(read.state_dict())
model.save_pretrained(folder)
tokenizer.save_pretrained(folder)
