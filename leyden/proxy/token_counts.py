"""How long a prompt would be: its engine tokenizes it, and nothing is sampled or recorded."""

from __future__ import annotations

from dataclasses import replace

from leyden.proxy.asked import Asked
from leyden.proxy.deployments import Deployment, Dialect
from leyden.proxy.model_table import ModelTable
from leyden.proxy.passthrough import PassThrough
from leyden.proxy.refusal import NotReached, Refusal
from leyden.types import AttemptBinding

_PROMPT = ("messages", "tools", "chat_template_kwargs", "add_generation_prompt", "continue_final_message")


class TokenCounts:
    def __init__(self, table: ModelTable, passthrough: PassThrough) -> None:
        self._table = table
        self._passthrough = passthrough

    async def count(self, asked: Asked, binding: AttemptBinding) -> int:
        """Raises ``Refusal``: 400 for a provider that does not tokenize, else what ``ModelTable.pick`` and the engine raise."""
        replicas, _ = self._table.pick(binding.resources, asked.model)
        for replica in replicas.replicas[:-1]:
            try:
                return await self._ask(replica.deployment, asked)
            except NotReached:
                continue
        return await self._ask(replicas.replicas[-1].deployment, asked)

    async def _ask(self, deployment: Deployment, asked: Asked) -> int:
        if deployment.dialect is not Dialect.VLLM:
            message = f"{deployment.model_name} is not served by an engine that tokenizes"
            raise Refusal(400, "unsupported_api", message, "count with its provider's own API", param="model")
        root = replace(deployment, api_base=(deployment.api_base or "").removesuffix("/v1"))
        body = {"model": deployment.upstream_model, **{name: asked.body[name] for name in _PROMPT if name in asked.body}}
        count = (await self._passthrough.complete(root, body, "/tokenize")).get("count")
        if not isinstance(count, int):
            raise Refusal(502, "upstream_broken", f"{deployment.model_name} at {root.api_base} did not say how many tokens those are")
        return count
