"""The store's calls for what happens in attempts: spans, generations, rewards."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from pydantic import ValidationError

from leyden.audit import AuditCounts, CallAudit
from leyden.errors import Busy, InvalidRequest, LeydenError, Unavailable
from leyden.server import messages
from leyden.server.executor import Executor
from leyden.server.intake import Intake
from leyden.server.interface import AttemptEnd
from leyden.server.operations import attempts as attempt_ops
from leyden.server.operations import audits as audit_ops
from leyden.server.operations import captured as captured_ops
from leyden.server.operations import generations as generation_ops
from leyden.server.operations import rejections as rejection_ops
from leyden.server.operations import rewards as reward_ops
from leyden.server.operations import spans as span_ops
from leyden.server.operations import traces as trace_ops
from leyden.server.operations.generations import Recorded
from leyden.server.queries import SpanQuery, Trace, TraceQuery
from leyden.server.rejected import Rejected
from leyden.server.rows import MAX_BYTES, Batch, batch_of_ends, batch_of_spans, generation_batch, span_batches
from leyden.types import Generation, LeaseRef, Mode, Rejection, Reward, RolloutState, Span

log = logging.getLogger(__name__)


class Capture:
    """A part of ``SQLStore``. Rows are made in threads of the intake: a large body holds up neither the event loop nor the writer."""

    _executor: Executor
    intake: Intake

    async def add_spans(self, ref: LeaseRef, spans: Sequence[Span]) -> int:
        self._executor.check_growth()
        batches = await self.intake.work(lambda: list(span_batches(spans)))
        with self._room_for(batches):
            return sum([await self._executor.write_bulk(batch.size, span_ops.add_spans, ref, batch) for batch in batches])

    async def add_encoded_spans(self, ref: LeaseRef, spans: Sequence[bytes]) -> int:
        try:
            return await self.add_spans(ref, messages.SPANS.validate_json(b"[" + b",".join(spans) + b"]"))
        except ValidationError as error:
            raise InvalidRequest(f"spans: {error.errors(include_url=False)[0]['msg']}") from error

    async def add_exported(self, batches: Sequence[Batch], rejected: Rejected) -> Rejected:
        """Store spans that name their attempts themselves, or none. Returns ``rejected`` with those of attempts that do not exist; it is
        counted in the commit of the last ones."""
        self._executor.check_growth()
        if rejected.total and not batches:
            batches = [Batch()]
        with self._room_for(batches):
            unknown = [
                await self._executor.write_bulk(batch.size, span_ops.add_exported, batch, rejected if n == len(batches) else Rejected())
                for n, batch in enumerate(batches, 1)
            ]
        return Rejected().merge([rejected, *unknown])

    async def add_generations(self, ref: LeaseRef, generations: Sequence[Generation], spans: Sequence[Span] = ()) -> None:
        call = messages.AddGenerations(ref=ref, generations=list(generations), spans=list(spans))
        for error in await self.add_calls([call]):
            if error is not None:
                raise error

    async def add_calls(self, calls: Sequence[messages.AddGenerations]) -> list[LeydenError | None]:
        """Each as ``add_generations``, and what came of it: None, or why it was refused. Raises ``Busy`` and ``Unavailable``: then all are
        to be sent again."""
        self._executor.check_growth()
        small = all(_is_small(item) for call in calls for item in call.generations)
        try:
            parts = _recorded(calls) if small else await self.intake.work(_recorded, calls)
        except Unavailable:
            raise
        except Exception as error:
            if len(calls) == 1:
                return [_told(error)]
            return [outcome for call in calls for outcome in await self.add_calls([call])]
        with self._room_for([batch for part in parts for call in part for batch in (call.batch, call.beside)]):
            return [outcome for part in parts for outcome in await self._store_calls(part)]

    async def _store_calls(self, calls: Sequence[Recorded]) -> list[LeydenError | None]:
        try:
            await self._executor.write_together(generation_ops.add_generations, calls, sum(call.size for call in calls))
            return [None] * len(calls)
        except (Busy, Unavailable):
            raise
        except Exception as error:
            if len(calls) == 1:
                return [_told(error)]
        return [outcome for outcomes in await asyncio.gather(*(self._store_calls([call]) for call in calls)) for outcome in outcomes]

    @contextmanager
    def _room_for(self, batches: Sequence[Batch]) -> Iterator[None]:
        with self.intake.holding() as hold:
            hold(sum(batch.size for batch in batches))
            yield

    async def add_rewards(self, ref: LeaseRef, rewards: Sequence[Reward]) -> None:
        await self._executor.write(reward_ops.add_rewards, ref, tuple(rewards))

    async def add_scores(self, rollout_id: str, attempt: int, rewards: Sequence[Reward]) -> None:
        await self._executor.write(reward_ops.add_scores, rollout_id, attempt, tuple(rewards))

    async def end_many(self, ends: Sequence[AttemptEnd]) -> list[RolloutState | None]:
        batch = await self.intake.work(batch_of_ends, ends)
        with self._room_for([batch]):
            return await self._executor.write_bulk(batch.size, attempt_ops.end_many, tuple(ends), batch)

    async def end_attempts(self, ends: Sequence[AttemptEnd]) -> list[LeydenError | None]:
        batch = await self.intake.work(batch_of_ends, ends) if sum(len(end.spans) for end in ends) > FEW else batch_of_ends(ends)
        try:
            with self._room_for([batch]):
                await self._executor.write_together(attempt_ops.end_each, [attempt_ops.Report(tuple(ends), batch)], batch.size)
        except (Busy, Unavailable):
            raise
        except LeydenError as error:
            if len(ends) == 1:
                return [error]
            return [outcome for end in ends for outcome in await self.end_attempts([end])]
        return [None] * len(ends)

    async def list_spans(self, rollout_id: str, attempt: int | None = None) -> list[Span]:
        return await self._executor.read(span_ops.list_spans, rollout_id, attempt)

    async def query_spans(self, query: SpanQuery) -> list[Span]:
        return await self._executor.read(trace_ops.query_spans, query)

    async def list_traces(self, query: TraceQuery) -> list[Trace]:
        return await self._executor.read(trace_ops.list_traces, query)

    async def list_generations(self, rollout_ids: Sequence[str], attempt: int | None = None) -> list[Generation]:
        return await self._executor.read(generation_ops.list_generations, rollout_ids, attempt)

    async def list_audits(self, rollout_ids: Sequence[str], attempt: int | None = None) -> list[CallAudit]:
        return await self._executor.read(audit_ops.list_audits, rollout_ids, attempt)

    async def count_audits(self, run_id: str | None = None, iteration: int | None = None, mode: Mode | None = None) -> AuditCounts:
        return await self._executor.read(audit_ops.counts, run_id, iteration, mode)

    async def list_rewards(self, rollout_ids: Sequence[str], attempt: int | None = None) -> list[Reward]:
        return await self._executor.read(reward_ops.list_rewards, rollout_ids, attempt)

    async def list_rejections(self) -> list[Rejection]:
        return await self._executor.read(rejection_ops.list_rejections)

    async def attempt_of_key(self, key: str) -> tuple[str, int] | None:
        """Whose key this is, ended or not."""
        return await self._executor.read(captured_ops.attempt_of_key, key)


FEW = 16  # spans: their rows are made sooner than a thread is found for it
SMALL = 16 << 10  # characters, and ids: less work than to hand it to a thread and to wait for its turn there


def _recorded(calls: Sequence[messages.AddGenerations]) -> list[list[Recorded]]:
    """Cut where they are too much for one commit."""
    parts: list[list[Recorded]] = []
    room = 0
    for call in calls:
        made = Recorded(call.ref, generation_batch(call.ref, call.generations), batch_of_spans(call.spans))
        room -= made.size
        if not parts or room < 0:
            parts.append([])
            room = MAX_BYTES - made.size
        parts[-1].append(made)
    return parts


def _told(error: Exception) -> LeydenError:
    if isinstance(error, LeydenError):
        return error
    log.error("a call was not stored", exc_info=error)
    return LeydenError("the store failed on this call", "see the store's log")


def _is_small(item: Generation) -> bool:
    messages, tools = item.request.get("messages"), item.request.get("tools")
    texts = [message.get("content") for message in messages if isinstance(message, dict)] if isinstance(messages, list) else [messages]
    return (
        len(item.prompt_token_ids or ()) + len(item.response_token_ids or ()) <= SMALL
        and all(text is None or isinstance(text, str) for text in texts)
        and sum(len(text or "") for text in texts) <= SMALL
        and (tools is None or (isinstance(tools, list) and len(tools) <= 32))
    )
