"""A prompt that the checkpoint being trained would have read in other tokens makes no row."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

pytest.importorskip("tokenizers")
pytest.importorskip("jinja2")

sys.path.insert(0, str(Path(__file__).parents[1]))

from tinymodel import CHAT_TEMPLATE, END, make_tokenizer

from leyden.algorithm.harvest import Learner, harvest
from leyden.algorithm.refusals import Refusal
from leyden.algorithm.rows import RowsConfig
from leyden.algorithm.template_check import TemplateCheck
from leyden.audit import Audit, Continuity
from leyden.errors import UsageError
from leyden.models.reading import Reader, vocabulary_size
from leyden.types import Generation, Reward, Triplet

USER = {"role": "user", "content": "What is 12 + 34?"}
TOOL = {"type": "function", "function": {"name": "calculate", "parameters": {"type": "object", "properties": {}}}}
CALLED = {
    "role": "assistant",
    "content": "",
    "tool_calls": [{"id": "c", "type": "function", "function": {"name": "calculate", "arguments": "{}"}}],
}
RESULT = {"role": "tool", "tool_call_id": "c", "content": "46"}
LLAMA = """
{%- for message in messages %}[{{ message.role }}] {{ message.content }} [/{{ message.role }}]{% endfor %}
{%- if add_generation_prompt %}[assistant]{% endif %}
""".strip()


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    path = tmp_path_factory.mktemp("model")
    make_tokenizer().save_pretrained(path)
    (path / "chat_template.jinja").write_text(CHAT_TEMPLATE)
    (path / "config.json").write_text(json.dumps({"vocab_size": 443}))
    (path / "generation_config.json").write_text(json.dumps({"eos_token_id": make_tokenizer().convert_tokens_to_ids(END)}))
    return path


@pytest.fixture(scope="module")
def served(directory):
    """The tokenizer as an engine has it."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(directory)


def rendered(tokenizer, messages, tools=None, template=CHAT_TEMPLATE):
    return list(
        tokenizer.apply_chat_template(messages, tools=tools, add_generation_prompt=True, chat_template=template, return_dict=True)[
            "input_ids"
        ]
    )


def asked(ids, messages, tools=None, **more):
    request = {"messages": messages} | ({"tools": tools} if tools else {})
    answered = {"prompt_token_ids": ids, "response_token_ids": [5], "finish_reason": "stop", "checkpoint": "version_1"}
    where = {"id": "g", "call_id": "g", "rollout_id": "r", "attempt": 1, "model": "m", "started_at": 0, "latency": 0.1}
    return Generation(**where | answered | {"request": request} | more)


def check(directory, generation):
    opening = Triplet(prompt_ids=generation.prompt_token_ids, response_ids=[5], rollout_id="r", attempt=1, generation_id="g")
    return TemplateCheck(Reader(directory), [generation])(opening)


CONVERSATIONS = {
    "a question": ([USER], None),
    "a system prompt": ([{"role": "system", "content": "Be brief."}, USER], None),
    "many turns": ([USER, {"role": "assistant", "content": "46"}, USER], None),
    "tools": ([USER], [TOOL]),
    "a tool's answer": ([USER, CALLED, RESULT], [TOOL]),
}


@pytest.mark.parametrize("name", CONVERSATIONS)
def test_what_the_checkpoints_own_template_made_is_fit(directory, served, name):
    messages, tools = CONVERSATIONS[name]
    assert check(directory, asked(rendered(served, messages, tools), messages, tools)) is None


@pytest.mark.parametrize("name", CONVERSATIONS)
def test_a_prompt_of_another_template_is_not(directory, served, name):
    messages, tools = CONVERSATIONS[name]
    found = check(directory, asked(rendered(served, messages, tools, LLAMA), messages, tools))
    assert found is not None and "and the checkpoint's template says" in found


def test_tools_that_the_checkpoints_template_leaves_out_are_found(directory, served, tmp_path):
    """The engine was given a template with tools; the checkpoint has the one that knows none."""
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((directory / name).read_bytes())
    (tmp_path / "chat_template.jinja").write_text(CHAT_TEMPLATE.replace("if tools", "if false"))
    found = check(tmp_path, asked(rendered(served, [USER], [TOOL]), [USER], [TOOL]))
    assert found == "the prompt shows the tool calculate, which the checkpoint's template leaves out"


def test_tools_written_in_another_order_are_the_same_tools(directory, served):
    """vLLM passes tools through models of its own: order, and fields that are null."""
    theirs = {"function": {"parameters": TOOL["function"]["parameters"], "description": None, "name": "calculate"}, "type": "function"}
    assert check(directory, asked(rendered(served, [USER], [theirs]), [USER], [TOOL])) is None


