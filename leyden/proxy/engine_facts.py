"""What an engine can say of its tokens besides what it samples: how many it knows, and what a few of them read as."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from leyden.proxy.deployments import Deployment, Dialect
from leyden.proxy.passthrough import PassThrough
from leyden.proxy.refusal import Refusal

PATIENCE = 2.0  # seconds an audit waits for an answer; it is not worth a call's time
AGAIN = 60.0  # seconds until an engine that did not answer is asked again

log = logging.getLogger(__name__)


class EngineFacts:
    """Asked once for each deployment, while its first call is under way; again after a while, where no answer came."""

    def __init__(self, passthrough: PassThrough) -> None:
        self._passthrough = passthrough
        self._asked: dict[str, asyncio.Task[int | None]] = {}

    def ask(self, deployment: Deployment) -> None:
        """Have the vocabulary looked up, if nobody has yet."""
        if deployment.dialect is Dialect.VLLM and deployment.vocabulary is None and deployment.id not in self._asked:
            self._asked[deployment.id] = asyncio.create_task(self._look_up(deployment))

    async def vocabulary(self, deployment: Deployment) -> int | None:
        """How many tokens its model knows: ids are below that. None where neither the model list nor the engine says."""
        if deployment.vocabulary is not None or deployment.id not in self._asked:
            return deployment.vocabulary
        asked = self._asked[deployment.id]
        if not asked.done():
            await asyncio.wait({asked}, timeout=PATIENCE)
        return asked.result() if asked.done() else None

    async def texts(self, deployment: Deployment, several: Sequence[Sequence[int]]) -> list[str]:
        """What each of ``several`` runs of ids reads as, special tokens and all; the numbers, where the engine does not say."""
        return list(await asyncio.gather(*(self._text(deployment, ids) for ids in several)))

    async def _text(self, deployment: Deployment, ids: Sequence[int]) -> str:
        if not ids:
            return ""
        root = replace(deployment, api_base=(deployment.api_base or "").removesuffix("/v1"))
        try:
            async with asyncio.timeout(PATIENCE):
                body = {"model": deployment.upstream_model, "tokens": list(ids)}
                text = (await self._passthrough.complete(root, body, "/detokenize")).get("prompt")
        except (TimeoutError, Refusal):
            text = None
        return text if isinstance(text, str) else f"ids {' '.join(map(str, ids))}"

    async def _look_up(self, deployment: Deployment) -> int | None:
        try:
            async with asyncio.timeout(PATIENCE):
                listed = (await self._passthrough.get(deployment, "/models")).get("data") or ()
        except (TimeoutError, Refusal) as error:
            log.info("%s does not say which models it has: %s", deployment.model_name, error)
            asyncio.get_running_loop().call_later(AGAIN, self._asked.pop, deployment.id, None)
            return None
        entry: dict[str, Any] = next((entry for entry in listed if entry.get("id") == deployment.upstream_model), {})
        found = entry.get("vocab_size")
        if not isinstance(found, int) and isinstance(root := entry.get("root"), str):  # vLLM: the model's directory, if that is here
            found = await asyncio.to_thread(_vocabulary_of, Path(root))
        return found if isinstance(found, int) else None

    def close(self) -> None:
        for task in self._asked.values():
            task.cancel()


def _vocabulary_of(model_dir: Path) -> Any:
    try:
        config = json.loads((model_dir / "config.json").read_text())
    except (OSError, ValueError):
        return None
    return config.get("vocab_size") or (config.get("text_config") or {}).get("vocab_size")
