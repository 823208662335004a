"""Real Unsloth, in the interpreter that ``make test-engines`` builds: the same suite as TRL, and the same numbers."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "training")]

pytest.importorskip("trl")

from backend_suite import CONFIG, BackendSuite, make_job, run_training  # noqa: E402

PYTHON = os.environ.get("LEYDEN_TEST_UNSLOTH", str(Path(__file__).parents[2] / ".venv-unsloth" / "bin" / "python"))
pytestmark = pytest.mark.usefixtures("unsloth_python")  # which fails where there is none


@pytest.fixture(scope="module")
def tiny_model(tmp_path_factory) -> Path:
    from tinymodel import make_tiny_model

    return make_tiny_model(tmp_path_factory.mktemp("tiny") / "version_0")


class TestUnsloth(BackendSuite):
    options = {"backend": "unsloth", "python": PYTHON}  # noqa: RUF012

    def test_it_trained_in_the_other_interpreter_with_unsloth(self, line):
        assert "unsloth" in line.result.software and not line.result.shared_prefix
        assert not Path("unsloth_compiled_cache").exists(), "it wrote into the directory the tests run in"

    def test_its_losses_are_those_of_trl(self, line, tmp_path):
        """The same rows in the same order from the same first adapter: what differs is how the loss is computed."""
        job = make_job(line[0].path, tmp_path / "out", config=CONFIG.model_copy(update={"share_prefix": False}))
        assert run_training(job, tmp_path / "train.log").losses == pytest.approx(line.result.losses, abs=2e-3)
