"""``leyden gate``: over saved results, in a CI's words."""

from __future__ import annotations

import json
from xml.etree import ElementTree

import pytest

import leyden.cli
from leyden.environments.attempt import AttemptResult, StopReason
from leyden.environments.fingerprint import Fingerprint
from leyden.environments.output import RunOutput
from leyden.environments.results import EnvironmentRunResult, TaskResult
from leyden.environments.score import Score
from leyden.environments.task import Task


def saved(path, passed, n=40, env="env1:a", unscored=0, tokens=10, **dimensions):
    """A result in which the first tasks pass."""

    def attempt(i):
        score = None if i >= n - unscored else Score(float(i < passed), i < passed, dimensions=dimensions)
        return AttemptResult(0, RunOutput("x", input_tokens=tokens), score, StopReason.COMPLETED, 0.5)

    tasks = tuple(TaskResult(Task(f"q{i}", id=f"t{i}"), (attempt(i),)) for i in range(n))
    policy = Fingerprint(f"policy1:{passed}", {"model": str(passed)})
    EnvironmentRunResult("math", 1, Fingerprint(env, {"tasks": env}), policy, tasks, 1.0).save(path)
    return str(path)


@pytest.fixture
def old(tmp_path):
    return saved(tmp_path / "old.jsonl", 15)


def gate(capsys, *args):
    status = leyden.cli.run(["gate", *map(str, args)])
    return status, *capsys.readouterr()


def test_the_exit_status_is_the_verdict(tmp_path, capsys, old):
    good, same, bad = (saved(tmp_path / f"{name}.jsonl", passed) for name, passed in (("good", 30), ("same", 16), ("bad", 3)))
    status, out, err = gate(capsys, old, good)
    assert (status, err) == (0, "")
    assert out.splitlines()[-1].startswith("promote: good is better than old: 0.38 → 0.75")
    assert "warning: 40 tasks are fewer than 128" in out
    assert "power: 40 tasks of which 1 % are lost by chance" in out
    assert gate(capsys, old, bad)[0] == 1
    status, out, _ = gate(capsys, old, same)
    assert status == 1
    assert out.splitlines()[-1].startswith("undecided: pass rate: same is neither better nor worse than old beyond chance")
    assert gate(capsys, old, same, "--allow-undecided")[0] == 0
    assert gate(capsys, old, bad, "--allow-undecided")[0] == 1


def test_bounds_alone(tmp_path, capsys):
    result = saved(tmp_path / "new.jsonl", 30, unscored=2)
    assert gate(capsys, result, "--min-pass-rate", 0.75)[0] == 0
    assert gate(capsys, result, "--min-pass-rate", 0.8)[0] == 1
    status, out, _ = gate(capsys, result, "--min-pass-rate", 0.75, "--min-coverage", 1)
    assert status == 1
    assert "coverage: 38 of 40 planned attempts were scored, fewer than a share of 1" in out
    status, _, err = gate(capsys, result)
    assert status == 2
    assert "nothing is asked of one result" in err
    assert gate(capsys, result, "--max-drop", 0.1)[0] == 2
    assert gate(capsys, result, "--min-pass-rate", 1.5)[0] == 2


def test_what_is_asked_stands_in_a_file(tmp_path, capsys):
    old, new = (saved(tmp_path / f"{name}.jsonl", passed, safety=1.0) for name, passed in (("old", 5), ("new", 30)))
    config = tmp_path / "gate.toml"
    config.write_text('alpha = 0.01\nmin_heldout = 32\nrequire = ["safety"]\n[safety]\nsafety = 1.0\n[budgets.tokens]\nratio = 1.2\n')
    status, out, _ = gate(capsys, old, new, "--config", config, "--json")
    verdict = json.loads(out)
    assert (status, verdict["format"], verdict["decision"], verdict["warnings"]) == (0, 1, "promote", [])
    assert {stage["name"]: stage["outcome"] for stage in verdict["stages"]}["efficiency"] == "passed"
    fat = saved(tmp_path / "fat.jsonl", 31, tokens=13, safety=1.0)
    assert gate(capsys, old, fat, "--config", config)[0] == 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("alpha = 2", "alpha: Input should be"),
        ("alfa = 0.1", "alfa: there is no such setting\nhint: did you mean alpha?"),
        ("alpha =", "is no TOML"),
        (None, "no gate at"),
        ("[budgets.tokens]\nration = 2", "budgets.tokens.ration: there is no such setting\nhint: did you mean ratio?"),
        ("[safety]\nsafety = nan", "safety.safety: Input should be a finite number\nhint: it may hold alpha"),
    ],
)
def test_a_bad_file_is_one_line_and_a_hint(tmp_path, capsys, old, text, said):
    config = tmp_path / "gate.toml"
    if text is not None:
        config.write_text(text)
    status, out, err = gate(capsys, old, old, "--config", config)
    assert (status, out) == (2, "")
    assert said in err
    assert "hint: " in err
    assert "Traceback" not in err


