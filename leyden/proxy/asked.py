"""The agent's request, and what goes upstream instead of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from leyden.proxy.deployments import Deployment, Dialect

CHAT, TEXT = "/chat/completions", "/completions"  # where engines are asked, below their /v1

_SAME = {"max_tokens": "max_completion_tokens", "max_completion_tokens": "max_tokens"}  # two names of one limit


@dataclass(frozen=True)
class Asked:
    """A request as an engine takes it, and which parts of an answer the agent asked for.

    ``body``: a chat completion; for ``TEXT`` a completion. ``request``: the agent's own, where its form says more than the body does.
    """

    body: dict[str, Any]
    model: str
    n: int
    stream: bool
    token_ids: bool
    logprobs: bool
    usage: bool
    path: str = CHAT
    request: dict[str, Any] | None = None

    def upstream(self, deployment: Deployment, defaults: dict[str, Any]) -> dict[str, Any]:
        """The body for the deployment: its model, the resource's sampling where the agent set none, and what capture needs."""
        body = dict(self.body)
        for name, value in defaults.items():
            if body.get(name) is None and body.get(_SAME.get(name, name)) is None:
                body["max_tokens" if name in _SAME and self.path == TEXT else name] = value
        body["model"] = deployment.upstream_model
        if deployment.dialect is Dialect.VLLM:  # elsewhere there are no ids for the log-probabilities to belong to
            body["logprobs"] = True if self.path == CHAT else body.get("logprobs") or 0  # a number there: of the best ones besides
            body["return_token_ids"] = True
        if self.stream:
            body["stream_options"] = {**(body.get("stream_options") or {}), "include_usage": True}
        return body
