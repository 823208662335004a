"""Small results to export, route and rescore."""

from __future__ import annotations

from leyden.environments.attempt import AttemptResult, StopReason
from leyden.environments.fingerprint import Fingerprint
from leyden.environments.output import RunOutput, ToolCall
from leyden.environments.results import EnvironmentRunResult, TaskResult
from leyden.environments.score import Score
from leyden.environments.task import Task

CALCULATOR = {
    "type": "function",
    "function": {"name": "calculate", "parameters": {"type": "object", "properties": {"expression": {"type": "string"}}}},
}


def said(*texts, system="Be exact."):
    """A conversation: user, assistant, user, …"""
    roles = ("user", "assistant")
    turns = [{"role": roles[place % 2], "content": text} for place, text in enumerate(texts)]
    return ([{"role": "system", "content": system}] if system else []) + turns


def text_run(question="What is 1 + 1?", answer="2", **changes):
    return RunOutput(**{"content": answer, "messages": tuple(said(question, answer)), **changes})


def tool_run(question="What is 12 * 34?", answer="It is 408. ### 408", *, schemas=(CALCULATOR,), call_id="c1"):
    call = {"id": call_id, "type": "function", "function": {"name": "calculate", "arguments": '{"expression": "12 * 34"}'}}
    messages = (
        {"role": "system", "content": "Use the tool."},
        {"role": "user", "content": question},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": call_id, "content": "408"},
        {"role": "assistant", "content": answer},
    )
    executed = (ToolCall("calculate", {"expression": "12 * 34"}, result="408", call_id=call_id),)
    return RunOutput(content=answer, messages=messages, tools=executed, tool_schemas=tuple(schemas))


def attempt(index=0, passed=True, run=None, value=None, **changes):
    """``passed`` None: unscored."""
    value = float(bool(passed)) if value is None else value
    score = None if passed is None else Score(value, passed)
    stop = StopReason.ERROR if passed is None else StopReason.COMPLETED
    fields = {"score": score, "stop_reason": stop, "duration_seconds": 0.5, "rollout_id": f"r{index}", "attempt": 1}
    return AttemptResult(index, **{"run": text_run() if run is None else run, **fields, **changes})


def result(*tasks, k=None):
    """``tasks``: (id, [attempts]) or lists of attempts, which are called t1, t2, …"""
    named = [task if isinstance(task, tuple) else (f"t{place}", task) for place, task in enumerate(tasks, 1)]
    results = tuple(TaskResult(Task(f"question {name}", "answer", name), tuple(attempts)) for name, attempts in named)
    env = Fingerprint("env1:aa", {"tasks": "11", "scorer": "22"})
    return EnvironmentRunResult("sums", k or max((len(a) for _, a in named), default=1), env, Fingerprint("policy1:bb"), results, 1.0)


def answers(*verdicts, question="What is 1 + 1?"):
    """One task's attempts with distinct answers: True passed, False failed, None unscored."""
    return [
        attempt(place, verdict, text_run(question, f"answer {place}, {'right' if verdict else 'wrong'}"))
        for place, verdict in enumerate(verdicts)
    ]
