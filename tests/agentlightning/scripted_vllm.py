"""Stands in for ``vllm serve MODEL --port PORT``: answers with random tokens, and tells their ids as vLLM does. Starts in a second.

And for a training: ``copy_model`` has ``unsloth_training``'s arguments, and makes the next model by copying the last one.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

VOCABULARY = range(3, 400)  # of the tests' tiny model, its special tokens left out


def copy_model(model_path: str, sft_dataset: Any, next_model_path: str) -> None:
    assert all(len(row["input_ids"]) == len(row["labels"]) for row in sft_dataset)
    shutil.copytree(model_path, next_model_path)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    model = ""

    def do_GET(self) -> None:
        self._send({})

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        assert asked["model"] == self.model
        prompt, sampled = random.choices(VOCABULARY, k=20), random.choices(VOCABULARY, k=random.randint(1, asked["max_tokens"]))
        message = {"role": "assistant", "content": "x" * random.randint(1, 9)}
        choice: dict[str, Any] = {"index": 0, "message": message, "finish_reason": "length"}
        if asked.get("return_token_ids"):
            choice["token_ids"] = sampled
        if asked.get("logprobs"):
            choice["logprobs"] = {"content": [{"token": str(id), "logprob": -1.0} for id in sampled]}
        usage = {"prompt_tokens": len(prompt), "completion_tokens": len(sampled), "total_tokens": len(prompt) + len(sampled)}
        envelope = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": self.model}
        self._send({**envelope, "choices": [choice], "usage": usage, "prompt_token_ids": prompt})

    def _send(self, body: dict[str, Any]) -> None:
        data = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        pass


if __name__ == "__main__":
    options = argparse.ArgumentParser()
    options.add_argument("model")
    options.add_argument("--port", type=int)
    options.add_argument("--model-name")
    given = options.parse_args()
    Handler.model = given.model_name
    ThreadingHTTPServer(("127.0.0.1", given.port), Handler).serve_forever()
