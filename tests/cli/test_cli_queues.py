"""``leyden queues``, against a store that listens."""

from __future__ import annotations

import asyncio
import json

import pytest

from leyden import cli
from leyden.server.serving import listening
from leyden.server.sqlstore import SQLStore
from leyden.types import NewRollout


def queues(*lines: str) -> list[int]:
    """Run ``leyden queues`` with each of ``lines`` against a store with three rollouts; the exit statuses."""

    async def go() -> list[int]:
        async with await SQLStore.open() as store, listening(store) as where:
            await store.enqueue([NewRollout(input=i, queue=name) for i, name in enumerate(("large", "small", "large"))])
            return [await asyncio.to_thread(cli.run, ["queues", *line.split(), "--store", where.url]) for line in lines]

    return asyncio.run(go())


def test_queues_are_listed_for_people_and_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    assert queues("", "list --json") == [0, 0]
    people, _, programs = capsys.readouterr().out.partition("{")
    assert people.splitlines() == [
        "large\topen\tnone\t2\t0\t0\t0\t0\t0\t0",
        "small\topen\tnone\t1\t0\t0\t0\t0\t0\t0",
    ]
    said = json.loads("{" + programs)
    assert said["format"] == 1
    assert [(queue["name"], queue["paused"], queue["max_running"], queue["counts"]["queued"]) for queue in said["queues"]] == [
        ("large", False, None, 2),
        ("small", False, None, 1),
    ]


def test_a_queue_is_paused_limited_and_resumed(capsys: pytest.CaptureFixture[str]) -> None:
    assert queues("pause large", "limit large 3", "list", "resume large", "limit large none", "list") == [0] * 6
    out, err = capsys.readouterr()
    first, _, last, _ = out.splitlines()
    assert first.split("\t")[:4] == ["large", "paused", "3", "2"]
    assert last.split("\t")[:4] == ["large", "open", "none", "2"]
    assert err.splitlines()[1] == "large is paused; at most 3 of it may run at once, 0 do"
    assert len(err.splitlines()) == 4, "what was changed is talk"


def test_what_was_changed_is_json_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    for line, paused, most in (
        ("pause large --json", True, None),
        ("resume large --json", False, None),
        ("limit large 3 --json", False, 3),
    ):
        assert queues(line) == [0]
        out, err = capsys.readouterr()
        queue = json.loads(out)["queue"]
        assert (queue["name"], queue["paused"], queue["max_running"], err) == ("large", paused, most, "")


@pytest.mark.parametrize(
    ("line", "error"), [("limit large 0", "'0' is no limit"), ("limit large many", "no limit"), ("pause no.name", "name")]
)
def test_what_is_no_limit_and_no_name_is_wrong_use(line: str, error: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert queues(line) == [2]
    assert error in capsys.readouterr().err


def test_an_empty_store_says_so_as_talk(capsys: pytest.CaptureFixture[str]) -> None:
    async def go() -> int:
        async with await SQLStore.open() as store, listening(store) as where:
            return await asyncio.to_thread(cli.run, ["queues", "list", "--store", where.url])

    assert asyncio.run(go()) == 0
    out, err = capsys.readouterr()
    assert (out, err) == ("", "no queue holds anything\n")
