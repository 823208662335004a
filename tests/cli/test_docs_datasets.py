"""docs/datasets.md is run: its files are written, its commands typed, and what they say is what stands there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import leyden.cli
from leyden.environments.exports.outcome import Outcome
from leyden.environments.exports.registry import FORMATS
from leyden.environments.redaction import Kind
from leyden.environments.routing import DEFAULT_RULES

PAGE = (Path(__file__).parents[2] / "docs" / "datasets.md").read_text()


def masked(text: str) -> str:
    """Without what is another each time: ids, digests, durations."""
    text = re.sub(r"\d{8}-\d{6}-[0-9a-f]{6}", "ID", text)
    return re.sub(r"· [\d.]+(ms|s)\b", "· 0s", re.sub(r"\b[0-9a-f]{12}\b", "DIGEST", text)).strip()


def test_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in re.findall(r"^```\w+ (\S+)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL):
        (tmp_path / name).write_text(text)
    blocks = re.findall(r"^```console\n\$ leyden (.*?)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    assert len(blocks) >= 6
    for command, told in blocks:
        status = leyden.cli.run(command.split())
        out, err = capsys.readouterr()
        assert masked(err + out) == masked(told), command
        assert status == ("check" in command), command


def test_the_page_names_every_format_counter_kind_and_rule() -> None:
    for name in [*FORMATS, "tokens", *Kind, *Outcome]:
        assert f"`{name}`" in PAGE, name
    for rule in DEFAULT_RULES:
        assert f"| {rule.name} | {rule.to} |" in PAGE, rule.name
