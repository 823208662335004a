"""The store over HTTP. Every call is safe to repeat, so the client repeats it until its deadline."""

from __future__ import annotations

import asyncio
import os
import random
import re
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack
from urllib.parse import quote, urlencode, urlsplit

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic_core import from_json

from leyden import errors
from leyden.audit import AuditCounts, CallAudit
from leyden.errors import Busy, InvalidRequest, LeydenError, Unavailable
from leyden.http.connection import BrokenOff, Response
from leyden.http.connections import Connections, NotConnected
from leyden.server import messages
from leyden.server.codec import encode
from leyden.server.interface import MAX_CALLS, MAX_WAIT, TOKEN, AttemptEnd, new_key, with_keys
from leyden.server.queries import Prune, Pruned, RolloutFilters, RolloutQuery, SpanQuery, Trace, TraceQuery, asked
from leyden.server.tokens import NewToken, Token
from leyden.together import Together
from leyden.types import (
    DEFAULT_QUEUE,
    Attempt,
    AttemptBinding,
    Counts,
    FailureKind,
    Generation,
    Lease,
    LeaseRef,
    Mode,
    NewRollout,
    Queue,
    Rejection,
    Resource,
    Resources,
    Reward,
    Rollout,
    Run,
    RunState,
    Span,
    Unset,
    Verdict,
    Worker,
)

DEADLINE = 30.0  # seconds a call goes on trying
FIRST_CONTACT = 3.0  # seconds, as long as the store has never answered: then the address is likely wrong, or it was not started
ANSWER_TIME = 15.0  # seconds for an answer, beyond what the call waits by itself
SLOWEST = 500_000  # bytes a second that a line is expected to carry
KEEP_ALIVE = 60.0  # seconds, less than the 75 after which a store closes an idle connection
CALLS_BYTES = 4 << 20  # of calls of a model in one request
RETRIED = frozenset({429, 502, 503, 504})

_PASSWORD = re.compile(r"//[^/]*@")

T = TypeVar("T")
M = TypeVar("M", bound=BaseModel)
_ERRORS: dict[str, type[LeydenError]] = {
    kind.code: kind
    for kind in (
        errors.UsageError,
        InvalidRequest,
        errors.NotFound,
        errors.Unauthorized,
        errors.Forbidden,
        errors.Conflict,
        errors.LeaseLost,
        errors.TooLarge,
        Busy,
        Unavailable,
    )
}


