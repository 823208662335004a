"""The audit of each call, at its capture: are its ids whole, and do they follow what the attempt sampled before?"""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from leyden.audit import LOGPROB_FLOOR, Audit, Continuity, Finding
from leyden.errors import LeydenError
from leyden.proxy.continuity import Verdict, judge
from leyden.proxy.deployments import Deployment, Dialect
from leyden.proxy.engine_facts import EngineFacts
from leyden.proxy.refusal import Refusal
from leyden.proxy.trail import Place, Trail, preamble_of
from leyden.proxy.trails import Trails
from leyden.server.codec import int32_array
from leyden.types import Generation, LeaseRef

FINISHED = frozenset({"stop", "length", "tool_calls", "function_call", "content_filter"})
TEXTS = 8  # realigned calls of one attempt whose differences are told as text; of the others, the position


@dataclass(frozen=True)
class Sampled:
    """What one choice came with."""

    token_ids: list[int] | None
    logprobs: list[float] | None
    finish_reason: str | None


class Auditor:
    """One for a proxy. ``place`` before a call is sent, ``audit`` once it is answered, ``keep`` once it is committed."""

    def __init__(self, trails: Trails, facts: EngineFacts) -> None:
        self._trails = trails
        self._facts = facts

    async def place(self, ref: LeaseRef, deployment: Deployment, body: Mapping[str, Any]) -> Place | None:
        """Where the request stands among the attempt's calls; None for an engine that gives no ids to compare."""
        if deployment.dialect is not Dialect.VLLM:
            return None
        self._facts.ask(deployment)
        try:
            return await self._trails.place(ref, preamble_of(body), body.get("messages") or [])
        except LeydenError as error:
            message = f"what the attempt has sampled so far could not be read: {error.message}"
            raise Refusal(503, "store_unavailable", message, error.hint, retry_after="1") from error

    async def audit(
        self,
        ref: LeaseRef,
        deployment: Deployment,
        place: Place,
        prompt: list[int] | None,
        choices: Sequence[Sampled],
        usage: Mapping[str, Any],
        exact: bool,
    ) -> list[Audit]:
        """One for each choice. The choices of a call share its prompt, and what is wrong with their common count."""
        vocabulary = await self._facts.vocabulary(deployment)
        counted = _counts_agree(prompt, choices, usage)
        known = not prompt or _are_known(place.ids(prompt), prompt, vocabulary)
        verdict, texts = None, ("", "")
        if prompt:
            trail = self._trails.of(ref)
            verdict = judge(place, prompt, trail)
            texts = await self._texts(deployment, trail, verdict)
        return [
            Audit(
                findings=tuple(_findings(prompt, known, choice, vocabulary, counted)),
                continuity=None if verdict is None else verdict.continuity,
                follows=verdict.follows.generation_id if verdict and verdict.follows else None,
                differs_at=None if verdict is None else verdict.differs_at,
                expected=texts[0] or None,
                found=texts[1] or None,
                changed=None if verdict is None else verdict.changed,
                exact=exact,
                vocabulary=vocabulary,
            )
            for choice in choices
        ]

    def keep(self, ref: LeaseRef, place: Place, generations: Sequence[Generation]) -> None:
        """What the attempt's next calls may go on with."""
        self._trails.keep(ref, place, generations)

    async def _texts(self, deployment: Deployment, trail: Trail, verdict: Verdict) -> tuple[str, str]:
        if verdict.continuity is not Continuity.REALIGNED or trail.texts_told >= TEXTS:
            return "", ""
        trail.texts_told += 1
        texts = await self._facts.texts(deployment, [*verdict.expected, *verdict.found])
        return _marked(*texts[:3]), _marked(*texts[3:])


def _marked(before: str, there: str, after: str) -> str:
    """The token that differs between marks: the texts may be the same, and only cut differently."""
    return f"{before}«{there}»{after}"


def _findings(prompt: list[int] | None, prompt_known: bool, choice: Sampled, vocabulary: int | None, counted: bool) -> list[Finding]:
    found = []
    if not prompt or choice.token_ids is None:
        found.append(Finding.NO_IDS)
    elif not (prompt_known and _are_known(int32_array(choice.token_ids), choice.token_ids, vocabulary)):
        found.append(Finding.OUT_OF_VOCABULARY)
    if not counted:
        found.append(Finding.COUNT_MISMATCH)
    if choice.token_ids is not None and len(choice.logprobs or ()) != len(choice.token_ids):
        found.append(Finding.LOGPROBS_MISALIGNED)
    if choice.logprobs and not (all(map(math.isfinite, choice.logprobs)) and min(choice.logprobs) > LOGPROB_FLOOR):
        found.append(Finding.LOGPROBS_NOT_FINITE)
    if choice.finish_reason not in FINISHED:
        found.append(Finding.FINISH_UNKNOWN)
    return found


def _are_known(packed: array[int], ids: list[int], vocabulary: int | None) -> bool:
    """``packed``: the same ids. The last of an id's four bytes holds its sign: to look at those is far faster than ``min``."""
    return packed.tobytes()[3::4].isascii() and (vocabulary is None or max(ids, default=0) < vocabulary)


def _counts_agree(prompt: list[int] | None, choices: Sequence[Sampled], usage: Mapping[str, Any]) -> bool:
    """Of ids that are there: as many as the engine says it read and sampled. Usage is the sum over the choices."""
    if prompt and usage.get("prompt_tokens") != len(prompt):
        return False
    if any(choice.token_ids is None for choice in choices):
        return True  # missing ones are a finding of their own
    return usage.get("completion_tokens") == sum(len(choice.token_ids or ()) for choice in choices)