def test_junit_has_a_case_for_each_stage_and_each_task(tmp_path, capsys, old):
    new, junit = saved(tmp_path / "new.jsonl", 30, unscored=1), tmp_path / "reports" / "gate.xml"
    assert gate(capsys, old, new, "--junit", junit, "--max-drop", 0.5)[0] == 0
    suite = ElementTree.parse(junit).getroot()
    cases = {(case.get("classname"), case.get("name")): case for case in suite.iter("testcase")}
    assert len(cases) == int(suite.get("tests")) == 7 + 40
    assert suite.get("failures") == "0"
    assert cases["leyden.gate.stage", "pass rate"].find("system-out").text.startswith("new is better than old")
    assert cases["leyden.gate.stage", "safety"].find("skipped").get("message") == "not asked: no dimension was named to gate on"
    assert cases["leyden.gate.task", "t20"].find("system-out").text == "0/1 → 1/1 passed"
    assert cases["leyden.gate.task", "t39"].find("skipped") is not None

    assert gate(capsys, new, old, "--junit", junit, "--max-drop", 0.5)[0] == 1
    assert gate(capsys, old, old, "--junit", junit, "--allow-undecided")[0] == 0
    assert ElementTree.parse(junit).getroot().get("failures") == "0"
    assert gate(capsys, new, old, "--junit", junit, "--max-drop", 0.5)[0] == 1
    suite = ElementTree.parse(junit).getroot()
    failed = {case.get("name") for case in suite.iter("testcase") if case.find("failure") is not None}
    assert failed == {"pass rate", *(f"t{i}" for i in range(15, 30))}
    assert suite.find("system-err").text.startswith("reject: pass rate: old is worse than new")


def test_a_task_with_a_strange_name_makes_no_broken_xml(tmp_path, capsys):
    result = EnvironmentRunResult.load(saved(tmp_path / "a.jsonl", 1, n=1))
    (one,) = result.task_results
    strange = TaskResult(Task("q", id='a<&">\x00\x1b]]>'), one.attempts)
    EnvironmentRunResult(**{**vars(result), "task_results": (strange,)}).save(tmp_path / "b.jsonl")
    gate(capsys, tmp_path / "b.jsonl", "--min-pass-rate", 0.5, "--junit", tmp_path / "gate.xml")
    names = [case.get("name") for case in ElementTree.parse(tmp_path / "gate.xml").getroot().iter("testcase")]
    assert 'a<&">��]]>' in names


def test_regression_results_are_compared_as_well(tmp_path, capsys, old):
    new = saved(tmp_path / "new.jsonl", 30)
    before, after = (saved(tmp_path / f"{name}.jsonl", passed, env="env1:b", n=200) for name, passed in (("g0", 190), ("g1", 120)))
    assert gate(capsys, old, new, "--regression", before, before)[0] == 0
    status, out, _ = gate(capsys, old, new, "--regression", before, after)
    assert status == 1
    assert "reject: regression: g1 is worse by more than 0.05 on the regression tasks: 0.95 → 0.60" in out


def test_a_verdict_names_evals_by_their_whole_id(tmp_path, capsys):
    ids = "20261130-0101-aa", "20261130-0202-bb"
    for number, name in enumerate(ids):
        directory = tmp_path / "evals" / name
        directory.mkdir(parents=True)
        (directory / "eval.json").write_text("{}")
        path = saved(directory / "result.jsonl", 5 + 25 * number)
        EnvironmentRunResult(**{**vars(EnvironmentRunResult.load(path)), "run_id": name}).save(path)
    (tmp_path / "evals" / "latest").symlink_to(ids[1])
    status, out, _ = gate(capsys, "20261130-0101", "@latest", "--evals", tmp_path / "evals", "--json")
    assert status == 0, out
    assert (json.loads(out)["champion"], json.loads(out)["candidate"]) == ids


def test_results_of_two_environments_are_not_compared(tmp_path, capsys, old):
    other = saved(tmp_path / "other.jsonl", 30, env="env1:b")
    status, _, err = gate(capsys, old, other)
    assert status == 5
    assert "are not known to be of the same environment: tasks differ" in err
    assert gate(capsys, old, tmp_path / "nowhere.jsonl")[0] == 2
    assert gate(capsys, old, old, old)[0] == 2
