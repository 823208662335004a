"""The verbs that read a store, as a person and a script meet them."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from reading_room import Room
from storekit import Kit, make_span, task

from leyden.cli.printing import print_table
from leyden.server.client import StoreClient
from leyden.types import FailureKind, LeaseRef, Reward, Rollout, RolloutConfig


async def fill(kit: Kit) -> tuple[list[Rollout], LeaseRef]:
    made = await kit.store.enqueue(
        [task({"q": 1}, run_id="r", iteration=2, config=RolloutConfig(max_attempts=1)), task(2, group="g"), task(3, queue="slow")]
    )
    await kit.store.register_worker("w1", "worker", 4, 12, "host")
    (lease,) = await kit.store.claim("w1", 1)
    root = make_span(1, trace_id="ab" * 16, name="agent", end_ns=3_000_000_000)
    chat = {
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": "tiny",
        "gen_ai.usage.input_tokens": 7,
        "gen_ai.usage.output_tokens": 3,
    }
    call = make_span(2, trace_id="ab" * 16, name="chat tiny", parent_id=root.span_id, attributes=chat)
    await kit.store.add_spans(
        lease.ref, [root, call, make_span(3, trace_id="ab" * 16, name="tool", parent_id=call.span_id, status="error")]
    )
    await kit.store.add_rewards(lease.ref, [Reward(value=0.25, name="format")])
    await kit.store.fail(lease.ref, FailureKind.AGENT, "Traceback (most recent call last):\n  File\nValueError: no")
    return made, lease.ref


def test_rollouts_are_listed_one_a_line_and_filtered(room: Room) -> None:
    made, _ = room.do(fill)
    lines = room.about_store("rollouts").splitlines()
    assert [line.split("\t")[0] for line in lines] == [rollout.id for rollout in made[::-1]]
    (failed,) = room.about_store("rollouts", "list", "--failure", "agent").splitlines()
    assert failed.startswith(made[0].id) and failed.endswith("agent: ValueError: no") and "r/2" in failed
    for flags in (["--run", "r"], ["--iteration", "2"], ["--state", "failed"], ["--oldest-first", "--limit", "1"]):
        assert room.about_store("rollouts", *flags).startswith(made[0].id)
    assert room.about_store("rollouts", "--group", "g").startswith(made[1].id)
    assert room.about_store("rollouts", "--queue", "slow").startswith(made[2].id)
    assert room.about_store("rollouts", "--since", "1h") == "" and "no rollout is like that" in room.said  # the test's clock is of 1970
    assert len(room.about_store("rollouts", "--until", "2020-01-01").splitlines()) == 3


def test_lists_say_when_there_is_more_and_all_pages_on(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("leyden.cli.rollouts.PAGE", 2)
    room.do(lambda kit: kit.store.enqueue([task(n) for n in range(5)]))
    assert len(room.about_store("rollouts", "--limit", "2").splitlines()) == 2
    assert "the first 2; see more with --limit N or --all" in room.said
    assert len(room.about_store("rollouts", "--limit", "2", "--all").splitlines()) == 5
    assert len(room.about_store("rollouts", "--limit", "5").splitlines()) == 5 and "more" not in room.said
    said = json.loads(room.about_store("rollouts", "--limit", "2", "--json"))
    assert said["format"] == 1 and said["more"] and len(said["rollouts"]) == 2


def test_a_rollout_is_shown_by_the_beginning_of_its_id(room: Room) -> None:
    made, _ = room.do(fill)
    shown = room.about_store("rollouts", "show", made[0].id[:-4])
    assert made[0].id in shown and "failed (agent)" in shown and "ValueError: no" in shown and "format\t0.25" in shown
    said = json.loads(room.about_store("rollouts", "show", made[0].id, "--json"))
    assert (said["rollout"]["id"], len(said["attempts"]), said["rewards"][0]["value"]) == (made[0].id, 1, 0.25)
    room.about_store("rollouts", "show", "ro-", status=2)
    assert "begins several: ro-" in room.said and "hint: write more of it" in room.said
    room.about_store("rollouts", "show", "nothing", status=2)
    assert room.said == "error: no rollout nothing\nhint: see which there are: leyden rollouts\n"


def test_counts_cancel_and_requeue(room: Room) -> None:
    made, _ = room.do(fill)
    counted = json.loads(room.about_store("rollouts", "counts", "--json"))["counts"]
    assert (counted["queued"], counted["failed"]) == (2, 1)
    assert "queued\t2\n" in room.about_store("rollouts", "counts")
    room.about_store("rollouts", "cancel", made[1].id[:-4], status=2)
    assert "--yes" in room.said and "no terminal" in room.said
    room.about_store("rollouts", "cancel", made[1].id[:-4], "--yes")
    assert "1 rollouts are cancelled" in room.said
    room.about_store("rollouts", "cancel", status=2)
    assert "nothing to cancel is named" in room.said
    assert json.loads(room.about_store("rollouts", "requeue", made[0].id, made[1].id, "--json"))["rollouts"][1]["state"] == "queued"
    assert json.loads(room.about_store("rollouts", "counts", "--run", "r", "--json"))["counts"]["queued"] == 1


def test_traces_are_listed_and_shown_as_a_tree(room: Room) -> None:
    made, ref = room.do(fill)
    (line,) = room.about_store("traces").splitlines()
    assert line.split("\t")[:3] == ["ab" * 16, "agent", f"{ref.rollout_id}/1"]
    assert line.split("\t")[4:] == ["3 s", "3", "1", "7", "3"]
    for name in ("abab", made[0].id[:-4]):
        tree = room.about_store("traces", "show", name).splitlines()
        assert tree == [f"trace {'ab' * 16}", "  agent  3 s", "    chat tiny  0 ms  tiny  7 → 3 tokens", "      tool  0 ms  ERROR"]
    assert len(json.loads(room.about_store("traces", "show", "abab", "--json"))["spans"]) == 3
    assert json.loads(room.about_store("traces", "--rollout", made[1].id, "--json"))["traces"] == []
    room.about_store("traces", "show", "nothing", status=2)
    assert room.said == "error: no trace or rollout nothing\nhint: see which there are: leyden traces\n"
    assert room.about_store("traces", "--rejected") == "" and "nothing was refused" in room.said


def test_what_was_refused_is_listed_with_its_reason(room: Room) -> None:
    bad = {"resourceSpans": [{"scopeSpans": [{"spans": [{"traceId": "nothing", "spanId": "1", "name": "n"}]}]}]}
    httpx.post(f"{room.url}/v1/traces", json=bad, trust_env=False, timeout=60).raise_for_status()
    (line,) = room.about_store("traces", "--rejected").splitlines()
    source, reason, n, *_ = line.split("\t")
    assert (source, n) == ("otlp", "1") and reason
    assert json.loads(room.about_store("traces", "--rejected", "--json"))["rejections"][0]["reason"] == reason


def test_a_terminal_gets_a_table_with_a_head_and_whole_ids(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    made, _ = room.do(fill)
    monkeypatch.setattr("leyden.cli.printing.sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("NO_COLOR", "1")
    table = room.about_store("rollouts")
    assert "state" in table and all(rollout.id in table for rollout in made)


def test_a_tree_of_spans_that_are_deep_or_each_other_s_parents_is_printed(room: Room) -> None:
    async def deep(kit: Kit) -> None:
        await kit.store.enqueue([task()])
        (lease,) = await kit.store.claim("w1", 1)
        chain = [make_span(n, trace_id="c" * 32, parent_id=f"{n - 1:016x}" if n > 1 else None) for n in range(1, 3001)]
        circle = [make_span(n, trace_id="d" * 32, parent_id=f"{3 - n:016x}") for n in (1, 2)]
        await kit.store.add_spans(lease.ref, [*chain, *circle])

    room.do(deep)
    assert len(room.about_store("traces", "show", "ccc").splitlines()) == 3001
    assert len(room.about_store("traces", "show", "ddd").splitlines()) == 3


def test_workers_say_how_they_are(room: Room) -> None:
    room.do(fill)
    (line,) = room.about_store("workers").splitlines()
    assert line.split("\t")[:4] == ["w1", "worker", "host:12", "0 of 4"] and "silent for" in line
    room.do(lambda kit: kit.store.stop_worker("w1"))
    assert room.about_store("workers").strip().endswith("stopped")
    assert room.about_store("workers", "--alive", "60s") == "" and "leyden runners" in room.said


def test_sql_prints_lines_json_or_csv_beside_the_running_store(room: Room) -> None:
    made, _ = room.do(fill)
    database = ["--database", str(room.database)]
    query = "SELECT id, input FROM v_rollouts ORDER BY created_at, id"
    assert sorted(room.leyden("sql", query, *database).splitlines()) == sorted(
        f"{r.id}\t{json.dumps(r.input, separators=(',', ':'))}" for r in made
    )
    said = json.loads(room.leyden("sql", query, *database, "--json", "--limit", "2"))
    assert (said["columns"], len(said["rows"]), said["more"]) == (["id", "input"], 2, True)
    head, *rows = csv.reader(io.StringIO(room.leyden("sql", query, *database, "--csv")))
    assert head == ["id", "input"] and len(rows) == 3
    room.leyden("sql", "DELETE FROM v_rollouts", *database, status=2)
    assert room.said.startswith("error: only a query is run here") and "docs/sql-views.md" in room.said
    room.leyden("sql", query, "--database", "nothing.db", status=2)
    assert "hint: name the store's database: --database FILE" in room.said


def test_what_json_has_not_is_null(room: Room) -> None:
    query = ["sql", "SELECT 9e999 AS a, -9e999 AS b, 1.5 AS c", "--database", str(room.database)]
    assert json.loads(room.leyden(*query, "--json"), parse_constant=pytest.fail)["rows"] == [[None, None, 1.5]]
    assert room.leyden(*query) == "inf\t-inf\t1.5\n"


def test_the_latest_is_shown_by_that_name(room: Room) -> None:
    room.about_store("rollouts", "show", "@latest", status=2)
    assert room.said.startswith("error: there is no rollout yet\nhint: ")
    room.about_store("traces", "show", "@latest", status=2)
    assert room.said.startswith("error: there is no trace yet\nhint: ")
    room.do(fill)
    newest = room.about_store("rollouts", "--limit", "1").split("\t")[0]
    assert newest in room.about_store("rollouts", "show", "@latest")
    assert room.about_store("traces", "show", "@latest").startswith(f"trace {'ab' * 16}\n")


def test_what_begins_no_id_and_is_no_time_gets_a_hint(room: Room) -> None:
    for verb in ("rollouts", "traces"):
        for prefix in ("", "é", "a b"):
            room.about_store(verb, "show", prefix, status=2)
            assert room.said == f"error: {prefix!r} begins no id\nhint: see which there are: leyden {verb}\n"
    for text in ("tomorrow", "yesterdays", "s", "2030-13-01"):
        room.about_store("rollouts", "--since", text, status=2)
        assert room.said.startswith(f"error: {text!r} is no time\nhint: write it as 2h (ago)")


def test_help_is_near(room: Room) -> None:
    for verb in ("rollouts", "queues", "traces", "sql", "prune", "backup"):
        assert "--json" in room.leyden(verb, "list", "-h") if verb in ("rollouts", "queues", "traces") else room.leyden(verb, "-h")
    assert "Usage: leyden rollouts" in room.leyden("rollouts", "-h")
    room.leyden("rollouts", "shwo", status=2)
    assert room.said == "error: no such command 'shwo'\nhint: did you mean show?\n"
    room.leyden("queues", "puase", "x", status=2)
    assert "did you mean pause?" in room.said


def test_errors_are_json_too_where_json_is_asked_for(room: Room) -> None:
    said = json.loads(room.about_store("rollouts", "show", "nothing", "--json", status=2))
    assert said == {
        "format": 1,
        "error": {"code": "not_found", "message": "no rollout nothing", "hint": "see which there are: leyden rollouts"},
    }
    assert room.said == "error: no rollout nothing\nhint: see which there are: leyden rollouts\n"
    assert json.loads(room.leyden("rollouts", "--json", "--store", "http://127.0.0.1:1", status=3))["error"]["code"] == "unavailable"


def test_no_more_is_fetched_than_is_shown_and_all_is_shown_page_by_page(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("leyden.cli.rollouts.PAGE", 2)
    monkeypatch.setattr("leyden.cli.traces.PAGE", 2)
    room.do(fill)
    limits: list[int] = []
    lines_before: list[int] = []
    ask, printed = StoreClient.list_rollouts, print_table

    async def list_rollouts(self: StoreClient, **options: Any) -> list[Rollout]:
        limits.append(options["limit"])
        return await ask(self, **options)

    def table(columns: Any, rows: Any) -> None:
        lines_before.append(len(limits))
        printed(columns, rows)

    monkeypatch.setattr(StoreClient, "list_rollouts", list_rollouts)
    monkeypatch.setattr("leyden.cli.rollouts.print_table", table)
    room.about_store("rollouts", "--limit", "1")
    room.about_store("rollouts", "--limit", "2")
    assert limits == [2, 2, 1]
    limits.clear()
    lines_before.clear()
    assert len(room.about_store("rollouts", "--all").splitlines()) == 3
    assert (limits, lines_before) == ([2, 2], [1, 2]), "each page was printed before the next was asked for"
    assert len(room.about_store("traces", "--all").splitlines()) == 1


def test_the_hint_of_prune_names_what_ends_the_run(room: Room) -> None:
    room.do(lambda kit: kit.store.start_run("r", {}))
    room.about_store("prune", "--older-than", "1s", "--run", "r", status=5)
    assert "leyden runs cancel r" in room.said


def test_prune_asks_counts_and_deletes(room: Room) -> None:
    room.do(fill)
    room.kit.clock.advance(100)
    room.about_store("prune", "--older-than", "1h")
    assert room.said.startswith("there is nothing to delete")
    room.about_store("prune", "--older-than", "10s", "--dry-run")
    assert room.said == "would delete 1 rollouts, 1 attempts, 3 spans, 1 rewards, 1 workers\n"
    room.about_store("prune", "--older-than", "10s", status=2)
    assert "say so with --yes" in room.said
    assert json.loads(room.about_store("prune", "--older-than", "10s", "--yes", "--json"))["deleted"]["rollouts"] == 1
    assert len(room.about_store("rollouts").splitlines()) == 2
    room.about_store("prune", "--older-than", "soon", status=2)
    assert room.said == "error: 'soon' is no duration\nhint: write it as 90s, 15m, 2h, 30d or 2w\n"


def test_backup_and_restore_make_a_store_of_a_running_one(room: Room, tmp_path: Path) -> None:
    room.do(fill)
    file, new = tmp_path / "store.backup", tmp_path / "new.db"
    room.leyden("backup", str(file), "--database", str(room.database))
    assert f"leyden restore {file} --database NEW" in room.said
    room.leyden("backup", str(file), "--database", str(room.database), status=5)
    assert json.loads(room.leyden("restore", str(file), "--database", str(new), "--json"))["database"] == str(new)
    assert room.leyden("sql", "SELECT count(*) FROM v_rollouts", "--database", str(new)) == "3\n"
    room.leyden("restore", str(file), "--database", str(new), status=5)
    assert "never replaces" in room.said


def test_a_store_that_does_not_answer_is_two_lines(room: Room) -> None:
    room.leyden("rollouts", "--store", "http://127.0.0.1:1", status=3)
    assert room.said == "error: the store at http://127.0.0.1:1 does not answer\nhint: start it with: store --port 1\n"
