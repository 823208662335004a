"""The model behind the server: loads a checkpoint, checks requests against it, and hands them to the scheduler."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging

from leyden.errors import UsageError
from leyden.models.device import compute_dtype, pick_device
from leyden.models.embedded import attention
from leyden.models.embedded.grammar import Grammars
from leyden.models.embedded.reasoning import begun, thinks
from leyden.models.embedded.sampling import Sampled, Sampling
from leyden.models.embedded.scheduler import Scheduler, Sequence
from leyden.models.importer import check_checkpoint


@dataclass(frozen=True)
class Token:
    """One sampled token of one choice; ``reason`` is set on the last."""

    choice: int
    sampled: Sampled
    reason: str | None


class TransformersEngine:
    """A checkpoint in memory with its tokenizer. ``sample`` may be called from many coroutines."""

    def __init__(self, model_dir: Path, device: str | None = None, max_model_len: int | None = None, max_running: int = 48) -> None:
        check_checkpoint(model_dir)
        logging.disable_progress_bar()
        config = AutoConfig.from_pretrained(model_dir, local_files_only=True)
        _check_architecture(config, model_dir)
        where = device or pick_device()
        self.tokenizer = AutoTokenizer.from_pretrained(model_dir, local_files_only=True)
        if not self.tokenizer.chat_template:
            raise UsageError(f"{model_dir} has no chat template", "put a chat_template.jinja there, or use leyden models import")
        self.model = AutoModelForCausalLM.from_pretrained(
            model_dir, dtype=compute_dtype(where), attn_implementation=attention.NAME, local_files_only=True
        )
        self.model.to(where).eval()
        text = config.get_text_config()
        self.vocab_size: int = text.vocab_size
        limits = (max_model_len, text.max_position_embeddings, _window(text))
        self.max_model_len: int = min(limit for limit in limits if limit)
        self.stop_ids = frozenset(_as_list(self.model.generation_config.eos_token_id) + _as_list(self.tokenizer.eos_token_id))
        self.thinks = thinks(self.tokenizer)
        self._grammars: Grammars | None = None
        self._making_grammars = threading.Lock()
        self.scheduler = Scheduler(self.model, max_running=max_running)
        self.scheduler.start()

    def close(self) -> None:
        self.scheduler.stop()

    def begins_thinking(self, prompt_ids: list[int]) -> bool:
        """Whether a prompt [P] ends inside of a thought, so that the model goes on with it."""
        return self.thinks and begun(self.tokenizer.decode(prompt_ids[-8:]))

    def compile(self, grammar: str) -> str:
        """A grammar in Lark, ready for ``sample``; a second at the first time. Raises ``ValueError`` for one that cannot be followed."""
        with self._making_grammars:
            self._grammars = self._grammars or Grammars(self.tokenizer, self.vocab_size, self.stop_ids)
        return self._grammars.compile(grammar)

    def sample(self, prompt_ids: list[int], sampling: Sampling, n: int = 1, grammar: str | None = None) -> Samples:
        """Start ``n`` samples of one prompt [P]. ``grammar``: a compiled one, which each must follow. Raises ``ValueError`` when the prompt
        is empty or leaves no room for an answer."""
        if not prompt_ids:
            raise ValueError("the prompt has no tokens")
        room = self.max_model_len - len(prompt_ids)
        if room < 1:
            raise ValueError(f"the prompt has {len(prompt_ids)} tokens, the context holds {self.max_model_len}")
        samples = Samples(n)
        prompt = np.array(prompt_ids, dtype=np.int64)
        for choice in range(n):
            generator = None
            if sampling.seed is not None:
                generator = torch.Generator().manual_seed((sampling.seed + choice) % 2**63)
            samples.sequences.append(
                Sequence(
                    prompt=prompt,
                    sampling=sampling,
                    max_new=min(sampling.max_tokens or room, room),
                    stop_ids=self.stop_ids,
                    emit=partial(samples.post_token, choice),
                    fail=samples.post,
                    generator=generator,
                    constraint=self._grammars.follow(grammar) if grammar and self._grammars else None,
                )
            )
        self.scheduler.submit(samples.sequences)
        return samples


class Samples:
    """The tokens of one request's choices as they are drawn: ``async for tokens in samples`` gives a list a decoding step."""

    def __init__(self, n: int) -> None:
        self.sequences: list[Sequence] = []
        self._open = set(range(n))
        self._loop = asyncio.get_running_loop()
        self._arrived: asyncio.Queue[Token | BaseException] = asyncio.Queue()

    def post(self, item: Token | BaseException) -> None:
        with suppress(RuntimeError):  # the event loop has closed, and nobody reads any more: no reason to fail what others wait for
            self._loop.call_soon_threadsafe(self._arrived.put_nowait, item)

    def post_token(self, choice: int, sampled: Sampled, reason: str | None) -> None:
        self.post(Token(choice, sampled, reason))

    def end(self, choice: int) -> None:
        """No more of this choice: a stop string was met."""
        self.sequences[choice].cancelled.set()
        self._open.discard(choice)

    def close(self) -> None:
        for sequence in self.sequences:
            sequence.cancelled.set()

    async def __aiter__(self) -> AsyncIterator[list[Token]]:
        """Raises whatever ended the decoding, such as an out-of-memory error."""
        while self._open:
            items = [await self._arrived.get()]
            while not self._arrived.empty():
                items.append(self._arrived.get_nowait())
            tokens = []
            for item in items:
                if isinstance(item, BaseException):
                    raise item
                if item.choice in self._open:
                    tokens.append(item)
                    if item.reason is not None:
                        self._open.discard(item.choice)
            yield tokens


def _check_architecture(config: Any, model_dir: Path) -> None:
    layers = getattr(config.get_text_config(), "layer_types", None) or []
    if any(layer != "full_attention" for layer in layers) or getattr(config, "is_encoder_decoder", False):
        raise UsageError(f"{model_dir}: {config.model_type} needs attention that the embedded engine does not have", "serve it with vLLM")


def _window(config: Any) -> int | None:
    """The sliding window where the model has one: up to its length, such attention is the full attention that we have."""
    return getattr(config, "sliding_window", None) if getattr(config, "use_sliding_window", True) else None


def _as_list(value: int | list[int] | None) -> list[int]:
    return [] if value is None else [value] if isinstance(value, int) else list(value)
