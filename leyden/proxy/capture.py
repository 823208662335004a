"""What one call sampled, gathered from a whole answer or chunk by chunk, and written down as generations."""

from __future__ import annotations

import hashlib
import math
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any, Literal

from leyden.audit import Audit, Continuity
from leyden.proxy.asked import Asked
from leyden.proxy.auditing import Auditor, Sampled
from leyden.proxy.deployments import Deployment
from leyden.proxy.exact import ExactUpstream
from leyden.proxy.passthrough import PassThrough
from leyden.proxy.trail import Place
from leyden.record import new_id
from leyden.types import Generation, LeaseRef, Span

# Parts of a request that say what was asked; what is left, but for the envelope, is how it was sampled.
_CONTENT = (
    "messages", "tools", "tool_choice", "parallel_tool_calls", "response_format", "functions", "function_call", "chat_template_kwargs",
    "prompt", "suffix",
)  # fmt: skip
_ENVELOPE = (
    "model", "stream", "stream_options", "logprobs", "top_logprobs", "return_token_ids", "user", "metadata", "store", "service_tier",
    "safety_identifier", "prompt_cache_key", "prompt_cache_retention",
)  # fmt: skip


@dataclass
class _Choice:
    message: dict[str, Any] = field(default_factory=dict)
    token_ids: list[int] | None = None
    logprobs: list[float] | None = None
    finish_reason: str | None = None

    @property
    def adds_up(self) -> bool:
        """One log-probability for each token id; otherwise nobody can say which belongs to which."""
        return len(self.logprobs or ()) == len(self.token_ids or ())

    def add_tokens(self, part: dict[str, Any]) -> None:
        if (ids := part.get("token_ids")) is not None:
            self.token_ids = self.token_ids or []
            self.token_ids.extend(ids)
        if (content := (part.get("logprobs") or {}).get("content")) is not None:
            self.logprobs = self.logprobs or []
            # What JSON cannot hold comes as null. It is no number, and spoils itself only.
            self.logprobs += [math.nan if token["logprob"] is None else token["logprob"] for token in content]
        self.finish_reason = part.get("finish_reason") or self.finish_reason

    def add_delta(self, delta: dict[str, Any]) -> None:
        for name, value in delta.items():
            if name == "tool_calls":
                self._add_tool_calls(value or ())
            elif isinstance(value, str) and name != "role":
                self.message[name] = (self.message.get(name) or "") + value
            elif value is not None:
                self.message[name] = value

    def _add_tool_calls(self, deltas: Sequence[dict[str, Any]]) -> None:
        calls = self.message.setdefault("tool_calls", {})
        for delta in deltas:
            call = calls.setdefault(delta.get("index", 0), {"id": None, "type": "function", "function": {"name": "", "arguments": ""}})
            call["id"] = delta.get("id") or call["id"]
            function = delta.get("function") or {}
            call["function"]["name"] += function.get("name") or ""
            call["function"]["arguments"] += function.get("arguments") or ""


