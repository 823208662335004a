"""The invariants I1 to I11 of research/store.md 3.2: what clients were told, against what the database holds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic_core import to_jsonable_python
from sqlalchemy import Row
from store_history import Event, History, Outcome
from store_snapshot import Snapshot, check_tables, read

from leyden.server.codec import decode
from leyden.types import AttemptState, FailureKind, Lease, LeaseRef, Resources, Rollout, RolloutState

MAYBE = (Outcome.OK, Outcome.UNKNOWN)
STATE_OF_FAILURE = {
    FailureKind.TIMEOUT: AttemptState.TIMED_OUT,
    FailureKind.LOST: AttemptState.LOST,
    FailureKind.CANCELLED: AttemptState.CANCELLED,
}


def check_invariants(history: History, database: str, drained: bool = True) -> Snapshot:
    """Fails with every violation there is, and writes the history down. ``drained``: a live worker has emptied the queue."""
    found = read(database)
    violations = find_violations(history, found, drained)
    if violations:
        history.write()
        shown = "\n".join(violations[:30])
        raise AssertionError(f"{len(violations)} violations in {len(history.events)} calls ({history.path}):\n{shown}")
    return found


def check_sound(database: str) -> Snapshot:
    """Without a history: fails with what does not hold between the tables themselves."""
    found = read(database)
    violations = check_tables(found)
    assert not violations, "\n".join(violations[:30])
    return found


def find_violations(history: History, found: Snapshot, drained: bool = True) -> list[str]:
    checks = (_queued, _claimed, _ended, _rewarded, _captured, _published, _cancelled, _stayed_final, _driven, _limited)
    violations = [*check_tables(found, _requeued(history)), *(violation for check in checks for violation in check(history, found))]
    if drained:
        violations += [f"I4: {row.id} is {row.state}" for row in found.rollouts.values() if not RolloutState(row.state).final]
    return violations


def _requeued(history: History) -> frozenset[str]:
    """Rollouts that may have begun anew after their end."""
    return frozenset(rollout_id for event in history.of("requeue", *MAYBE) for rollout_id in event.asked["rollout_ids"])


def _queued(history: History, found: Snapshot) -> Iterator[str]:
    """I1: an acknowledged rollout is there, once for its key; none is there that nobody queued, or that was refused."""
    by_key = {row.idempotency_key: row for row in found.rollouts.values()}
    maybe = {item.idempotency_key for event in history.of("enqueue", *MAYBE) for item in event.asked["rollouts"]}
    for event in history.of("enqueue"):
        for item, answer in zip(event.asked["rollouts"], event.answer, strict=True):
            row = by_key.get(item.idempotency_key)
            if row is None:
                yield f"I1: {answer.id} was acknowledged and is lost"
            elif row.id != answer.id or decode(row.input) != item.input:
                yield f"I1: key {item.idempotency_key} was acknowledged as {answer.id} with {item.input}, and is {row.id}"
    for key, row in by_key.items():
        if key not in maybe:
            yield f"I1: {row.id} was never queued (key {key})"


def _claims(history: History) -> Iterator[tuple[Event, Lease]]:
    for event in history.of("claim"):
        for lease in event.answer:
            yield event, lease


def _claimed(history: History, found: Snapshot) -> Iterator[str]:
    """I2: a token is one claim's, and the attempt it was given for is that claim's."""
    given: dict[LeaseRef, str] = {}
    for event, lease in _claims(history):
        request = event.asked["request_id"]
        if given.setdefault(lease.ref, request) != request:
            yield f"I2: {lease.ref} was given to {given[lease.ref]} and to {request}"
        row = found.attempts.get((lease.ref.rollout_id, lease.ref.attempt))
        if row is None or (row.token, row.worker_id, row.request_id) != (lease.ref.token, event.asked["worker_id"], request):
            yield f"I2: {lease.ref} was given to {request}, the database says {row and (row.token, row.worker_id, row.request_id)}"
    asked = {event.asked["request_id"] for event in history.of("claim", *MAYBE)}
    for row in found.attempts.values():
        if row.request_id not in asked:
            yield f"I2: attempt {row.number} of {row.rollout_id} was claimed by nobody ({row.request_id})"


ENDINGS = ("complete", "fail", "release")


def _ended(history: History, found: Snapshot) -> Iterator[str]:
    """I2, I3: an acknowledged ending is the one that the attempt has; an attempt ended by its holder was ended by a call not refused."""
    asked: set[tuple[str, int, str]] = set()
    for operation in ENDINGS:
        for event in history.of(operation, *MAYBE):
            ref = event.asked["ref"]
            state = _ending(event)
            asked.add((ref.rollout_id, ref.attempt, state))
            row = found.attempts.get((ref.rollout_id, ref.attempt))
            if event.outcome is Outcome.OK and (row is None or (row.state, row.token) != (state, ref.token)):
                yield f"I2: {operation} of {ref} was acknowledged, the attempt is {row and (row.state, row.token)}"
    stopped = {event.asked["worker_id"] for event in history.of("stop_worker", *MAYBE)}
    for row in found.attempts.values():
        by_holder = row.state in (AttemptState.SUCCEEDED, AttemptState.FAILED, AttemptState.RELEASED)
        if by_holder and (row.rollout_id, row.number, row.state) not in asked and row.worker_id not in stopped:
            yield f"I3: attempt {row.number} of {row.rollout_id} is {row.state}, and nobody said so"


def _ending(event: Event) -> AttemptState:
    match event.operation:
        case "complete":
            return AttemptState.SUCCEEDED
        case "release":
            return AttemptState.RELEASED
        case _:
            return STATE_OF_FAILURE.get(event.asked["failure"], AttemptState.FAILED)


def _rewarded(history: History, found: Snapshot) -> Iterator[str]:
    """I3, I6: an acknowledged reward counts once, with its value; a refused one does not count."""
    kept: dict[tuple[Any, ...], list[float]] = {}
    for row in found.rewards:
        kept.setdefault((row.rollout_id, row.attempt, row.name, row.source, row.position), []).append(row.value)
    maybe = set()
    for operation in ("add_rewards", "complete", "add_scores"):
        for event in history.of(operation, *MAYBE):
            ref = event.asked.get("ref")
            attempt = (event.asked["rollout_id"], event.asked["attempt"]) if ref is None else (ref.rollout_id, ref.attempt)
            for reward in event.asked["rewards"]:
                key = (*attempt, reward.name, reward.source, reward.position)
                maybe.add(key)
                if event.outcome is Outcome.OK and kept.get(key) != [reward.value]:
                    yield f"I6: reward {key} = {reward.value} was acknowledged, kept are {kept.get(key)}"
    for key, values in kept.items():
        if key not in maybe:
            yield f"I3: reward {key} = {values} was refused or never given"
        if len(values) != 1:
            yield f"I6: reward {key} is kept {len(values)} times"


def _captured(history: History, found: Snapshot) -> Iterator[str]:
    """I6: an acknowledged span or generation is there exactly once, under the attempt it was sent for."""
    owned = [row for row in found.spans if row.rollout_id is not None]  # the others came from exporters, of whom no history is kept
    yield from _kept_once("span", _sent(history, "add_spans", "spans", lambda item: (item.trace_id, item.span_id)), owned, _span_key)
    sent = _sent(history, "add_generations", "generations", lambda item: item.id)
    yield from _kept_once("generation", sent, found.generations, lambda row: row.id)


def _span_key(row: Row[Any]) -> tuple[str, str]:
    return row.trace_id, row.span_id


def _sent(history: History, operation: str, name: str, key: Any) -> Iterator[tuple[Any, LeaseRef, bool]]:
    for event in history.of(operation, *MAYBE):
        for item in event.asked[name]:
            yield key(item), event.asked["ref"], event.outcome is Outcome.OK


def _kept_once(what: str, sent: Iterator[tuple[Any, LeaseRef, bool]], rows: list[Row[Any]], key: Any) -> Iterator[str]:
    kept: dict[Any, list[tuple[str, int]]] = {}
    for row in rows:
        kept.setdefault(key(row), []).append((row.rollout_id, row.attempt))
    maybe = set()
    for name, ref, acknowledged in sent:
        maybe.add(name)
        if acknowledged and kept.get(name) != [(ref.rollout_id, ref.attempt)]:
            yield f"I6: {what} {name} of {ref} was acknowledged, kept is {kept.get(name)}"
    for name, owners in kept.items():
        if name not in maybe:
            yield f"I3: {what} {name} was refused or never sent"
        if len(owners) != 1:
            yield f"I6: {what} {name} is kept {len(owners)} times"


def _published(history: History, found: Snapshot) -> Iterator[str]:
    """I7: a version never changes, and one asked for after another was acknowledged is a later one."""
    ended: list[tuple[float, int]] = []
    for event in sorted(history.of("add_resources"), key=lambda event: event.ended):
        answer: Resources = event.answer
        row = found.resources.get(answer.id)
        if row is None:
            yield f"I7: version {answer.version} was acknowledged and is lost"
        elif row.version != answer.version or decode(row.body) != to_jsonable_python(event.asked["resources"]):
            yield f"I7: version {answer.version} is another now"
        newest = max((version for end, version in ended if end < event.began), default=0)
        if answer.version <= newest:
            yield f"I7: version {answer.version} was made after version {newest}"
        ended.append((event.ended, answer.version))


def _cancelled(history: History, found: Snapshot) -> Iterator[str]:
    """I9: what was cancelled is final, is claimed no more and completed no more."""
    when: dict[str, float] = {}
    again = _requeued(history)
    for event in history.of("cancel"):
        for rollout_id in set(event.asked["rollout_ids"]) - again:
            when[rollout_id] = min(event.ended, when.get(rollout_id, event.ended))
            row = found.rollouts.get(rollout_id)
            if row is None or not RolloutState(row.state).final:
                yield f"I9: {rollout_id} was cancelled and is {row and row.state}"
    for event, lease in _claims(history):
        if event.began > when.get(lease.rollout.id, event.began):
            yield f"I9: {lease.ref} was claimed after its cancel"
    for event in history.of("complete"):
        rollout_id = event.asked["ref"].rollout_id
        row = found.rollouts.get(rollout_id)
        if row is not None and row.state == RolloutState.CANCELLED and rollout_id not in again:
            yield f"I9: {event.asked['ref']} was completed and is cancelled"


def _stayed_final(history: History, found: Snapshot) -> Iterator[str]:
    """I9: final is final: a state that any answer has shown is still the rollout's."""
    again = _requeued(history)
    for event in history.events:
        shown = event.answer if isinstance(event.answer, list) else [event.answer]
        for rollout in shown:
            if isinstance(rollout, Rollout) and rollout.state.final and rollout.id not in again:
                row = found.rollouts.get(rollout.id)
                if row is None or row.state != rollout.state:
                    yield f"I9: {event.operation} showed {rollout.id} as {rollout.state}, and it is {row and row.state}"


