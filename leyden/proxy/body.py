"""The agent's request: what goes upstream instead of it, and what of the answer the agent may see."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import orjson

from leyden.proxy.deployments import Deployment, Dialect
from leyden.proxy.refusal import Refusal

_SAME = {"max_tokens": "max_completion_tokens", "max_completion_tokens": "max_tokens"}  # two names of one limit


@dataclass(frozen=True)
class Asked:
    """A chat completion request as the agent sent it, and which parts of an answer it asked for."""

    body: dict[str, Any]
    model: str
    n: int
    stream: bool
    token_ids: bool
    logprobs: bool
    usage: bool

    @classmethod
    def parse(cls, raw: bytes) -> Asked:
        """Raises ``Refusal`` (400) for what is not a JSON object with a model. The rest is the engine's to judge."""
        try:
            body = orjson.loads(raw)
        except orjson.JSONDecodeError as error:
            raise Refusal(400, "invalid_json", f"the request body is not JSON: {error}") from error
        if not isinstance(body, dict):
            raise Refusal(400, "invalid_json", "the request body is not a JSON object")
        model, n = body.get("model"), body.get("n")
        if not isinstance(model, str) or not model:
            raise Refusal(400, "missing_model", "the request names no model", param="model")
        if n is not None and (not isinstance(n, int) or n < 1):
            raise Refusal(400, "invalid_n", "n is not a whole number from 1", param="n")
        options = body.get("stream_options") or {}
        if not isinstance(options, dict):
            raise Refusal(400, "invalid_stream_options", "stream_options is not an object", param="stream_options")
        return cls(
            body=body,
            model=model,
            n=n or 1,
            stream=body.get("stream") is True,
            token_ids=body.get("return_token_ids") is True,
            logprobs=body.get("logprobs") is True,
            usage=options.get("include_usage") is True,
        )

    def upstream(self, deployment: Deployment, defaults: dict[str, Any]) -> dict[str, Any]:
        """The body for the deployment: its model, the resource's sampling where the agent set none, and what capture needs."""
        body = dict(self.body)
        for name, value in defaults.items():
            if body.get(name) is None and body.get(_SAME.get(name, name)) is None:
                body[name] = value
        body["model"] = deployment.upstream_model
        if deployment.dialect is Dialect.VLLM:  # elsewhere there are no ids for the log-probabilities to belong to
            body["logprobs"] = True
            body["return_token_ids"] = True
        if self.stream:
            body["stream_options"] = {**(body.get("stream_options") or {}), "include_usage": True}
        return body

    def show(self, response: dict[str, Any]) -> dict[str, Any]:
        """The agent's view of a whole response or of one chunk. Changes ``response``."""
        response["model"] = self.model
        if not self.token_ids:
            response.pop("prompt_token_ids", None)
        for choice in response.get("choices") or ():
            if not self.token_ids:
                choice.pop("token_ids", None)
            if not self.logprobs and choice.get("logprobs") is not None:
                choice["logprobs"] = None
        return response

    def show_chunk(self, chunk: dict[str, Any]) -> dict[str, Any] | None:
        """The agent's view of a chunk; None if it carries only what the agent did not ask for."""
        chunk = self.show(chunk)
        choices = chunk.get("choices") or ()
        if not self.usage:
            chunk.pop("usage", None)
            if not choices:
                return None
        bare = all(not c.get("delta") and c.get("finish_reason") is None and c.get("logprobs") is None for c in choices)
        return None if bare and choices and not self.token_ids else chunk
