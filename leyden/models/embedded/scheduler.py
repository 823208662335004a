"""Decodes all requests together: one thread, one forward pass a step, prompts and continuations in the same pass."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch

from leyden.models.embedded.attention import PromptRun, Step
from leyden.models.embedded.grammar import Constraint
from leyden.models.embedded.kv import MIN_SHARED, Prefix, PrefixCache, Remains, Slots, common_length
from leyden.models.embedded.sampling import Sampled, Sampling, sample

IDLE = 30.0  # seconds without work, after which memory that long sequences took is given back


@dataclass(eq=False)
class Sequence:
    """One sample of one request. ``emit(sampled, finish_reason)`` is called on the scheduler's thread for each new token."""

    prompt: np.ndarray  # [P] int64
    sampling: Sampling
    max_new: int
    stop_ids: frozenset[int]
    emit: Callable[[Sampled, str | None], None]
    fail: Callable[[BaseException], None]
    cancelled: threading.Event = field(default_factory=threading.Event)
    generator: torch.Generator | None = None
    constraint: Constraint | None = None
    prefix: Prefix | None = None
    slot: int = -1
    own: int = 0  # own tokens whose keys and values are in the slot
    output: list[int] = field(default_factory=list)

    @property
    def computed(self) -> int:
        return (len(self.prefix) if self.prefix else 0) + self.own

    @property
    def decoding(self) -> bool:
        return bool(self.output)

    def tokens(self) -> np.ndarray:
        return np.concatenate([self.prompt, np.array(self.output, dtype=np.int64)])


