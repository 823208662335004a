"""The ``leyden`` command as a person or a script meets it: exit statuses, what is on stdout, what is on stderr."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import leyden.cli
from leyden.errors import Conflict, LeydenError
from leyden.models.registry import Registry
from leyden.runners import PoolConfig

GREEDY = {"pass_rate": 0.5, "low": 0.4, "high": 0.6}
SUMMARY: dict[str, Any] = {
    "format": 1,
    "run": "20261101-120000-aaaa",
    "champion": "version_1",
    "champion_path": "runs/20261101-120000-aaaa/models/version_1",
    "versions": [
        {"version": name, "pass_rate": rate, "low": rate - 0.1, "high": rate + 0.1, "n": 64, "greedy": GREEDY}
        for name, rate in (("version_0", 0.25), ("version_1", 0.75))
    ],
    "iterations": [{"number": 0, "nothing_to_learn": None, "promoted": True, "reason": "better beyond chance"}],
    "seconds": {"total": 61.0},
}


def leyden_command(*args: str, cwd: Path | None = None, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "leyden", *args]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=os.environ | (env or {}), check=False)


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    for name, summary in ((SUMMARY["run"], SUMMARY), ("20261102-130000-bbbb", None)):
        run = tmp_path / "runs" / name
        run.mkdir(parents=True)
        (run / "config.json").write_text("{}")
        if summary:
            (run / "summary.json").write_text(json.dumps(summary))
    (tmp_path / "runs" / "latest").symlink_to(SUMMARY["run"])
    return tmp_path / "runs"


@pytest.fixture
def versions(tmp_path: Path) -> Path:
    """A registry with two versions of a model small enough to be written by hand: it can be listed and checked, not loaded."""
    source = tmp_path / "source"
    source.mkdir()
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        (source / name).write_text("{}")
    (source / "generation_config.json").write_text('{"eos_token_id": 2}')
    (source / "chat_template.jinja").write_text("{{ messages }}")
    (source / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    registry = Registry(tmp_path / "models")
    base = registry.import_version(source)
    draft = registry.new_draft(base)
    for path in source.iterdir():
        (draft.path / path.name).write_bytes(path.read_bytes())
    draft.commit(metrics={"pass_rate": 0.5})
    return registry.directory


# -- the shell itself ------------------------------------------------------------------------------------------------------


def test_help_lists_the_verbs_without_importing_any() -> None:
    code = "import sys; from leyden.cli import run; run(['--help']); print(*sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert all(f"  {name} " in done.stdout for name in leyden.cli.VERBS)
    assert {"typer", "rich", "pydantic", "leyden.types"} & set(done.stderr.split()) == set()


@pytest.mark.parametrize("verb", leyden.cli.VERBS)
def test_every_verb_shows_its_help(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert leyden.cli.run([verb, "--help"]) == 0
    out, err = capsys.readouterr()
    assert f"leyden {verb}" in out and err == ""
    assert "``" not in out


def test_no_verb_is_wrong_use_and_prints_the_help_as_talk(capsys: pytest.CaptureFixture[str]) -> None:
    assert leyden.cli.run([]) == 2
    out, err = capsys.readouterr()
    assert out == "" and "verbs:" in err


def test_the_version_is_data(capsys: pytest.CaptureFixture[str]) -> None:
    assert leyden.cli.run(["--version"]) == 0
    assert capsys.readouterr().out.startswith("leyden ")


@pytest.mark.parametrize(
    ("args", "error", "hint"),
    [
        (["stor"], "no verb 'stor'", "did you mean leyden store?"),
        (["frobnicate"], "no verb 'frobnicate'", "see leyden --help"),
        (["models", "lst"], "no such command 'lst'", "did you mean list?"),
        (["quarantine", "lsit"], "no such command 'lsit'", "did you mean list?"),
        (["models"], "missing command", "see leyden models --help"),
        (["store", "--prt", "1"], "no such option: --prt (Possible options: --port)", "see leyden store --help"),
        (["store", "--port", "many"], "invalid value for '--port'", "see leyden store --help"),
        (["serve"], "missing argument", "see leyden serve --help"),
        (["serve", "/no/such/model"], "no model directory at /no/such/model", "make one: leyden models import smollm2"),
        (["runs", "list", "--runs", "/no/such"], "no runs at /no/such", "say where they are"),
    ],
)
def test_wrong_use_is_one_line_and_a_hint(args: list[str], error: str, hint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert leyden.cli.run(args) == 2
    out, err = capsys.readouterr()
    first, second = err.splitlines()
    assert out == ""
    assert first.startswith("error: ") and error in first
    assert second.startswith(f"hint: {hint}")


def failing(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    def fail(*args: object) -> int:
        raise error

    monkeypatch.setattr(leyden.cli, "_call", fail)


@pytest.mark.parametrize(
    ("error", "status", "line"),
    [
        (Conflict("taken", "take another"), 5, "error: taken"),
        (LeydenError("broke"), 3, "error: broke"),
        (ModuleNotFoundError("no torch", name="torch.nn"), 2, "error: torch is not installed"),
        (ModuleNotFoundError("no frob", name="frob"), 3, "error: ModuleNotFoundError: no frob"),
        (ZeroDivisionError("of two\nlines"), 3, "error: ZeroDivisionError: of two lines"),
        (KeyboardInterrupt(), 130, "interrupted"),
    ],
)
def test_an_error_decides_the_exit_status(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: BaseException, status: int, line: str
) -> None:
    failing(monkeypatch, error)
    assert leyden.cli.run(["store"]) == status
    err = capsys.readouterr().err
    assert err.splitlines()[0] == line
    assert "Traceback" not in err


def test_a_missing_extra_says_what_to_install(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    failing(monkeypatch, ModuleNotFoundError("no mcp", name="mcp"))
    leyden.cli.run(["store"])
    assert "hint: pip install 'leyden[runners]'" in capsys.readouterr().err


@pytest.mark.parametrize("args", [["--debug", "store"], ["store", "--debug"]])
def test_a_traceback_comes_only_with_debug(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], args: list[str]) -> None:
    failing(monkeypatch, ZeroDivisionError("oops"))
    assert leyden.cli.run(args) == 3
    assert "Traceback" in capsys.readouterr().err


def test_debug_reaches_a_verb_that_has_processes_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[PoolConfig] = []

    def spawn_runners(config: PoolConfig) -> int:
        given.append(config)
        return 143

    monkeypatch.setattr("leyden.runners.pool.spawn_runners", spawn_runners)
    for args in (["--debug", "runners", "m:a", "-n", "2"], ["runners", "m:a"]):
        assert leyden.cli.run(args) == 143
    assert [(config.debug, config.n) for config in given] == [(True, 2), (False, 4)]


# -- store -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("program", "sig", "status"), [("leyden", signal.SIGINT, 130), ("store", signal.SIGTERM, 143)])
def test_the_store_starts_and_stops_by_either_name(tmp_path: Path, program: str, sig: signal.Signals, status: int) -> None:
    entry, verb = ("main", ["store"]) if program == "leyden" else ("store", [])
    argv = [program, *verb, "--port", "0", "--database", str(tmp_path / "s.db")]
    code = f"import sys; from leyden.cli import {entry}; sys.argv = {argv!r}; sys.exit({entry}())"
    process = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stderr is not None
    assert process.stderr.readline().startswith("store: http://127.0.0.1:")
    process.send_signal(sig)
    out, err = process.communicate()
    assert (process.returncode, out) == (status, ""), err
    assert "Traceback" not in err


# -- models ----------------------------------------------------------------------------------------------------------------


def test_versions_are_listed_for_people_and_for_programs(versions: Path) -> None:
    plain = leyden_command("models", "list", "--models", str(versions)).stdout.splitlines()
    assert [line.split()[0] for line in plain] == ["version_0", "version_1"]
    assert plain[0].endswith("champion")
    listed = json.loads(leyden_command("models", "list", "--models", str(versions), "--json").stdout)
    assert (listed["format"], listed["champion"], len(listed["versions"])) == (1, "version_0", 2)


def test_a_version_is_shown_by_name_or_pointer(versions: Path) -> None:
    shown = json.loads(leyden_command("models", "show", "@latest", "--models", str(versions), "--json").stdout)
    assert (shown["version"], shown["parent"], shown["metrics"]) == ("version_1", "version_0", {"pass_rate": 0.5})
    wrong = leyden_command("models", "show", "version_2", "--models", str(versions))
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert "hint: did you mean version_" in wrong.stderr


def test_promotion_moves_the_champion_and_rollback_moves_it_back(versions: Path) -> None:
    registry = Registry(versions)
    assert leyden_command("models", "promote", "version_1", "--models", str(versions), "--dry-run").returncode == 0
    assert registry.get("@champion").name == "version_0"
    assert leyden_command("models", "promote", "version_1", "--models", str(versions)).returncode == 0
    assert (registry.get("@champion").name, registry.get("@previous").name) == ("version_1", "version_0")
    assert leyden_command("models", "rollback", "--models", str(versions)).returncode == 0
    assert registry.get("@champion").name == "version_0"


def test_verify_answers_no_for_a_changed_file(versions: Path) -> None:
    good = leyden_command("models", "verify", "version_1", "--models", str(versions))
    assert (good.returncode, good.stdout.split()[0]) == (0, "ok")
    (versions / "version_1" / "config.json").write_text('{"changed": true}')
    bad = leyden_command("models", "verify", "version_1", "--models", str(versions), "--json")
    assert bad.returncode == 1
    assert json.loads(bad.stdout)["checks"][0]["detail"] == "differ from the manifest: config.json: changed"


def test_a_local_model_is_imported_and_its_path_printed(versions: Path, tmp_path: Path) -> None:
    done = leyden_command("models", "import", str(tmp_path / "source"), "--to", "mine", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "mine\n"), done.stderr
    again = leyden_command("models", "import", str(tmp_path / "source"), "--to", "mine", cwd=tmp_path)
    assert again.returncode == 2 and "already exists" in again.stderr


def test_what_a_model_lacks_is_said_when_it_is_imported(versions: Path, tmp_path: Path) -> None:
    done = leyden_command("models", "import", str(tmp_path / "source"), "--to", "mine", "--json", cwd=tmp_path)
    answer = json.loads(done.stdout)
    assert (answer["format"], answer["path"]) == (1, "mine")
    assert "knows no tools" in answer["advice"][0]["detail"]
    assert answer["advice"][0]["fix"] == "leyden models import mine --to DIRECTORY --chat-template hermes"
    assert "warning: template: knows no tools" in done.stderr


def test_versions_are_those_of_the_latest_run_or_of_the_one_named(
    runs: Path, versions: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    versions.rename(runs / "20261101-120000-aaaa" / "models")
    monkeypatch.chdir(runs.parent)
    for args in ([], ["--run", "20261101"], ["--run", "@latest"], ["--models", "runs/latest/models"]):
        assert leyden.cli.run(["models", "list", *args]) == 0
        assert len(capsys.readouterr().out.splitlines()) == 2, args
    assert leyden.cli.run(["models", "list", "--run", "20261101", "--models", "runs/latest/models"]) == 2
    assert capsys.readouterr().err.startswith("error: --run and --models exclude each other")
    assert leyden.cli.run(["models", "list", "--run", "20261102"]) == 2
    assert "hint: see the runs there are: leyden runs list" in capsys.readouterr().err


def test_the_lineage_of_a_version_begins_with_the_imported_base(versions: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert leyden.cli.run(["models", "lineage", "@latest", "--models", str(versions)]) == 0
    plain = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in plain] == ["version_0", "version_1"]
    assert plain[0].endswith("imported") and "version_0 trained on dataset" in plain[1]
    assert leyden.cli.run(["models", "lineage", "version_1", "--models", str(versions), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [version["version"] for version in told["lineage"]] == ["version_0", "version_1"]


def test_a_version_is_found_by_a_beginning_that_only_it_has(versions: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (versions / "version_1").rename(versions / "version_10")
    manifest = json.loads((versions / "version_10" / "manifest.json").read_text())
    (versions / "version_10" / "manifest.json").write_text(json.dumps({**manifest, "version": "version_10"}))
    for name, status in (("version_1", 0), ("version_10", 0), ("version_", 2), ("version_2", 2)):
        assert leyden.cli.run(["models", "show", name, "--models", str(versions), "--json"]) == status
        if status == 0:
            assert json.loads(capsys.readouterr().out)["version"] == "version_10"


@pytest.mark.parametrize(("move", "champion"), [(["promote", "version_1"], "version_1"), (["rollback"], "version_0")])
def test_a_move_of_the_champion_is_data_and_may_be_tried(
    versions: Path, capsys: pytest.CaptureFixture[str], move: list[str], champion: str
) -> None:
    registry = Registry(versions)
    if move == ["rollback"]:
        registry.promote("version_1", "a test")
    before = registry.get("@champion").name
    for args, dry in ((["--dry-run"], True), ([], False)):
        assert leyden.cli.run(["models", *move, "--models", str(versions), "--json", *args]) == 0
        assert json.loads(capsys.readouterr().out) == {"format": 1, "before": before, "champion": champion, "dry_run": dry}
        assert registry.get("@champion").name == (before if dry else champion)


# -- runs ------------------------------------------------------------------------------------------------------------------


def test_runs_are_listed_with_what_they_came_to(runs: Path) -> None:
    lines = leyden_command("runs", "list", cwd=runs.parent).stdout.splitlines()
    assert lines == [
        "20261101-120000-aaaa  finished, champion version_1, pass rate 0.25 → 0.75",
        "20261102-130000-bbbb  interrupted before its first step",
    ]
    listed = json.loads(leyden_command("runs", "list", "--json", cwd=runs.parent).stdout)
    assert listed["format"] == 2
    assert [run["state"] for run in listed["runs"]] == ["finished", "interrupted"]


@pytest.mark.parametrize("args", [[], ["latest"], ["20261101"]])
def test_a_run_is_found_by_link_and_by_prefix(runs: Path, args: list[str]) -> None:
    shown = json.loads(leyden_command("runs", "show", *args, "--json", cwd=runs.parent).stdout)
    assert (shown["state"], shown["summary"]) == ("finished", SUMMARY)


def test_a_run_is_shown_as_a_table(runs: Path) -> None:
    shown = leyden_command("runs", "show", cwd=runs.parent).stdout
    assert "version_1     0.75 (0.65–0.85)" in shown
    assert "iteration 0: promoted. better beyond chance" in shown
    assert SUMMARY["champion_path"] in shown


@pytest.mark.parametrize(
    ("wanted", "error", "hint"),
    [
        ("2026110", "2026110 could be 20261101-120000-aaaa, 20261102-130000-bbbb", "give more of the id"),
        ("20261102-130000-bbbc", "no run '20261102-130000-bbbc' in runs", "did you mean 20261102-130000-bbbb?"),
        ("zzz", "no run 'zzz' in runs", "see what there is: leyden runs list"),
    ],
)
def test_a_run_that_cannot_be_shown_is_wrong_use(runs: Path, wanted: str, error: str, hint: str) -> None:
    done = leyden_command("runs", "show", wanted, cwd=runs.parent)
    assert (done.returncode, done.stdout) == (2, "")
    first, second = done.stderr.splitlines()
    assert first == f"error: {error}"
    assert second.startswith(f"hint: {hint}")


def test_a_summary_changed_by_hand_is_named(runs: Path) -> None:
    (runs / SUMMARY["run"] / "summary.json").write_text("{")
    done = leyden_command("runs", "show", cwd=runs.parent)
    assert done.returncode == 2 and "summary.json is not JSON" in done.stderr


def test_a_reader_that_stops_reading_is_no_error(runs: Path) -> None:
    code = f"{sys.executable} -m leyden runs show --json | head -c 1"
    done = subprocess.run(["bash", "-c", code], capture_output=True, text=True, cwd=runs.parent, check=False)
    assert (done.stdout, done.stderr) == ("{", "")
