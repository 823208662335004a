"""A model served for as long as a block lasts."""

from __future__ import annotations

import httpx
import pytest

import leyden
from leyden.errors import UsageError
from leyden.models.engine_config import EngineConfig


def test_a_model_is_served_while_the_block_lasts_and_its_engine_ends_with_it(tiny_model):
    with leyden.serve_model(str(tiny_model), {"max_tokens": 4}, EngineConfig(kind="embedded")) as llm:
        body = {"model": llm.model, "messages": [{"role": "user", "content": "12"}], **llm.sampling_parameters}
        answer = httpx.post(f"{llm.endpoint}/chat/completions", json=body, timeout=60.0).json()
        assert answer["usage"]["completion_tokens"] <= 4
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{llm.endpoint}/models", timeout=60)


def test_a_model_that_is_not_there_is_one_clear_line(tmp_path):
    with pytest.raises(UsageError, match="no model directory"), leyden.serve_model(str(tmp_path / "none")):
        pytest.fail("nothing is served")
