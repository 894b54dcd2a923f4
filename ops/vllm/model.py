"""Makes a tiny random model, with a tokenizer of bytes: `model.py FOLDER SEED`."""

import sys

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

folder, seed = sys.argv[1], int(sys.argv[2])
alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
tokenizer = Tokenizer(models.BPE(vocab={"<end>": 0, **{byte: at + 1 for at, byte in enumerate(alphabet)}}, merges=[]))
tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>").save_pretrained(folder)
torch.manual_seed(seed)
config = Qwen2Config(
    vocab_size=320,
    hidden_size=256,
    intermediate_size=512,
    num_hidden_layers=4,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=8192,
    tie_word_embeddings=True,
    eos_token_id=0,
    bos_token_id=0,
)
model = Qwen2ForCausalLM(config)
for weight in model.parameters():
    if weight.dim() > 1:
        # Far enough apart that greedy answers follow from the prompt, and other weights answer otherwise.
        torch.nn.init.normal_(weight, std=0.08)
model.to(torch.bfloat16).save_pretrained(folder)
