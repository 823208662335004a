"""Secrets that come with spans: wherever they stand, they are not stored."""

from __future__ import annotations

import httpx
import pytest
from otlpkit import JSON, all_spans, at_the_door, export, json_export, json_span, partial_success, post, wire_span
from sqlalchemy import select
from storekit import Kit

from leyden.errors import InvalidRequest
from leyden.server import schema
from leyden.server.codec import redact, redact_text
from leyden.server.transaction import Transaction
from leyden.types import LLM, JSONResource, PromptTemplate

SECRET = "sk-" + "a1b2c3d4e5f6g7h8i9j0k1"
BASIC = "Basic dXNlcjpwYXNz"


@pytest.mark.parametrize(
    ("said", "kept"),
    [
        (b'{"http.header.authorization":["Basic a","b\\"c"],"x":"y"}', b'{"http.header.authorization":["[redacted]"],"x":"y"}'),
        (b'{"http.request.header.authorization":"Basic a","x":"y"}', b'{"http.request.header.authorization":"[redacted]","x":"y"}'),
        (b'{"openai_api_key":"k","api-key":["k"],"keys":["k"]}', b'{"openai_api_key":"[redacted]","api-key":["[redacted]"],"keys":["k"]}'),
        (b'{"authorization":[],"api_key":null,"authorized":"yes"}', b'{"authorization":[],"api_key":null,"authorized":"yes"}'),
    ],
)  # fmt: skip
def test_headers_and_keys_lose_their_values_by_name(said: bytes, kept: bytes) -> None:
    assert redact(said) == kept


def test_text_that_is_json_loses_them_too() -> None:
    assert redact_text(f'{{"Authorization": ["{BASIC}"], "api_key":"k"}}') == '{"Authorization": ["[redacted]"], "api_key":"[redacted]"}'


def test_no_part_of_a_span_keeps_a_secret() -> None:
    async def check(kit: Kit, http: httpx.AsyncClient) -> None:
        header = {"http.request.header.authorization": [BASIC], "gen_ai.tool.name": f"tool {SECRET}", "gen_ai.request.model": SECRET}
        span = wire_span(1, header, name=f"GET /?key={SECRET}")
        span.status.message = f"no: {SECRET}"
        assert partial_success(await post(http, export([span], scope=f"lib {SECRET}").SerializeToString())) == (0, "")
        bad = json_span(2, traceId=f"{SECRET}")
        rejected, message = partial_success(await post(http, json_export([bad]), JSON))
        assert rejected == 1 and "[redacted]" in message

        def everything(tx: Transaction) -> str:
            return "".join(repr(tx.conn.execute(select(table)).all()) for table in (schema.spans, schema.rejections, schema.blobs))

        stored = await kit.sql._executor.read(everything)
        assert SECRET not in stored and BASIC not in stored
        (kept,) = await all_spans(kit)
        assert (kept.name, kept.scope, kept.status_message) == ("GET /?key=[redacted]", "lib [redacted]", "no: [redacted]")

    at_the_door(check)


def test_no_resource_keeps_a_secret() -> None:
    async def check(kit: Kit, http: httpx.AsyncClient) -> None:
        for resource in (
            JSONResource(value={"api_key": "anything"}),
            JSONResource(value=[{"headers": {"Authorization": BASIC}}]),
            PromptTemplate(template=f"use {SECRET}"),
            LLM(endpoint=f"http://x/v1?key={SECRET}", model="m"),
        ):
            with pytest.raises(InvalidRequest, match="secret"):
                await kit.store.add_resources({"it": resource})
        await kit.store.add_resources({"llm": LLM(endpoint="http://x/v1", model="m", api_key="EMPTY"), "j": JSONResource(value={"a": 1})})

    at_the_door(check)
