"""ragstone as a service of its own: started, asked, stopped."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import time
from pathlib import Path

START_SECONDS = 900
ANSWER_SECONDS = 900

# Every passage's KV goes to disk, is blended where that is asked for, and nothing else is computed beside.
SETTINGS = ["kv_admission=always", "blend_uncalibrated=true", "calibrate_when_idle=false"]


class Failed(Exception):
    """Something went wrong; the message says what to do."""


class Service:
    """`ragstone serve` on a data folder, for as long as the `with` block runs."""

    def __init__(self, program: Path, device: str, model: Path, embedder: Path, data: Path, log: Path, settings: list[str]):
        command = [program, "serve", "--listen", "127.0.0.1:0", "--device", device, "--model", model, "--embedder", embedder]
        command += ["--data", data, "--offline"]
        for setting in [*SETTINGS, *settings]:
            command += ["--set", setting]
        # Whoever runs this has settings of their own.
        environment = {name: value for name, value in os.environ.items() if not name.startswith("RAGSTONE_")}
        self.log = log
        with open(log, "a") as errors:
            self.process = subprocess.Popen(
                [str(part) for part in command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment
            )  # fmt: skip

    def __enter__(self) -> Service:
        line = self.process.stdout.readline().strip()
        if not line.startswith("listening on http://"):
            self.process.wait()
            raise Failed(f"ragstone did not start; its log is {self.log}")
        self.address = line.removeprefix("listening on http://")
        begun = time.monotonic()
        while self.request("GET", "/readyz")[0] != 200:
            if self.process.poll() is not None or time.monotonic() - begun > START_SECONDS:
                self.process.kill()
                raise Failed(f"ragstone did not become ready; its log is {self.log}")
            time.sleep(0.2)
        return self

    def __exit__(self, *_) -> None:
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(120)
        except subprocess.TimeoutExpired:
            self.process.kill()

    def request(self, method: str, path: str, body: dict | None = None) -> tuple[int, dict]:
        connection = http.client.HTTPConnection(self.address, timeout=ANSWER_SECONDS)
        try:
            headers = {"content-type": "application/json"}
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            response = connection.getresponse()
            text = response.read()
            return response.status, json.loads(text) if text.startswith(b"{") else {}
        except (OSError, http.client.HTTPException):
            return 0, {}
        finally:
            connection.close()

    def ask(self, passages: list[dict], question: str, reuse, tokens: int) -> dict:
        """The likeliest tokens after a prompt of passages, with what the model thinks of them."""
        body = {
            "messages": [{"role": "user", "content": question}], "temperature": 0, "max_tokens": tokens, "ignore_eos": True,
            "logprobs": True, "top_logprobs": 1, "ragstone": {"documents": passages, "reuse": reuse},
        }  # fmt: skip
        status, answer = self.request("POST", "/v1/chat/completions", body)
        if status != 200:
            raise Failed(f"status {status}: {json.dumps(answer)[:300]}; the log is {self.log}")
        return answer
