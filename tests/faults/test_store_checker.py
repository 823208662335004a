"""The checker of the fault tests, checked: it passes what a sound store did, and names each kind of damage."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from store_history import Event, History, Outcome
from store_invariants import check_invariants, find_violations
from store_load import Load, drain
from store_nursery import Nursery
from store_room import open_room
from store_snapshot import Snapshot, read

from leyden.types import RolloutState


@dataclass
class Played:
    """A load that met no fault, and its database."""

    history: History
    database: Path

    def damaged(self, directory: Path, *statements: str) -> list[str]:
        """The violations, once the statements have been run on a copy of the database."""
        copy = directory / "copy.db"
        shutil.copy(self.database, copy)
        with sqlite3.connect(copy) as conn:
            for statement in statements:
                assert conn.execute(statement).rowcount > 0, f"nothing was damaged by {statement}"
        conn.close()
        return find_violations(self.history, read(str(copy)))


@pytest.fixture(scope="module")
def played(nursery: Nursery, tmp_path_factory: pytest.TempPathFactory) -> Played:
    with open_room("sqlite", tmp_path_factory.mktemp("played"), nursery, None) as room:

        async def play() -> None:
            async with room.store() as store:
                async with Load([store.url], room.history) as load:
                    await load.until_acknowledged(700)
                await drain(store.url, room.history)
                store.stop()

        room.run(play())
        return Played(room.history, Path(room.database))


def test_what_a_sound_store_did_passes(played: Played) -> None:
    check_invariants(played.history, str(played.database))


SUCCEEDED = "(SELECT id FROM rollouts WHERE state = 'succeeded' ORDER BY seq LIMIT 1)"
CANCELLED = "(SELECT id FROM rollouts WHERE state = 'cancelled' ORDER BY seq LIMIT 1)"
ANY_COUNTER = "rowid = (SELECT rowid FROM counters WHERE n > 0 LIMIT 1)"
LEASED = f"SELECT rollout_id, number, token, worker_id, 'narrow', 1, 1, 1 FROM attempts WHERE rollout_id = {SUCCEEDED} LIMIT 1"
LEASE = f"INSERT INTO leases {LEASED}"


@pytest.mark.parametrize(
    ("statement", "violation"),
    [
        (f"DELETE FROM rollouts WHERE id = {SUCCEEDED}", "I1: * was acknowledged and is lost"),
        (f"UPDATE rollouts SET input = '0' WHERE id = {SUCCEEDED}", "I1: key"),
        (f"UPDATE rollouts SET idempotency_key = 'other' WHERE id = {SUCCEEDED}", "I1: * was never queued"),
        (f"UPDATE attempts SET token = token + 1 WHERE rollout_id = {SUCCEEDED}", "I2: rollout_id="),
        (f"UPDATE attempts SET worker_id = 'other' WHERE rollout_id = {SUCCEEDED}", "I2: rollout_id="),
        (f"UPDATE attempts SET request_id = 'other' WHERE rollout_id = {SUCCEEDED}", "I2: attempt * was claimed by nobody"),
        ("UPDATE attempts SET state = 'succeeded' WHERE state = 'lost'", "I3: attempt * is succeeded, and nobody said so"),
        ("UPDATE attempts SET state = 'released' WHERE state = 'succeeded'", "I2: complete of * was acknowledged"),
        ("DELETE FROM rewards WHERE seq = (SELECT min(seq) FROM rewards)", "I6: reward"),
        ("UPDATE rewards SET value = value + 1", "I6: reward"),
        ("UPDATE rewards SET attempt = attempt + 1", "I6: reward"),
        ("UPDATE rewards SET source = 'other' WHERE seq = (SELECT min(seq) FROM rewards)", "I3: reward * was refused or never given"),
        ("DELETE FROM spans WHERE seq = (SELECT min(seq) FROM spans)", "I6: span"),
        ("UPDATE spans SET attempt = attempt + 1", "I6: span"),
        ("UPDATE spans SET span_id = 'ffffffffffffffff' WHERE seq = 1", "I3: span * was refused or never sent"),
        ("DELETE FROM generations WHERE seq = (SELECT min(seq) FROM generations)", "I6: generation"),
        ("UPDATE generations SET id = 'other' WHERE seq = 1", "I3: generation"),
        (f"UPDATE attempts SET number = number + 100 WHERE rollout_id = {SUCCEEDED}", "I5: * is in attempt"),
        (f"UPDATE rollouts SET attempt = attempt + 1 WHERE id = {SUCCEEDED}", "I5: * is in attempt"),
        (f"UPDATE rollouts SET failures = 99 WHERE id = {SUCCEEDED}", "I5: * failed 99 of"),
        (f"UPDATE rollouts SET lost = lost + 1 WHERE id = {SUCCEEDED}", "I11: * says failures, lost, released"),
        (f"UPDATE rollouts SET state = 'queued', finished_at = NULL WHERE id = {SUCCEEDED}", "I4: * is queued"),
        (f"UPDATE rollouts SET state = 'queued', finished_at = NULL WHERE id = {CANCELLED}", "I9: * was cancelled and is queued"),
        (f"UPDATE rollouts SET state = 'failed' WHERE id = {SUCCEEDED}", "I9: * showed * as succeeded, and it is failed"),
        (f"UPDATE rollouts SET state = 'cancelled' WHERE id = {SUCCEEDED}", "I9: * was completed and is cancelled"),
        ("UPDATE resources SET body = '{}' WHERE version = 1", "I7: version 1 is another now"),
        ("UPDATE resources SET version = version + 1000 WHERE version = 1", "I7: version 1 is another now"),
        ("DELETE FROM resources WHERE version = 2", "I7: version 2 was acknowledged and is lost"),
        (f"UPDATE counters SET n = n + 1 WHERE {ANY_COUNTER}", "I11: the counter of"),
        (f"DELETE FROM counters WHERE {ANY_COUNTER}", "I11: the counter of"),
        (LEASE, "I11: * is succeeded and has a lease"),
        (f"UPDATE attempts SET state = 'running' WHERE rollout_id = {SUCCEEDED}", "I11: * of its * attempts these run: [1"),
        ("UPDATE runs SET epoch = 0", "I1: epoch"),
        ("DELETE FROM blobs", "I11: * blobs are used and not there"),
        ("DELETE FROM blob_uses", "I11: * blobs are there and not used"),
        ("INSERT INTO blob_uses VALUES (x'00', 'nobody')", "I11: foreign_key_check"),
    ],
)
def test_damage_to_the_database_is_named(played: Played, tmp_path: Path, statement: str, violation: str) -> None:
    assert_named(played.damaged(tmp_path, statement), violation)


def test_more_running_than_a_queue_allows_is_named(played: Played, tmp_path: Path) -> None:
    limit = "INSERT OR REPLACE INTO queues (name, paused, max_running, changed_at) VALUES ('narrow', 0, 0, 1)"
    assert_named(played.damaged(tmp_path, limit, LEASE), "I10: 1 run in queue narrow")


@pytest.mark.parametrize(
    ("double", "violation"),
    [
        (lambda found: found.rewards.append(found.rewards[0]), "I6: reward * is kept 2 times"),
        (lambda found: found.spans.append(found.spans[0]), "I6: span * is kept 2 times"),
        (lambda found: found.generations.append(found.generations[0]), "I6: generation * is kept 2 times"),
    ],
)
def test_what_the_schema_itself_forbids_is_named(played: Played, double: Callable[[Snapshot], None], violation: str) -> None:
    found = read(str(played.database))
    double(found)
    assert_named(find_violations(played.history, found), violation)


@pytest.mark.parametrize(
    ("operation", "violation"),
    [
        ("enqueue", "I1: * was never queued"),
        ("complete", "I3: attempt * is succeeded, and nobody said so"),
        ("add_rewards", "I3: reward * was refused or never given"),
        ("add_spans", "I3: span * was refused or never sent"),
    ],
)
def test_a_refused_call_that_changed_something_is_named(played: Played, operation: str, violation: str) -> None:
    events = [replace(event, outcome=Outcome.REFUSED) if event.operation == operation else event for event in played.history.events]
    assert_named(find_violations(replace(played.history, events=events), read(str(played.database))), violation)


def test_a_lease_given_twice_is_named(played: Played) -> None:
    event = next(event for event in played.history.of("claim") if event.answer)
    twice = replace(event, asked=event.asked | {"request_id": "another"})
    assert_named(with_more(played, twice), "I2: rollout_id=* was given to * and to another")


def test_more_held_at_once_than_a_queue_allows_is_named(played: Played) -> None:
    events = [
        replace(event, asked=event.asked | {"max_running": 1}) if event.operation == "set_queue" else event
        for event in played.history.events
    ]
    violations = find_violations(replace(played.history, events=events), read(str(played.database)))
    assert_named(violations, "I10: 2 ran at once in queue narrow, which has room for 1")


def test_a_claim_after_the_cancel_is_named(played: Played) -> None:
    cancel = next(event for event in played.history.of("cancel") if event.asked["rollout_ids"])
    rollout_id = cancel.asked["rollout_ids"][0]
    claim = next(event for event in played.history.of("claim") if event.answer)
    lease = claim.answer[0]
    given = lease.model_copy(update={"rollout": lease.rollout.model_copy(update={"id": rollout_id})})
    assert_named(with_more(played, replace(claim, answer=[given], began=cancel.ended + 1)), "I9: * was claimed after its cancel")


def test_a_final_state_that_was_shown_and_is_gone_is_named(played: Played) -> None:
    complete = next(event for event in played.history.of("complete"))
    shown = complete.answer.model_copy(update={"state": RolloutState.FAILED})
    assert_named(with_more(played, replace(complete, operation="wait_rollouts", answer=[shown])), "I9: wait_rollouts showed")


def test_versions_out_of_order_are_named(played: Played) -> None:
    first, second = played.history.of("add_resources")[:2]
    swapped = replace(first, began=second.ended + 1, ended=second.ended + 2)
    events = [swapped if event is first else event for event in played.history.events]
    assert_named(find_violations(replace(played.history, events=events), read(str(played.database))), "I7: version 1 was made after")


def with_more(played: Played, event: Event) -> list[str]:
    history = replace(played.history, events=[*played.history.events, event])
    return find_violations(history, read(str(played.database)))


def assert_named(violations: list[str], pattern: str) -> None:
    """``*`` stands for anything, and so does the end."""
    parts = pattern.split("*")

    def fits(line: str) -> bool:
        position = 0 if line.startswith(parts[0]) else -1
        for part in parts:
            position = -1 if position < 0 else line.find(part, position)
        return position >= 0

    assert any(fits(line) for line in violations), f"{pattern!r} is not among {violations[:10]}"
