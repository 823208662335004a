from pathlib import Path

import pytest

from leyden.errors import EXTRAS, MissingExtra, UsageError
from leyden.runners import Agent, load_agent

AGENTS = Path(__file__).with_name("agents_for_tests.py")


def test_an_agent_is_found_by_file_and_by_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert load_agent(f"{AGENTS}:answer").name == "answer"
    (tmp_path / "helper_of_bare.py").write_text("FACTOR = 2")
    (tmp_path / "bare_agent.py").write_text("from helper_of_bare import FACTOR\nasync def solve(task): return FACTOR * task\n")
    monkeypatch.chdir(tmp_path)
    by_file, by_module = load_agent("bare_agent.py:solve"), load_agent("bare_agent:solve")
    assert isinstance(by_file, Agent) and by_file.function is by_module.function


@pytest.mark.parametrize(
    ("spec", "message", "hint"),
    [
        ("justaname", "does not name an agent", "module:agent"),
        (":agent", "does not name an agent", "module:agent"),
        ("no_such_module:agent", "no module 'no_such_module'", "directory"),
        ("json.no_such:agent", "no module 'json.no_such'", "directory"),
        ("nowhere/agent.py:agent", "no such file", "file.py"),
        (f"{AGENTS}:anser", "has no 'anser'", f"{AGENTS}:answer?"),
        (f"{AGENTS}:os", "no agent but a module", "@leyden.rollout"),
    ],
)
def test_an_agent_that_is_not_there_is_named_with_a_hint(spec: str, message: str, hint: str) -> None:
    with pytest.raises(UsageError, match=message) as raised:
        load_agent(spec)
    assert hint in str(raised.value.hint)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("def broken(:", "SyntaxError"),
        ("import no_such_sdk", "No module named 'no_such_sdk'"),
        ("raise SystemExit(0)", "SystemExit"),
        ("import leyden.runners\n@leyden.runners.rollout\ndef agent(task, banana): ...", "argument `banana`"),
    ],
)
def test_a_file_that_raises_at_import_is_one_line(tmp_path: Path, source: str, message: str) -> None:
    path = tmp_path / f"raising_{abs(hash(source))}.py"
    path.write_text(source)
    with pytest.raises(UsageError, match=message) as raised:
        load_agent(f"{path}:agent")
    assert "\n" not in raised.value.message


def test_a_package_that_raises_at_import_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "raising_package").mkdir()
    (tmp_path / "raising_package" / "__init__.py").write_text("1 / 0")
    (tmp_path / "raising_package" / "inner.py").write_text("async def agent(task): ...")
    with pytest.raises(UsageError, match="importing raising_package failed: ZeroDivisionError"):
        load_agent("raising_package.inner:agent")


def test_an_agent_that_misses_an_extra_is_told_which(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(EXTRAS, "no_such_sdk", "runners")
    (tmp_path / "needs_an_extra.py").write_text("import no_such_sdk.client")
    with pytest.raises(MissingExtra) as raised:
        load_agent(f"{tmp_path / 'needs_an_extra.py'}:agent")
    assert raised.value.hint == "pip install 'leyden[runners]'"


def test_a_file_named_like_a_loaded_module_does_not_take_its_place(tmp_path: Path) -> None:
    (tmp_path / "json.py").write_text("async def agent(task): ...")
    with pytest.raises(UsageError, match="name of a module that is loaded already"):
        load_agent(f"{tmp_path / 'json.py'}:agent")