class Scheduler:
    """Owns the model. ``submit`` from any thread; ``start`` and ``stop`` once."""

    def __init__(self, model: torch.nn.Module, *, max_running: int = 64, max_step_tokens: int = 1024) -> None:
        config = model.config.get_text_config()
        heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        head_size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        self.model = model
        self.max_running, self.max_step_tokens = max_running, max_step_tokens
        parameter = next(model.parameters())
        self.device = parameter.device
        self.slots = Slots(config.num_hidden_layers, heads, head_size, parameter.dtype, parameter.device)
        self.cache = PrefixCache()
        self.counters = {"steps": 0, "prompt_tokens": 0, "reused_tokens": 0, "sampled_tokens": 0}
        self._waiting: deque[Sequence] = deque()
        self._running: list[Sequence] = []  # the sequence in slot i is _running[i]; decoding ones come first
        self._wake = threading.Condition()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="leyden-decode", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        with self._wake:
            self._stopping = True
            self._wake.notify()
        self._thread.join()

    def submit(self, sequences: list[Sequence]) -> None:
        with self._wake:
            self._waiting.extend(sequences)
            self._wake.notify()

    @torch.inference_mode()
    def _run(self) -> None:
        while True:
            with self._wake:
                if not self._wake.wait_for(self._has_work, timeout=IDLE):
                    self.slots.reset()
                    self._wake.wait_for(self._has_work)
                if self._stopping:
                    break
                self._admit()
            try:
                self._step()
            except Exception as error:  # a failed pass (out of memory, say) ends its requests with an error, not the engine
                for sequence in self._running:
                    sequence.fail(error)
                self._running.clear()
        for sequence in [*self._waiting, *self._running]:
            sequence.fail(RuntimeError("the engine is stopping"))

    def _has_work(self) -> bool:
        return bool(self._waiting or self._running or self._stopping)

    def _admit(self) -> None:
        """Give slots to waiting sequences, except those whose start another one is computing right now."""
        held: list[Sequence] = []
        while self._waiting and len(self._running) < self.max_running:
            sequence = self._waiting.popleft()
            if sequence.cancelled.is_set():
                continue
            try:
                if not self._place(sequence):
                    held.append(sequence)
            except Exception as error:  # no memory for it, say: it ends with an error, and the engine goes on
                sequence.fail(error)
        self._waiting.extendleft(reversed(held))

    def _place(self, sequence: Sequence) -> bool:
        """Put it into the next slot behind what can be reused; False if it had better wait for another one's prompt."""
        reuse = self.cache.find(sequence.prompt)
        other, shared = self._better_start(sequence.prompt, reuse.length)
        if other is not None:
            if other.computed < shared:
                return False
            keys, values = self.slots.keys[:, other.slot, :, :shared], self.slots.values[:, other.slot, :, :shared]
            self.cache.share(other.prompt[:shared], keys, values)
            reuse = self.cache.find(sequence.prompt)
        slot, own = len(self._running), 0 if reuse.keys is None else reuse.keys.shape[2]
        self.slots.ensure(own, slot + 1)
        if reuse.keys is not None and reuse.values is not None:
            self.slots.keys[:, slot, :, :own] = reuse.keys
            self.slots.values[:, slot, :, :own] = reuse.values
        sequence.prefix, sequence.slot, sequence.own = reuse.prefix, slot, own
        self.counters["prompt_tokens"] += len(sequence.prompt)
        self.counters["reused_tokens"] += reuse.length
        self._running.append(sequence)
        return True

    def _better_start(self, prompt: np.ndarray, reusable: int) -> tuple[Sequence | None, int]:
        """A running sequence without a prefix that shares a good deal more of ``prompt`` than what is cached, and how much."""
        best, length = None, reusable + MIN_SHARED - 1
        for other in self._running:
            if other.prefix is None:
                shared = common_length(other.prompt, prompt[:-1])
                if shared > length:
                    best, length = other, shared
        return best, length

    def _step(self) -> None:
        self._drop_cancelled()
        if not self._running:
            return
        self._running.sort(key=lambda s: not s.decoding)
        self._settle_slots()
        decoding = [s for s in self._running if s.decoding]
        tokens: list[int] = [s.output[-1] for s in decoding]
        positions: list[int] = [s.computed for s in decoding]
        last_rows = list(range(len(decoding)))
        sampled = list(decoding)
        prompts: list[tuple[Sequence, PromptRun]] = []
        budget = self.max_step_tokens
        for sequence in self._running[len(decoding) :]:
            if budget <= 0:
                break
            chunk = sequence.prompt[sequence.computed : sequence.computed + budget]
            start = len(tokens)
            tokens.extend(chunk.tolist())
            positions.extend(range(sequence.computed, sequence.computed + len(chunk)))
            prompts.append((sequence, PromptRun(sequence.slot, start, len(tokens), sequence.own)))
            budget -= len(chunk)
            if sequence.computed + len(chunk) == len(sequence.prompt):
                last_rows.append(len(tokens) - 1)
                sampled.append(sequence)
        longest = max([s.own + 1 for s in decoding] + [run.own + run.stop - run.start for _, run in prompts])
        self.slots.ensure(longest, len(self._running))
        step = self._describe(decoding, prompts)
        logits = self.model(
            input_ids=self._tensor([tokens]),
            position_ids=self._tensor([positions]),
            use_cache=False,
            logits_to_keep=self._tensor(last_rows),
            step=step,
        ).logits[0]
        self.counters["steps"] += 1
        for sequence in decoding:
            sequence.own += 1
        for sequence, run in prompts:
            sequence.own += run.stop - run.start
        if sampled:
            allowed = {row: s.constraint.allowed() for row, s in enumerate(sampled) if s.constraint}
            self._emit(sampled, sample(logits, [s.sampling for s in sampled], [s.generator for s in sampled], allowed))

    def _describe(self, decoding: list[Sequence], prompts: list[tuple[Sequence, PromptRun]]) -> Step:
        members: dict[int, tuple[Prefix, list[int]]] = {}
        rows = [(s, range(i, i + 1)) for i, s in enumerate(decoding)] + [(s, range(run.start, run.stop)) for s, run in prompts]
        for sequence, span in rows:
            if sequence.prefix is not None:
                members.setdefault(id(sequence.prefix), (sequence.prefix, []))[1].extend(span)
        return Step(
            slots=self.slots,
            decode_slots=self._tensor([s.slot for s in decoding]),
            decode_own=self._tensor([s.own for s in decoding]),
            longest_own=1 + max((s.own for s in decoding), default=0),
            prompts=[run for _, run in prompts],
            prefixes=[(prefix, self._tensor(span)) for prefix, span in members.values()],
        )

    def _emit(self, sequences: list[Sequence], drawn: list[Sampled]) -> None:
        self.counters["sampled_tokens"] += len(drawn)
        finished = set()
        for sequence, token in zip(sequences, drawn, strict=True):
            sequence.output.append(token.token)
            if sequence.constraint:
                sequence.constraint.take(token.token)
            reason = None
            if token.token in sequence.stop_ids:
                reason = "stop"
            elif len(sequence.output) >= sequence.max_new:
                reason = "length"
            sequence.emit(token, reason)
            if reason:
                finished.add(id(sequence))
        if finished:
            self._retire(finished)

    def _drop_cancelled(self) -> None:
        gone = {id(s) for s in self._running if s.cancelled.is_set()}
        if gone:
            self._retire(gone)

    def _retire(self, gone: set[int]) -> None:
        for sequence in self._running:
            if id(sequence) in gone and sequence.own:
                tokens = sequence.tokens()[: sequence.computed]
                keys = self.slots.keys[:, sequence.slot, :, : sequence.own].clone()
                values = self.slots.values[:, sequence.slot, :, : sequence.own].clone()
                self.cache.keep(Remains(tokens, sequence.prefix, keys, values))
        self._running = [s for s in self._running if id(s) not in gone]
        self._settle_slots()

    def _settle_slots(self) -> None:
        """Move sequences so that ``_running[i]`` sits in slot i: attention then reads the decoding ones as one block."""
        for slot, sequence in enumerate(self._running):
            if sequence.slot == slot:
                continue
            other = next((s for s in self._running if s.slot == slot), None)
            if other is not None:
                length = max(sequence.own, other.own)
                keys = self.slots.keys[:, slot, :, :length].clone()
                values = self.slots.values[:, slot, :, :length].clone()
                self.slots.move(sequence.slot, slot, length)
                self.slots.keys[:, sequence.slot, :, :length] = keys
                self.slots.values[:, sequence.slot, :, :length] = values
                other.slot = sequence.slot
            else:
                self.slots.move(sequence.slot, slot, sequence.own)
            sequence.slot = slot

    def _tensor(self, values: list) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.long, device=self.device)
