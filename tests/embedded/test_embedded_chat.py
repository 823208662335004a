"""Tool calls, stop strings and templates: between what the model wrote and what the OpenAI API shows."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leyden.models.embedded.chat import Detokenizer, StopStrings, held_back, parse_tool_calls, render
from leyden.models.template import HERMES

CALL = '<tool_call>\n{"name": "calculate", "arguments": {"expression": "1 + 2"}}\n</tool_call>'


@pytest.fixture(scope="module")
def tokenizer(tiny_dir):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tiny_dir)
    tokenizer.chat_template = HERMES.read_text()
    return tokenizer


def test_a_call_is_cut_out_with_its_arguments_as_written():
    content, (call,) = parse_tool_calls('Let me see. <tool_call>{"name": "f", "arguments": {"b":1,  "a": [2]}}</tool_call>')
    assert content == "Let me see. "
    assert (call.name, call.arguments) == ("f", '{"b":1,  "a": [2]}')


def test_parallel_calls_keep_their_order():
    _, calls = parse_tool_calls(CALL + "\n" + CALL.replace("1 + 2", "3"))
    assert [json.loads(call.arguments)["expression"] for call in calls] == ["1 + 2", "3"]
    assert calls[0].id != calls[1].id


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>not json</tool_call>",
        '<tool_call>{"name": "f"}</tool_call>',
        '<tool_call>{"name": "f", "arguments": "1"}</tool_call>',
        '<tool_call>{"name": 3, "arguments": {}}</tool_call>',
        '<tool_call>{"name": "f", "arguments": {}}',
        CALL + "<tool_call>{</tool_call>",
        "<tool_call>" + "[" * 100_000 + "</tool_call>",
        "no call at all",
    ],
)
def test_a_malformed_call_stays_content(text):
    assert parse_tool_calls(text) == (text, [])


def test_what_the_model_wrote_is_rendered_back_to_the_same_text(tokenizer):
    other = CALL.replace('{"expression": "1 + 2"}', '{"expression":"1+2", "x": 0.10}')
    for written in (CALL, "I use it.\n" + CALL, CALL + "\n" + CALL, other):
        content, calls = parse_tool_calls(written)
        turn = {"role": "assistant", "content": content or None, "tool_calls": [call.as_openai() for call in calls]}
        user = {"role": "user", "content": "What is 1 + 2?"}
        before = tokenizer.apply_chat_template([user], tokenize=False, add_generation_prompt=True)
        after = tokenizer.apply_chat_template([user, turn, {"role": "tool", "content": "3"}], tokenize=False, add_generation_prompt=True)
        assert after == before + written + "<|im_end|>\n<|im_start|>tool\n3<|im_end|>\n<|im_start|>assistant\n"


def test_content_given_in_parts_renders_as_the_plain_text(tokenizer):
    parts = [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]
    assert render(tokenizer, parts, None) == render(tokenizer, [{"role": "user", "content": "ab"}], None)


@given(st.text(alphabet="ab<tool_call>é漢🙂 ", max_size=60))
def test_text_decoded_token_by_token_is_the_text_decoded_at_once(tokenizer, text):
    ids = tokenizer(text, add_special_tokens=False).input_ids
    detokenizer = Detokenizer(tokenizer)
    pieces = [detokenizer.add(token) for token in ids]
    assert "".join(pieces) + detokenizer.rest() == tokenizer.decode(ids, skip_special_tokens=True)


@given(st.text("abc", max_size=40), st.lists(st.text("abc", min_size=1, max_size=4), min_size=1, max_size=3), st.randoms())
def test_stop_strings_cut_at_the_first_however_the_text_arrives(text, stops, rng):
    cutter, shown, stopped, rest = StopStrings(tuple(stops)), "", False, text
    while rest and not stopped:
        cut = rng.randint(1, len(rest))
        piece, stopped = cutter.add(rest[:cut])
        shown, rest = shown + piece, rest[cut:]
    ends = [text.find(stop) + len(stop) for stop in stops if stop in text]
    assert stopped == bool(ends)
    if not stopped:
        assert shown + cutter.held == text
    else:
        assert text.startswith(shown) and any(text[len(shown) :].startswith(stop) for stop in stops)


def test_held_back_is_the_longest_beginning_of_the_marker_at_the_end():
    assert held_back("abc<too", "<tool_call>") == 4
    assert held_back("abc", "<tool_call>") == 0
    assert held_back("a<<", "<tool_call>") == 1