class Capture:
    """One call in the making. Feed it ``add_response`` or ``add_chunk``; ``generations`` is its record at any moment."""

    def __init__(self, asked: Asked, ref: LeaseRef, counters: Counter[str], auditor: Auditor) -> None:
        self._asked = asked
        self._ref = ref
        self._counters = counters
        self._auditor = auditor
        self._place: Place | None = None
        self._exactly: ExactUpstream | None = None
        self._audits: list[Audit] = []
        self._call_id = f"call-{new_id(32)}"
        self._started_at = time.time_ns() // 1000
        self._started = time.monotonic()
        self._deployment: Deployment | None = None
        self._sent: dict[str, Any] = asked.body
        self._prompt_token_ids: list[int] | None = None
        self._choices: dict[int, _Choice] = {}
        self._usage: dict[str, Any] = {}
        self._response_id: str | None = None

    def clear(self) -> None:
        """Forget what was gathered: it was not understood."""
        self._prompt_token_ids, self._choices, self._usage, self._audits = None, {}, {}, []

    async def sent(self, deployment: Deployment, body: dict[str, Any]) -> None:
        """Call it before it is. Raises ``Refusal`` (503) where the attempt's earlier calls are needed and cannot be had."""
        self._deployment, self._sent = deployment, body
        self._place = await self._auditor.place(self._ref, deployment, body)

    def exactly(self, passthrough: PassThrough) -> ExactUpstream:
        """Whom to ask instead of ``passthrough``, so that the prompt goes on with the ids that were sampled."""
        assert self._place is not None  # exact deployments give ids
        self._exactly = ExactUpstream(passthrough, self._place)
        return self._exactly

    async def audit(self) -> None:
        """Once the call is finished, before it is committed."""
        if self._place is None or self._deployment is None:
            return
        choices = [Sampled(choice.token_ids, choice.logprobs, choice.finish_reason) for _, choice in sorted(self._choices.items())]
        exact = self._exactly is not None and self._exactly.spliced
        self._audits = await self._auditor.audit(
            self._ref, self._deployment, self._place, self._prompt_token_ids, choices, self._usage, exact
        )
        noted = {str(finding) for audit in self._audits for finding in audit.findings}
        noted |= {str(audit.continuity) for audit in self._audits if audit.continuity in (Continuity.REALIGNED, Continuity.FORKED)}
        self._counters.update(noted)

    def keep(self, generations: Sequence[Generation]) -> None:
        """Once they are committed: the attempt's next calls may go on with them."""
        if self._place is not None:
            self._auditor.keep(self._ref, self._place, generations)

    @property
    def finished(self) -> bool:
        """Every choice asked for has its finish reason: what follows carries no more samples."""
        return sum(choice.finish_reason is not None for choice in self._choices.values()) >= self._asked.n

    def add_response(self, response: dict[str, Any]) -> None:
        self._add_call(response)
        for position, part in enumerate(response.get("choices") or ()):
            choice = self._choice(part.get("index", position))
            choice.message = part.get("message") or {}
            choice.add_tokens(part)

    def add_chunk(self, chunk: dict[str, Any]) -> None:
        self._add_call(chunk)
        for part in chunk.get("choices") or ():
            choice = self._choice(part.get("index", 0))
            choice.add_delta(part.get("delta") or {})
            choice.add_tokens(part)

    def _choice(self, index: int) -> _Choice:
        choice = self._choices.get(index)
        if choice is None:
            choice = self._choices[index] = _Choice()
        return choice

    def _add_call(self, response: dict[str, Any]) -> None:
        self._response_id = self._response_id or response.get("id")
        if response.get("prompt_token_ids") is not None:
            self._prompt_token_ids = response["prompt_token_ids"]
        self._usage = response.get("usage") or self._usage

    def generations(self, status: Literal["ok", "error", "disconnected"] = "ok", error: str | None = None) -> list[Generation]:
        """One row a choice, in order; one empty row if there was none."""
        latency = time.monotonic() - self._started
        content = {name: self._sent[name] for name in _CONTENT if name in self._sent}
        sampling = {name: value for name, value in self._sent.items() if name not in _CONTENT + _ENVELOPE and value is not None}
        audits = self._audits if status == "ok" else []
        return [
            Generation(
                id=f"gen-{new_id(32)}",
                call_id=self._call_id,
                rollout_id=self._ref.rollout_id,
                attempt=self._ref.attempt,
                choice=index,
                model=self._asked.model,
                deployment=self._deployment.id if self._deployment else None,
                checkpoint=self._deployment.checkpoint if self._deployment else None,
                status=status,
                error=error,
                prompt_token_ids=self._prompt_token_ids,
                response_token_ids=choice.token_ids,
                logprobs=choice.logprobs if choice.adds_up else None,
                sampling=sampling,
                finish_reason=choice.finish_reason,
                prompt_tokens=self._usage.get("prompt_tokens"),
                completion_tokens=self._completion_tokens(choice),
                request=content,
                response=_plain(choice.message) if choice.message else None,
                started_at=self._started_at,
                latency=latency,
                audit=audit,
            )
            for (index, choice), audit in zip_longest(sorted((self._choices or {0: _Choice()}).items()), audits)
        ]

    def span(self, generations: Sequence[Generation]) -> Span:
        """The call as tracers tell it (OpenTelemetry's ``gen_ai`` names), beside its rows. All calls of an attempt are in one trace."""
        first = generations[0]
        attributes = {
            "gen_ai.operation.name": "chat",
            "gen_ai.request.model": first.model,
            "gen_ai.response.id": self._response_id,
            "gen_ai.usage.input_tokens": self._usage.get("prompt_tokens"),
            "gen_ai.usage.output_tokens": self._usage.get("completion_tokens"),
            "gen_ai.response.finish_reasons": [row.finish_reason for row in generations if row.finish_reason],
            "error.type": None if first.status == "ok" else first.status,
            "error.message": first.error,
            "leyden.call_id": first.call_id,
            "leyden.generation_ids": [row.id for row in generations],
            "leyden.deployment": first.deployment,
            "leyden.checkpoint": first.checkpoint,
        }
        start = first.started_at * 1000
        return Span(
            trace_id=hashlib.sha256(f"{first.rollout_id}/{first.attempt}".encode()).hexdigest()[:32],
            span_id=first.call_id[-16:],
            name=f"chat {first.model}",
            kind="client",
            start_ns=start,
            end_ns=start + round(first.latency * 1e9),
            status="ok" if first.status == "ok" else "error",
            attributes={name: value for name, value in attributes.items() if value not in (None, [])},
        )

    def _completion_tokens(self, choice: _Choice) -> int | None:
        if self._asked.n == 1:
            return self._usage.get("completion_tokens")
        return len(choice.token_ids) if choice.token_ids is not None else None  # usage is the sum over the choices


def _plain(message: dict[str, Any]) -> dict[str, Any]:
    """The same message however it came: streamed or not, with or without the nulls and empty lists engines add."""
    calls = message.get("tool_calls") or []
    if isinstance(calls, dict):  # gathered from deltas, by index
        calls = [call for _, call in sorted(calls.items())]
    rest = {name: value for name, value in message.items() if name not in ("role", "content", "tool_calls")}
    rest = {name: value for name, value in rest.items() if value not in (None, "", [], {})}
    plain = {"role": message.get("role", "assistant"), "content": message.get("content") or (None if calls else ""), **rest}
    if calls:
        plain["tool_calls"] = calls
    return plain