class StoreClient:
    """``Store`` at a URL. Use it in one event loop; ``async with StoreClient(url) as store``, or ``await store.close()``.

    ``token``: for a store that asks for one; None: that of ``LEYDEN_TOKEN``, if there is any.
    """

    def __init__(self, url: str, deadline: float = DEADLINE, token: str | None = None) -> None:
        self.url = url.rstrip("/")
        self.deadline = deadline  # seconds; a new value holds from the next call on
        self.busy_until = 0.0
        self._answered = False
        self.token = token = token or os.environ.get(TOKEN)  # for those that are to reach the same store
        if token and not (token.isascii() and token.isprintable()):
            raise errors.UsageError(f"what {TOKEN} holds is no token", "set it to what leyden token create has printed, and nothing else")
        self._headers = {"authorization": f"Bearer {token}"} if token else {}
        self._connections = Connections(KEEP_ALIVE)
        self._calls = Together(self._add_calls, MAX_CALLS, CALLS_BYTES, len, overlap=True)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()

    async def close(self) -> None:
        self._calls.stop()
        self._connections.close()

    # -- transport -----------------------------------------------------------------------------------------------------

    async def _get(self, path: str, answer: type[T] | TypeAdapter[T], **query: Any) -> T:
        given = urlencode({name: value for name, value in query.items() if value is not None})
        return self._read(answer, await self._send("GET", f"{path}?{given}" if given else path))

    async def _post(self, path: str, body: BaseModel | None, answer: type[T] | TypeAdapter[T] | None, wait: float = 0.0) -> T:
        data = b"{}" if body is None else encode(body)
        content = await self._send("POST", path, data, wait)
        return None if answer is None else self._read(answer, content)  # type: ignore[return-value]

    def _read(self, answer: type[T] | TypeAdapter[T], content: bytes) -> T:
        try:
            if isinstance(answer, TypeAdapter):
                return answer.validate_json(content)
            return answer.model_validate_json(content)  # type: ignore[attr-defined, no-any-return]
        except ValidationError as error:
            message = f"what answers at {self.url} is not a store of this version of Leyden"
            raise errors.UsageError(message, "check the store's URL, and that both sides run the same version") from error

    def _outcomes(self, content: bytes) -> list[LeydenError | None]:
        """What came of each of many."""
        found = self._read(messages.REFUSALS, content)
        return [None if said is None else _ERRORS.get(said.code, LeydenError)(said.message, said.hint) for said in found]

    async def _send(self, method: str, path: str, body: bytes = b"", wait: float = 0.0) -> bytes:
        wait = wait if 0 <= wait <= MAX_WAIT else 0.0  # the store says what is wrong with any other
        headers = {**self._headers, "content-type": "application/json"} if body else self._headers
        deadline = time.monotonic() + wait + (self.deadline if self._answered else min(self.deadline, FIRST_CONTACT))
        pause = 0.05
        while True:
            failure: LeydenError
            least = 0.0
            try:
                response, content = await self._exchange(method, path, headers, body, wait)
            except (NotConnected, BrokenOff, TimeoutError) as error:
                port = urlsplit(self.url).port or 4747
                failure = Unavailable(f"the store at {self.url} does not answer", f"start it with: store --port {port}")
                failure.__cause__ = error
            except ValueError as error:
                shown = _PASSWORD.sub("//***@", self.url)
                raise errors.UsageError(f"{shown!r} is not the URL of a store: {error}", "give it as http://127.0.0.1:4747") from error
            else:
                self._answered = True
                if response.status < 300:
                    return content
                failure = _error(self.url + path, response, content)
                if response.status not in RETRIED:
                    raise failure
                if isinstance(failure, Busy):
                    least = failure.retry_after
                    self.busy_until = max(self.busy_until, time.monotonic() + least)
            pause = min(pause * 2, 2.0)
            delay = max(least, pause * random.random())
            if time.monotonic() + delay > deadline:
                raise failure
            await asyncio.sleep(delay)

    async def _exchange(self, method: str, path: str, headers: dict[str, str], body: bytes, wait: float) -> tuple[Response, bytes]:
        async with asyncio.timeout(wait + ANSWER_TIME + len(body) / SLOWEST):
            response = await self._connections.request(method, self.url + path, headers, body)
            await response.begin()
        parts: list[bytes] = []
        while True:
            async with asyncio.timeout(ANSWER_TIME):  # for each: an answer may be long, and the line slow
                part = await response.read_some()
            if not part:
                return response, b"".join(parts)
            parts.append(part)

    # -- queue ---------------------------------------------------------------------------------------------------------

    async def enqueue(self, rollouts: Sequence[NewRollout]) -> list[Rollout]:
        return await self._post("/v1/rollouts", messages.Enqueue(rollouts=list(with_keys(rollouts))), messages.ROLLOUTS)

    async def claim(
        self,
        worker_id: str,
        limit: int = 1,
        wait: float = 0.0,
        lease_seconds: float | None = None,
        request_id: str | None = None,
        queues: Sequence[str] = (DEFAULT_QUEUE,),
    ) -> list[Lease]:
        body = {
            "worker_id": worker_id,
            "limit": limit,
            "wait": wait,
            "lease_seconds": lease_seconds,
            "request_id": request_id or new_key(),
            "queues": list(queues),
        }
        return await self._post("/v1/leases/claim", _checked(messages.Claim, body), messages.LEASES, wait)

    async def heartbeat(self, worker_id: str, leases: Sequence[LeaseRef], lease_seconds: float | None = None) -> list[Verdict]:
        body = messages.Heartbeat(worker_id=worker_id, leases=list(leases), lease_seconds=lease_seconds)
        return await self._post("/v1/leases/heartbeat", body, messages.VERDICTS)

    async def complete(self, ref: LeaseRef, rewards: Sequence[Reward] = ()) -> Rollout:
        return await self._post("/v1/leases/complete", messages.Complete(ref=ref, rewards=list(rewards)), Rollout)

    async def fail(self, ref: LeaseRef, failure: FailureKind, error: str | None = None) -> Rollout:
        return await self._post("/v1/leases/fail", messages.Fail(ref=ref, failure=failure, error=error), Rollout)

    async def end_attempts(self, ends: Sequence[AttemptEnd]) -> list[LeydenError | None]:
        body = b'{"ends":[' + b",".join(map(_encoded, ends)) + b"]}"
        return self._outcomes(await self._send("POST", "/v1/leases/end", body))

    async def release(self, ref: LeaseRef, delay: float = 0.0) -> Rollout:
        return await self._post("/v1/leases/release", messages.Release(ref=ref, delay=delay), Rollout)

    async def cancel(self, rollout_ids: Sequence[str] = (), run_id: str | None = None, group: str | None = None) -> int:
        body = messages.Cancel(rollout_ids=list(rollout_ids), run_id=run_id, group=group)
        return await self._post("/v1/rollouts/cancel", body, messages.NUMBER)

    async def requeue(self, rollout_ids: Sequence[str], request_id: str | None = None) -> list[Rollout]:
        body = messages.Requeue(rollout_ids=list(rollout_ids), request_id=request_id or new_key())
        return await self._post("/v1/rollouts/requeue", body, messages.ROLLOUTS)

    async def get_rollout(self, rollout_id: str) -> Rollout:
        return await self._get(f"/v1/rollouts/{_part(rollout_id)}", Rollout)

    async def list_rollouts(self, **filters: Unpack[RolloutFilters]) -> list[Rollout]:
        return await self._post("/v1/rollouts/query", asked(RolloutQuery, filters), messages.ROLLOUTS)

    async def list_attempts(self, rollout_id: str) -> list[Attempt]:
        return await self._get(f"/v1/rollouts/{_part(rollout_id)}/attempts", messages.ATTEMPTS)

    async def wait_rollouts(self, ids: Sequence[str], wait: float = MAX_WAIT, done: int | None = None) -> list[Rollout]:
        return await self._post("/v1/rollouts/wait", messages.Wait(ids=list(ids), wait=wait, done=done), messages.ROLLOUTS, wait)

    async def count(
        self, run_id: str | None = None, iteration: int | None = None, mode: Mode | None = None, queue: str | None = None
    ) -> Counts:
        return await self._get("/v1/counts", Counts, run_id=run_id, iteration=iteration, mode=mode, queue=queue)

    async def set_queue(self, name: str, paused: bool | None = None, max_running: int | Unset | None = Unset.UNSET) -> Queue:
        return await self._post(f"/v1/queues/{_part(name)}", messages.SetQueue(paused=paused, max_running=max_running), Queue)

    async def list_queues(self) -> list[Queue]:
        return await self._get("/v1/queues", messages.QUEUES)

    # -- capture -------------------------------------------------------------------------------------------------------

    async def add_spans(self, ref: LeaseRef, spans: Sequence[Span]) -> int:
        return await self._post("/v1/spans", messages.AddSpans(ref=ref, spans=list(spans)), messages.NUMBER)

    async def add_encoded_spans(self, ref: LeaseRef, spans: Sequence[bytes]) -> int:
        body = b'{"ref":' + encode(ref) + b',"spans":[' + b",".join(spans) + b"]}"
        answer = await self._send("POST", "/v1/spans", body)
        return self._read(messages.NUMBER, answer)

    async def add_generations(self, ref: LeaseRef, generations: Sequence[Generation], spans: Sequence[Span] = ()) -> None:
        await self._calls.add(encode(messages.AddGenerations(ref=ref, generations=list(generations), spans=list(spans))))

    async def _add_calls(self, calls: list[bytes]) -> list[LeydenError | None]:
        return self._outcomes(await self._send("POST", "/v1/generations", b'{"calls":[' + b",".join(calls) + b"]}"))

    async def add_rewards(self, ref: LeaseRef, rewards: Sequence[Reward]) -> None:
        await self._post("/v1/rewards", messages.AddRewards(ref=ref, rewards=list(rewards)), None)

    async def add_scores(self, rollout_id: str, attempt: int, rewards: Sequence[Reward]) -> None:
        body = _checked(messages.AddScores, {"rollout_id": rollout_id, "attempt": attempt, "rewards": list(rewards)})
        await self._post("/v1/scores", body, None)

    async def list_spans(self, rollout_id: str, attempt: int | None = None) -> list[Span]:
        return await self._get(f"/v1/rollouts/{_part(rollout_id)}/spans", messages.SPANS, attempt=attempt)

    async def query_spans(self, query: SpanQuery) -> list[Span]:
        return await self._post("/v1/spans/query", query, messages.SPANS)

    async def list_traces(self, query: TraceQuery) -> list[Trace]:
        return await self._post("/v1/traces/query", query, messages.TRACES)

    async def list_generations(self, rollout_ids: Sequence[str], attempt: int | None = None) -> list[Generation]:
        body = messages.OfRollouts(rollout_ids=list(rollout_ids), attempt=attempt)
        return await self._post("/v1/generations/query", body, messages.GENERATIONS)

    async def list_audits(self, rollout_ids: Sequence[str], attempt: int | None = None) -> list[CallAudit]:
        body = messages.OfRollouts(rollout_ids=list(rollout_ids), attempt=attempt)
        return await self._post("/v1/audits/query", body, messages.AUDITS)

    async def count_audits(self, run_id: str | None = None, iteration: int | None = None, mode: Mode | None = None) -> AuditCounts:
        return await self._get("/v1/audits/counts", AuditCounts, run_id=run_id, iteration=iteration, mode=mode)

    async def list_rewards(self, rollout_ids: Sequence[str], attempt: int | None = None) -> list[Reward]:
        body = messages.OfRollouts(rollout_ids=list(rollout_ids), attempt=attempt)
        return await self._post("/v1/rewards/query", body, messages.REWARDS)

    async def list_rejections(self) -> list[Rejection]:
        return await self._get("/v1/rejections", messages.REJECTIONS)

    # -- resources -----------------------------------------------------------------------------------------------------

    async def add_resources(
        self, resources: dict[str, Resource], lease_seconds: float | None = None, idempotency_key: str | None = None
    ) -> Resources:
        body = messages.AddResources(resources=resources, lease_seconds=lease_seconds, idempotency_key=idempotency_key or new_key())
        return await self._post("/v1/resources", body, Resources)

    async def keep_resources(self, resources_id: str, lease_seconds: float) -> Resources:
        return await self._post(f"/v1/resources/{_part(resources_id)}/keep", messages.Keep(lease_seconds=lease_seconds), Resources)

    async def retire_resources(self, resources_id: str) -> Resources:
        return await self._post(f"/v1/resources/{_part(resources_id)}/retire", None, Resources)

    async def get_resources(self, resources_id: str | None = None) -> Resources:
        return await self._get("/v1/resources" if resources_id is None else f"/v1/resources/{_part(resources_id)}", Resources)

    async def resolve_key(self, key: str) -> AttemptBinding:
        return await self._post("/v1/leases/resolve", messages.Resolve(key=key), AttemptBinding)

    async def resolve_attempt(self, rollout_id: str, attempt: int) -> AttemptBinding:
        return await self._get(f"/v1/rollouts/{_part(rollout_id)}/attempts/{int(attempt)}/binding", AttemptBinding)

    # -- workers and runs ----------------------------------------------------------------------------------------------

    async def register_worker(self, worker_id: str, name: str, capacity: int, pid: int | None = None, host: str | None = None) -> Worker:
        body = {"worker_id": worker_id, "name": name, "capacity": capacity, "pid": pid, "host": host}
        return await self._post("/v1/workers", _checked(messages.RegisterWorker, body), Worker)

    async def stop_worker(self, worker_id: str) -> Worker:
        return await self._post(f"/v1/workers/{_part(worker_id)}/stop", None, Worker)

    async def list_workers(self, alive_within: float | None = None) -> list[Worker]:
        return await self._get("/v1/workers", messages.WORKERS, alive_within=alive_within)

    async def start_run(self, run_id: str, config: dict[str, Any], lease_seconds: float = 60.0, take_over: bool = False) -> Run:
        body = messages.StartRun(config=config, lease_seconds=lease_seconds, take_over=take_over, request_id=new_key())
        return await self._post(f"/v1/runs/{_part(run_id)}/start", body, Run)

    async def keep_run(self, run_id: str, epoch: int, lease_seconds: float = 60.0) -> Run:
        return await self._post(f"/v1/runs/{_part(run_id)}/keep", messages.KeepRun(epoch=epoch, lease_seconds=lease_seconds), Run)

    async def finish_run(self, run_id: str, epoch: int, state: RunState, summary: dict[str, Any] | None = None) -> Run:
        body = messages.FinishRun(epoch=epoch, state=state, summary=summary)
        return await self._post(f"/v1/runs/{_part(run_id)}/finish", body, Run)

    async def get_run(self, run_id: str) -> Run:
        return await self._get(f"/v1/runs/{_part(run_id)}", Run)

    async def list_runs(self, limit: int = 100) -> list[Run]:
        return await self._get("/v1/runs", messages.RUNS, limit=limit)

    # -- tokens --------------------------------------------------------------------------------------------------------

    async def add_token(self, new: NewToken) -> Token:
        return await self._post("/v1/tokens", new, Token)

    async def list_tokens(self) -> list[Token]:
        return await self._get("/v1/tokens", messages.TOKENS)

    async def revoke_token(self, token_id: str) -> Token:
        return await self._post(f"/v1/tokens/{_part(token_id)}/revoke", None, Token)

    # -- retention -----------------------------------------------------------------------------------------------------

    async def prune(self, query: Prune) -> Pruned:
        return await self._post("/v1/prune", query, Pruned)


def _encoded(end: AttemptEnd) -> bytes:
    spans = b",".join([span if isinstance(span, bytes) else encode(span) for span in end.spans])
    rest = encode({"ref": end.ref, "rewards": end.rewards, "failure": end.failure, "error": end.error})
    return rest[:-1] + b',"spans":[' + spans + b"]}"


def _part(text: str) -> str:
    """``text`` as one segment of a path."""
    return quote(text.encode(errors="replace"), safe="") or "-"


def _checked(model: type[M], values: dict[str, Any]) -> M:
    try:
        return model(**values)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise InvalidRequest(f"{first['loc'][0]}: {first['msg']}") from error


def _error(url: str, response: Response, content: bytes) -> LeydenError:
    """The error the store raised, as far as this answer is the store's."""
    try:
        said = from_json(content, cache_strings=False)["error"]
        kind, message, hint = _ERRORS.get(said["code"], LeydenError), said["message"], said["hint"]
    except (ValueError, KeyError, TypeError):
        return Unavailable(f"{url} answered {response.status}, which is not a store's answer", "check the store's URL")
    if kind is Busy:
        return Busy(message, hint, float(response.headers.get("retry-after", "1")))
    return kind(message, hint)
