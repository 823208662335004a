"""A model as a scorer."""

from __future__ import annotations

import dataclasses
import json
from enum import StrEnum
from typing import Any

from leyden.environments.chat import ask
from leyden.environments.fingerprint import digest
from leyden.environments.output import RunOutput
from leyden.environments.score import Score
from leyden.environments.scorers.code import checked_threshold
from leyden.environments.scorers.fence import Fence
from leyden.environments.subjects.endpoint import llm_components
from leyden.errors import UsageError
from leyden.types import LLM


class JudgeMode(StrEnum):
    BINARY = "binary"
    NUMERIC = "numeric"


class JudgeScorer:
    """Asks ``model`` whether the output meets ``criteria``. ``binary``: 1 or 0. ``numeric``: a whole number from 1 to 10, which passes
    from ``threshold`` on; the value is (number - 1) / 9, and the number is in ``detail["raw_score"]``.

    The judge sees the criteria, the last thing the user said, the task's ``expected`` if there is one, and the output; all but the
    criteria stand inside a fence that nobody could have forged. It is asked at temperature 0, unless the model's own sampling parameters
    say otherwise, for JSON of a given schema. An answer of another shape raises ``ValueError``: the attempt is unscored, never 0.
    """

    def __init__(self, model: LLM, criteria: str, *, mode: str = "binary", threshold: float = 7) -> None:
        if not isinstance(model, LLM):
            raise UsageError(
                f"the judge is a leyden.LLM, not a {type(model).__name__}", "JudgeScorer(LLM(endpoint=…, model=…), criteria=…)"
            )
        if not isinstance(criteria, str) or not criteria.strip():
            raise UsageError(f"criteria is a text, not {criteria!r}", 'criteria="The answer is polite."')
        if mode not in tuple(JudgeMode):
            raise UsageError(f"there is no mode {mode!r}", "mode is 'binary' or 'numeric'")
        self.model = model
        self.criteria = criteria
        self.mode = JudgeMode(mode)
        self.threshold = checked_threshold(threshold, 1, 10)

    async def ascore(self, run: RunOutput, expected: Any = None) -> Score:
        """Raises ``ValueError`` if there is nothing to judge or the answer is not what was asked for, ``LeydenError`` if the judge does not
        answer."""
        if run.content is None:
            raise ValueError("there is no output to judge")
        messages = [{"role": "user", "content": self.prompt(run, expected, Fence())}]
        sampling = {"temperature": 0.0} if "temperature" not in self.model.sampling_parameters else {}
        answer = await ask(self.model, messages, response_format=_response_format(self.mode), **sampling)
        choice = answer["choices"][0]
        if choice.get("finish_reason") == "length":
            raise ValueError("the judge's answer was cut at its token limit")
        return self._score(_parsed(choice["message"].get("content"), self.mode))

    def prompt(self, run: RunOutput, expected: Any, fence: Fence) -> str:
        """What the judge is asked, with everything that others wrote inside the fence."""
        if self.mode is JudgeMode.BINARY:
            task = "Decide whether the output meets the criteria. `passed` is true only if it meets them fully."
        else:
            task = "Rate how well the output meets the criteria. `score` is a whole number from 1 (not at all) to 10 (fully)."
        parts = [f"You judge the output of an assistant.\n\nCriteria:\n{self.criteria}", task, fence.instruction]
        if (question := _last_question(run)) is not None:
            parts.append(fence.around("input", question))
        if expected is not None:
            parts.append(fence.around("reference", _text(expected)))
        parts.append(fence.around("output", _text(run.content)))
        parts.append(f"Answer with JSON only: `reason`, one or two sentences, then `{_verdict(self.mode)}`.")
        return "\n\n".join(parts)

    def digest(self) -> str:
        """The threshold counts in numeric mode only: the other does not read it."""
        threshold = self.threshold if self.mode is JudgeMode.NUMERIC else None
        model = {name: get() for name, get in llm_components(self.model).items()}
        return digest(["judge1", self.criteria, self.mode, threshold, model])

    def _score(self, answer: dict[str, Any]) -> Score:
        if self.mode is JudgeMode.BINARY:
            return Score(float(answer["passed"]), answer["passed"], reason=answer["reason"])
        raw = answer["score"]
        return Score((raw - 1) / 9, raw >= self.threshold, reason=answer["reason"], detail={"raw_score": raw})


def _verdict(mode: JudgeMode) -> str:
    return "passed" if mode is JudgeMode.BINARY else "score"


def _response_format(mode: JudgeMode) -> dict[str, Any]:
    kind = {"type": "boolean"} if mode is JudgeMode.BINARY else {"type": "integer", "minimum": 1, "maximum": 10}
    properties = {"reason": {"type": "string"}, _verdict(mode): kind}
    schema = {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}
    return {"type": "json_schema", "json_schema": {"name": "verdict", "strict": True, "schema": schema}}


def _parsed(text: Any, mode: JudgeMode) -> dict[str, Any]:
    """Exactly what was asked for."""
    try:
        answer = json.loads(text)
    except (TypeError, ValueError):
        raise ValueError(f"the judge did not answer with JSON: {text!r:.200}") from None
    name = _verdict(mode)
    if not isinstance(answer, dict) or set(answer) != {"reason", name} or not isinstance(answer["reason"], str):
        raise ValueError(f"the judge's answer has another shape: {text!r:.200}")
    verdict = answer[name]
    fits = isinstance(verdict, bool) if mode is JudgeMode.BINARY else type(verdict) is int and 1 <= verdict <= 10
    if not fits:
        raise ValueError(f"the judge's {name} is {verdict!r}")
    return answer


def _last_question(run: RunOutput) -> str | None:
    asked = [message.get("content") for message in run.messages if message.get("role") == "user"]
    return _text(asked[-1]) if asked else None


def _text(content: Any) -> str:
    """A text as it is; a typed output, or anything else of JSON, as JSON."""
    if isinstance(content, str):
        return content
    if hasattr(content, "model_dump"):
        content = content.model_dump(mode="json")
    elif dataclasses.is_dataclass(content) and not isinstance(content, type):
        content = dataclasses.asdict(content)
    return json.dumps(content, ensure_ascii=False, default=str)
