"""Pages that say what is so, and name what shows it, are held to it."""

from __future__ import annotations

import re
from pathlib import Path

import leyden.cli.doctor

ROOT = Path(__file__).parents[2]


def test_what_is_said_about_deaths_is_shown_by_tests_that_there_are() -> None:
    page = (ROOT / "docs" / "when-something-dies.md").read_text()
    named = re.findall(r"`((?:\w+/)*test_\w+\.py)(?:::(\w+))?`", page)
    assert len(named) > 20
    for file, test in named:
        path = ROOT / "tests" / file
        assert path.is_file(), file
        assert not test or f"def {test}(" in path.read_text(), f"{file}::{test}"


def test_the_doctor_s_page_names_every_option() -> None:
    page = (ROOT / "docs" / "doctor.md").read_text()
    options = leyden.cli.doctor.run.__annotations__.keys() - {"return"}
    assert options
    for name in options:
        assert f"--{name.removeprefix('as_').replace('_', '-')}" in page