def _driven(history: History, found: Snapshot) -> Iterator[str]:
    """A run's epoch is one start's, and the database has the latest."""
    epochs: dict[tuple[str, int], Event] = {}
    for event in history.of("start_run"):
        epoch = (event.answer.id, event.answer.epoch)
        if epoch in epochs:
            yield f"I2: epoch {epoch} was given twice"
        epochs[epoch] = event
        row = found.runs.get(event.answer.id)
        if row is None or row.epoch < event.answer.epoch:
            yield f"I1: epoch {epoch} was acknowledged and is lost"


def _limited(history: History, found: Snapshot) -> Iterator[str]:
    """I10: of what clients were sure to hold at any instant, no more than a queue allows. A lease is held for sure from the answer to its
    claim until its ending is asked for, if that is acknowledged."""
    endings = {event.asked["ref"]: event.began for operation in ENDINGS for event in history.of(operation)}
    for name, limit in {(event.asked["name"], event.asked["max_running"]) for event in history.of("set_queue")}:
        since = min(event.ended for event in history.of("set_queue") if event.asked["name"] == name)
        changes: list[tuple[float, int]] = []
        for event, lease in _claims(history):
            if lease.rollout.queue == name and event.began > since and lease.ref in endings:
                changes += [(event.ended, 1), (endings[lease.ref], -1)]
        running = most = 0
        for _, change in sorted(changes):
            running += change
            most = max(most, running)
        if most > limit:
            yield f"I10: {most} ran at once in queue {name}, which has room for {limit}"
