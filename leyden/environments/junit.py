"""A verdict as JUnit XML, which CI servers show: one test case a stage, one a task."""

from __future__ import annotations

import re
from xml.etree import ElementTree

from leyden.environments.outcomes import Outcomes
from leyden.environments.verdict import Decision, StageOutcome, Verdict

_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")  # XML 1.0, section 2.2


def to_junit(
    verdict: Verdict, champion: Outcomes | None, candidate: Outcomes, max_drop: float | None = None, allow_undecided: bool = False
) -> str:
    """A failed stage is a failure; one that leaves the verdict open is one too, unless ``allow_undecided``. A task fails where it dropped
    by more than ``max_drop``, and is skipped where no attempt of it was scored."""
    suite = ElementTree.Element("testsuite", name="leyden gate")
    for stage in verdict.stages:
        case = _case(suite, "stage", stage.name)
        if stage.outcome is StageOutcome.FAILED or (stage.hinders and not allow_undecided):
            _add(case, "failure", f"{stage.outcome}: {stage.sentence}")
        elif stage.hinders or stage.outcome in (StageOutcome.NO_DATA, StageOutcome.NOT_ASKED):
            _add(case, "skipped", f"{stage.outcome}: {stage.sentence}")
        else:
            _add(case, "system-out", stage.sentence)
    for task in candidate.tasks:
        case = _case(suite, "task", task)
        passed, scored = candidate.counts(task)
        before = champion.counts(task) if champion else (0, 0)
        told = f"{before[0]}/{before[1]} → {passed}/{scored} passed" if before[1] else f"{passed}/{scored} passed"
        if not scored:
            _add(case, "skipped", "no attempt was scored")
        elif max_drop is not None and before[1] and before[0] / before[1] - passed / scored > max_drop:
            _add(case, "failure", f"dropped by more than {max_drop:g}: {told}")
        else:
            _add(case, "system-out", told)
    if verdict.decision is not Decision.PROMOTE:
        _add(suite, "system-err", f"{verdict.decision}: {verdict.reason}")
    for counted, kind in (("tests", "testcase"), ("failures", "failure"), ("skipped", "skipped")):
        suite.set(counted, str(sum(1 for _ in suite.iter(kind))))
    suite.set("errors", "0")
    ElementTree.indent(suite)
    return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"


def _case(suite: ElementTree.Element, kind: str, name: str) -> ElementTree.Element:
    return ElementTree.SubElement(suite, "testcase", classname=f"leyden.gate.{kind}", name=_clean(name))


def _add(parent: ElementTree.Element, tag: str, text: str) -> None:
    child = ElementTree.SubElement(parent, tag)
    if tag in ("failure", "skipped"):
        child.set("message", _clean(text))
    else:
        child.text = _clean(text)


def _clean(text: str) -> str:
    return _NOT_XML.sub("�", text)