def test_the_same_text_in_other_tokens_is_another_tokenizer(directory, served):
    ids = rendered(served, [USER])
    text = served.decode(ids)
    letters = [token for letter in text for token in served.encode(letter, add_special_tokens=False)]
    assert letters != ids and "from token 0" in (check(directory, asked(letters, [USER])) or "")


def test_a_template_that_refuses_the_messages_cannot_have_made_the_prompt(directory, served, tmp_path):
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((directory / name).read_bytes())
    (tmp_path / "chat_template.jinja").write_text("{{ raise_exception('no system here') }}")
    assert "no system here" in (check(tmp_path, asked(rendered(served, [USER]), [USER])) or "")


def test_what_a_mismatch_quotes_holds_no_secret(directory, served):
    """The ids spell out what was taken from the text before it was stored."""
    key = "sk-" + "a1B2" * 8
    ids = [*served.encode(f"{key} is it", add_special_tokens=False), *rendered(served, [USER])]
    found = check(directory, asked(ids, [USER]))
    assert key[:10] not in found and "[redacted]" in found


ITEMS = CHAT_TEMPLATE.replace(
    "function.arguments if function.arguments is string else function", "function.arguments | items | list or function"
).replace("(message.content or '')", "message.content")


def test_a_template_that_takes_arguments_as_objects_is_given_objects(directory, served, tmp_path):
    """Engines parse them for it: Qwen3-Coder's goes through their items."""
    assert ITEMS != CHAT_TEMPLATE
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((directory / name).read_bytes())
    (tmp_path / "chat_template.jinja").write_text(ITEMS)
    messages = [USER, CALLED, RESULT]
    ids = rendered(served, messages, [TOOL])
    assert check(tmp_path, asked(ids, messages, [TOOL])) is None
    silent = [USER, {**CALLED, "content": None}, RESULT]
    assert check(tmp_path, asked(ids, silent, [TOOL])) is None
    broken = [USER, {**CALLED, "tool_calls": [{**CALLED["tool_calls"][0], "function": {"name": "calculate", "arguments": "{"}}]}, RESULT]
    assert "are no JSON" in (check(tmp_path, asked(ids, broken, [TOOL])) or "")


@pytest.mark.parametrize(
    "generation",
    [
        asked([9, 9], [USER], audit=Audit(exact=True, follows="before", continuity=Continuity.CLEAN)),
        asked([9, 9], []),
        asked([9, 9], [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}]),
        asked([9, 9], [USER, {"role": "assistant", "content": "46", "reasoning_content": "hm"}, USER]),
        asked([9, 9], [USER], sampling={"continue_final_message": True}),
        asked([9, 9], [USER], request={"messages": [USER], "chat_template_kwargs": {"tools": [TOOL]}}),
    ],
    ids=["put together from sampled ids", "completions", "pictures", "thoughts", "shaped by the request", "shaped by its template's names"],
)
def test_nothing_is_said_of_prompts_that_no_template_made_alone(directory, generation):
    assert check(directory, generation) is None


def test_a_template_that_tells_the_time_is_not_asked(directory, tmp_path):
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((directory / name).read_bytes())
    (tmp_path / "chat_template.jinja").write_text("{{ strftime_now('%Y') }}" + CHAT_TEMPLATE)
    assert check(tmp_path, asked([9, 9], [USER])) is None
    (tmp_path / "chat_template.jinja").unlink()
    assert check(tmp_path, asked([9, 9], [USER])) is None  # none at all: a base model


def test_a_damaged_tokenizer_is_said(directory, tmp_path):
    (tmp_path / "chat_template.jinja").write_text(CHAT_TEMPLATE)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(UsageError, match=r"tokenizer\.json is no tokenizer"):
        check(tmp_path, asked([9, 9], [USER]))


def test_a_mismatch_is_a_rows_reason_and_can_be_overruled(directory, served):
    eos = served.convert_tokens_to_ids(END)
    generation = asked(rendered(served, [USER], template=LLAMA), [USER]).model_copy(update={"response_token_ids": [5, eos]})
    learner, rewards = Learner.of("version_1", directory), [Reward(value=1.0, rollout_id="r", attempt=1)]
    crop = harvest([generation], rewards, {}, learner)
    assert (crop.rows, crop.reasons) == ([], {Refusal.TEMPLATE_MISMATCH: 1})
    assert len(harvest([generation], rewards, {}, learner, RowsConfig(any_template=True)).rows) == 1
    strange = generation.model_copy(update={"response_token_ids": [443, eos]})
    assert harvest([strange], rewards, {}, learner).reasons == {Refusal.OUT_OF_VOCABULARY: 1}


def test_the_vocabulary_is_what_the_config_says(directory, tmp_path):
    assert vocabulary_size(directory) == 443
    (tmp_path / "config.json").write_text(json.dumps({"text_config": {"vocab_size": 9}}))
    assert vocabulary_size(tmp_path) == 9
    assert vocabulary_size(tmp_path / "nowhere") is None
