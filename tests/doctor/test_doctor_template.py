"""What the doctor says about a model: its template is rendered, not guessed at."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from leyden.doctor.finding import Finding, Outcome
from leyden.doctor.model import check_model
from leyden.models.template import HERMES, inspect_template, read_template

pytest.importorskip("jinja2")
Make = Callable[..., Path]

PLAIN = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# As Qwen3's template does: what the model thought is taken out of earlier turns.
FORGETFUL = PLAIN.replace("{{ message.content }}", "{{ message.content.split('</think>')[-1].lstrip('\\n') }}")
# As templates for thinking models do: the prompt opens a thought, which the history then lacks.
THINKING = PLAIN.replace("<|im_start|>assistant\n{% endif %}", "<|im_start|>assistant\n<think>\n{% endif %}")
WITHOUT_PROMPT = PLAIN.partition("{% if add")[0]
STRICT = "{% if tools %}{{ raise_exception('no tools here') }}{% endif %}" + PLAIN
DATED = "{{ strftime_now('%Y') }}{% generation %}" + PLAIN + "{% endgeneration %}"


def of(findings: list[Finding], outcome: Outcome) -> list[str]:
    return [finding.detail for finding in findings if finding.outcome is outcome]


def test_a_good_model_has_no_warning(make_model: Make) -> None:
    findings = list(check_model(make_model()))
    assert {finding.outcome for finding in findings} == {Outcome.OK}
    assert findings[-1].detail == "<|im_end|> (2), where generation stops"


@pytest.mark.parametrize(
    ("template", "outcome", "words"),
    [
        (PLAIN, Outcome.WARNING, "knows no tools"),
        (STRICT, Outcome.WARNING, "knows no tools"),
        (FORGETFUL, Outcome.WARNING, "drops <think> parts"),
        (THINKING, Outcome.WARNING, "does not keep what the model wrote"),
        (WITHOUT_PROMPT, Outcome.PROBLEM, "has no generation prompt"),
        ("{{ unclosed", Outcome.PROBLEM, "does not compile"),
        ("{{ raise_exception('never') }}", Outcome.PROBLEM, "cannot render a conversation: never"),
        ("{{ messages[7].content }}", Outcome.PROBLEM, "cannot render a conversation"),
    ],
)
def test_what_a_template_lacks_is_named_with_its_fix(make_model: Make, template: str, outcome: Outcome, words: str) -> None:
    findings = list(check_model(make_model(template=template)))
    assert any(words in detail for detail in of(findings, outcome)), findings
    assert all(finding.fix for finding in findings if finding.outcome in (Outcome.WARNING, Outcome.PROBLEM))


def test_a_turn_that_ends_where_generation_does_not_stop_is_a_problem(make_model: Make) -> None:
    (found,) = of(list(check_model(make_model(eos=0))), Outcome.PROBLEM)
    assert found == "the template ends a turn with <|im_end|> (2), generation stops at [0]"


def test_a_model_that_never_stops_is_a_problem(make_model: Make) -> None:
    (found,) = of(list(check_model(make_model(eos=None))), Outcome.PROBLEM)
    assert "does not say which token ends a turn" in found


def test_a_damaged_model_is_one_problem(make_model: Make) -> None:
    model = make_model()
    (model / "model.safetensors").write_bytes(b"half")
    (found,) = list(check_model(model))
    assert (found.outcome, found.detail) == (Outcome.PROBLEM, f"{model / 'model.safetensors'} is damaged")


def test_the_additions_of_transformers_are_known(make_model: Make) -> None:
    assert inspect_template(make_model(template=DATED)).generation_prompt


def test_a_template_of_older_days_is_read(make_model: Make) -> None:
    model = make_model()
    (model / "chat_template.jinja").unlink()
    assert read_template(model) is None
    for told in (HERMES.read_text(), [{"name": "default", "template": "x"}, {"name": "tool_use", "template": HERMES.read_text()}]):
        (model / "tokenizer_config.json").write_text(json.dumps({"chat_template": told}))
        assert read_template(model) == HERMES.read_text()


def test_our_report_agrees_with_transformers(make_model: Make) -> None:
    """The same conversation, rendered by Transformers' own function."""
    utils = pytest.importorskip("transformers.utils.chat_template_utils")
    messages = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "It is 42."}]
    for template in (PLAIN, FORGETFUL, THINKING, HERMES.read_text()):
        (rendered,), _ = utils.render_jinja_template([messages], chat_template=template)
        assert rendered.endswith("It is 42." + inspect_template(make_model(f"m{hash(template)}", template=template)).end_of_turn)
