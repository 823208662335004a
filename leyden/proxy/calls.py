"""One call from its request to its record: ask the deployment, capture, commit, and only then let the last byte go."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from contextlib import aclosing
from typing import Any, Literal

from leyden.errors import LeaseLost, LeydenError
from leyden.proxy.answers import DISCONNECTED, Answer, Answers, Fingerprint
from leyden.proxy.apis import Api
from leyden.proxy.asked import TEXT, Asked
from leyden.proxy.auditing import Auditor
from leyden.proxy.capture import Capture
from leyden.proxy.deployments import Deployment, Dialect
from leyden.proxy.engine_facts import EngineFacts
from leyden.proxy.exact import ExactUpstream
from leyden.proxy.litellm_bridge import LiteLLMBridge
from leyden.proxy.model_table import ModelTable
from leyden.proxy.passthrough import PassThrough
from leyden.proxy.refusal import ENGINE_GONE, NotReached, Refusal
from leyden.proxy.replicas import Replica, leading
from leyden.proxy.text_upstream import TextUpstream
from leyden.proxy.token_counts import TokenCounts
from leyden.proxy.trails import Trails
from leyden.server.interface import Store
from leyden.types import AttemptBinding, LeaseRef

log = logging.getLogger(__name__)

Status = Literal["ok", "error", "disconnected"]


class NotRecorded(Refusal):
    """The store did not take the record, so the agent does not get the sample."""


class Calls:
    """Every call in flight. Each runs in its own task, so that it can outlive one reader and be joined by another."""

    def __init__(self, store: Store, table: ModelTable, counters: Counter[str]) -> None:
        self._store = store
        self._table = table
        self._counters = counters
        self._passthrough = PassThrough()
        self._text = TextUpstream(self._passthrough)
        self.counts = TokenCounts(table, self._passthrough)
        self._facts = EngineFacts(self._passthrough)
        self._auditor = Auditor(Trails(store), self._facts)
        self._litellm = LiteLLMBridge()
        self._answers = Answers()
        self._live: set[Answer] = set()

    def answer(self, api: Api, asked: Asked, binding: AttemptBinding, fingerprint: Fingerprint, is_retry: bool) -> Answer:
        """A new call's answer; for a request marked as a retry, the answer that its first try is getting or got."""
        if is_retry and (first := self._answers.find(fingerprint)):
            self._counters["retries_joined"] += 1
            return first
        answer = Answer(api, asked)
        self._live.add(answer)
        answer.task = asyncio.create_task(self._run(asked, binding, answer))
        self._answers.begin(fingerprint, answer)
        answer.task.add_done_callback(lambda _: self._settle(fingerprint, answer))
        return answer

    def _settle(self, fingerprint: Fingerprint, answer: Answer) -> None:
        self._live.discard(answer)
        self._answers.settle(fingerprint, answer)

    async def stop(self) -> None:
        """Break off what is in flight, each with its record."""
        live = [(answer, answer.task) for answer in self._live if answer.task]
        for answer, _ in live:
            answer.abandon(Refusal(503, "proxy_stopped", "the proxy was stopped during the call"))
        await asyncio.gather(*(task for _, task in live), return_exceptions=True)
        self._facts.close()
        await self._passthrough.close()

    async def _run(self, asked: Asked, binding: AttemptBinding, answer: Answer) -> None:
        capture = Capture(asked, binding.ref, self._counters, self._auditor)
        try:
            await self._ask(asked, binding, capture, answer)
        except NotRecorded as refusal:
            answer.refuse(refusal)
        except Refusal as refusal:
            await self._fail(binding.ref, capture, answer, refusal)
        except asyncio.CancelledError:
            if answer.abandoned is None:  # the event loop is closing, not us
                raise
            await self._fail(binding.ref, capture, answer, answer.abandoned)
        except Exception:  # whatever an engine may send, the agent gets an answer and the call its record
            log.exception("a call failed inside the proxy")
            capture.clear()
            await self._fail(binding.ref, capture, answer, Refusal(500, "internal_error", "the proxy failed on this call", "see its log"))

    async def _fail(self, ref: LeaseRef, capture: Capture, answer: Answer, refusal: Refusal) -> None:
        answer.settling = True
        self._counters[refusal.code] += 1
        status: Status = "disconnected" if refusal.code == DISCONNECTED else "error"
        try:
            await self._commit(ref, capture, status, refusal.message)
        except NotRecorded as not_recorded:
            refusal = not_recorded
        answer.refuse(refusal)

    async def _ask(self, asked: Asked, binding: AttemptBinding, capture: Capture, answer: Answer) -> None:
        """Of the replicas that serve its checkpoint, the one that should; the next one where no connection was to be had."""
        replicas, llm = self._table.pick(binding.resources, asked.model)
        conversation = (binding.ref.rollout_id, binding.ref.attempt, leading(asked.body) if len(replicas.replicas) > 1 else b"")
        tried: list[Replica] = []
        while True:
            replica = await replicas.enter(conversation, tried)
            deployment = replica.deployment
            try:
                body = asked.upstream(deployment, llm.sampling_parameters if llm else {})
                await capture.sent(deployment, body)
                await (self._stream if asked.stream else self._whole)(deployment, body, asked, binding.ref, capture, answer)
                return
            except Refusal as refusal:
                if refusal.code == ENGINE_GONE:
                    replicas.lost(replica, self._is_alive)
                tried.append(replica)
                if not isinstance(refusal, NotReached) or answer.status is not None or not replicas.left_to_try(tried):
                    raise
                self._counters["moved_to_another_replica"] += 1
            finally:
                replicas.leave(replica)

    async def _whole(
        self, deployment: Deployment, body: dict[str, Any], asked: Asked, ref: LeaseRef, capture: Capture, answer: Answer
    ) -> None:
        response = await self._upstream(deployment, asked, capture).complete(deployment, body)
        capture.add_response(response)
        if not capture.finished:
            raise Refusal(502, "upstream_broken", f"{deployment.model_name} answered without {asked.n} finished choices")
        told = answer.form(response)  # before the commit: what cannot be told is an error, and recorded as one only
        answer.settling = True
        await self._commit(ref, capture)
        answer.whole(told)

    async def _stream(
        self, deployment: Deployment, body: dict[str, Any], asked: Asked, ref: LeaseRef, capture: Capture, answer: Answer
    ) -> None:
        held: list[bytes] = []  # from the chunk that ends the last choice on: an agent may leave at its finish reason
        async with aclosing(self._upstream(deployment, asked, capture).stream(deployment, body)) as chunks:
            async for chunk in chunks:
                capture.add_chunk(chunk)
                shown = answer.stream.chunk(chunk)
                if capture.finished:
                    held.append(shown)
                elif shown:
                    answer.write(shown)
        if not capture.finished:
            raise Refusal(502, "upstream_broken", f"{deployment.model_name} ended its stream before its last chunk")
        held.append(answer.stream.end())  # before the commit, as above
        answer.settling = True
        await self._commit(ref, capture)
        answer.write(b"".join(held))
        answer.end()

    def _upstream(
        self, deployment: Deployment, asked: Asked, capture: Capture
    ) -> PassThrough | LiteLLMBridge | TextUpstream | ExactUpstream:
        if asked.path == TEXT:
            return self._text
        if deployment.exact:
            return capture.exactly(self._passthrough)
        return self._litellm if deployment.dialect is Dialect.LITELLM else self._passthrough

    async def _is_alive(self, deployment: Deployment) -> bool:
        return deployment.dialect is Dialect.LITELLM or await self._passthrough.alive(deployment)  # a provider has nothing to look at

    async def _commit(self, ref: LeaseRef, capture: Capture, status: Status = "ok", error_text: str | None = None) -> None:
        """The rows and the call's span. Raises ``NotRecorded``, whatever went wrong: no agent gets an unrecorded sample."""
        if status == "ok":
            await capture.audit()
        generations = capture.generations(status, error_text)
        try:
            await self._store.add_generations(ref, generations, [capture.span(generations)])
        except Exception as error:
            self._counters["not_recorded"] += 1
            log.warning("a call of rollout %s was not recorded: %s", ref.rollout_id, error, exc_info=not isinstance(error, LeydenError))
            if isinstance(error, LeaseLost):
                raise NotRecorded(409, "lease_lost", error.message, "stop this attempt") from error
            raise NotRecorded(503, "upstream_not_recorded", f"the call could not be recorded: {error}", "is the store running?") from error
        capture.keep(generations)
        self._counters["calls"] += 1
