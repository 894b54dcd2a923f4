"""transformers behind HTTP: as much of OpenAI's completions as `rag_client.py` asks for. Runs in the environment:

    python rag_transformers.py --model FOLDER --dtype bf16|f32 --threads N --port N

One prompt at a time, computed from its first token on: transformers keeps no KV between calls of `generate`.
"""

from __future__ import annotations

import argparse
import json
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import torch
import transformers
from peers_engine_torch import Transformers
from peers_shapes import word


class Handler(BaseHTTPRequestHandler):
    """Answers with the likeliest token, streamed."""

    engine: Transformers

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()

    def do_POST(self) -> None:
        prompt = json.loads(self.rfile.read(int(self.headers["content-length"])))["prompt"]
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        self.event({"choices": [{"text": word(self.first_token(prompt))}]})
        self.event({"choices": [], "usage": {"prompt_tokens": len(prompt), "completion_tokens": 1}})

    @torch.inference_mode()
    def first_token(self, prompt: list[int]) -> int:
        model = self.engine.model
        cache = transformers.DynamicCache(config=model.config)
        done = model(torch.tensor([prompt]), past_key_values=cache, use_cache=True, logits_to_keep=1)
        return int(done.logits[0, -1].argmax())

    def event(self, value: dict) -> None:
        self.wfile.write(b"data: " + json.dumps(value).encode() + b"\n\n")
        self.wfile.flush()

    def log_message(self, *_) -> None:
        """Requests are the client's to tell of."""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", type=Path, required=True, help="folder that peers_models.py made")
    parser.add_argument("--dtype", required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--port", type=int, required=True)
    given = parser.parse_args()
    Handler.engine = Transformers(given.model, given.dtype, given.threads)
    HTTPServer(("127.0.0.1", given.port), Handler).serve_forever()


if __name__ == "__main__":
    main()
