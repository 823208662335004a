"""Which engine serves, and the reason given for it."""

from __future__ import annotations

import sys

import pytest

from leyden.errors import UsageError
from leyden.models import engines
from leyden.models.accelerator import Gpu
from leyden.models.engine_config import EngineConfig
from leyden.models.engines import choose, find_vllm

H100 = Gpu("GPU-1", "H100", 1 << 36, 0, (9, 0))
HAS_VLLM = EngineConfig(command=(sys.executable,))


@pytest.fixture
def gpu(monkeypatch):
    monkeypatch.setattr(engines, "read_gpus", lambda: [H100])


@pytest.fixture
def no_gpu(monkeypatch):
    monkeypatch.setattr(engines, "read_gpus", lambda: [])


@pytest.fixture(autouse=True)
def no_vllm_here(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))


def test_a_gpu_and_a_vllm_make_vllm_the_default(gpu):
    assert str(choose(HAS_VLLM)) == "vLLM: on H100"


def test_without_a_gpu_the_default_is_the_embedded_engine(no_gpu):
    assert str(choose(HAS_VLLM)) == "the embedded engine: there is no GPU"


def test_a_gpu_without_a_vllm_says_what_is_missing(gpu):
    assert str(choose(EngineConfig())) == "the embedded engine: there is H100, but no vLLM on the PATH or in this environment"


def test_asked_for_means_got_or_an_error_that_says_how(no_gpu):
    assert choose(EngineConfig(kind="embedded", command=HAS_VLLM.command)).kind == "embedded"
    assert str(choose(HAS_VLLM.model_copy(update={"kind": "vllm"}))) == "vLLM: as asked, on the CPU"
    for config in (EngineConfig(kind="vllm"), EngineConfig(python=sys.executable), EngineConfig(command=("no-such-vllm", "serve"))):
        with pytest.raises(UsageError, match="no vLLM") as caught:
            choose(config)
        assert "docs/gpu.md" in caught.value.hint
    with pytest.raises(UsageError, match="cannot run /no/python"):
        choose(EngineConfig(python="/no/python"))


def test_a_vllm_on_the_path_is_found(tmp_path):
    script = tmp_path / "vllm"
    script.write_text("#!/bin/sh\n")
    script.chmod(0o755)
    assert find_vllm(EngineConfig()) == (str(script), "serve")
