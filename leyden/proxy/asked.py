"""The agent's request, and what goes upstream instead of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from leyden.proxy.deployments import Deployment, Dialect

_SAME = {"max_tokens": "max_completion_tokens", "max_completion_tokens": "max_tokens"}  # two names of one limit


@dataclass(frozen=True)
class Asked:
    """A request in the form of a chat completion, and which parts of an answer the agent asked for."""

    body: dict[str, Any]
    model: str
    n: int
    stream: bool
    token_ids: bool
    logprobs: bool
    usage: bool

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
