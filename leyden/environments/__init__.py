"""Environments: tasks, an agent and a scorer; K attempts at each task; what came of them as numbers and as data.

Names are resolved when they are first used (PEP 562), as in ``leyden``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from leyden.environments.adaptive import AdaptiveK
    from leyden.environments.attempt import AttemptResult, StopReason
    from leyden.environments.calibration import acalibrate, calibrate
    from leyden.environments.compare import compare_clustered
    from leyden.environments.contract import Bound, Rank, RewardContract
    from leyden.environments.diff import EnvironmentDiff
    from leyden.environments.environment import Environment
    from leyden.environments.exports.chat import ato_chat_jsonl, to_chat_jsonl
    from leyden.environments.exports.grouped import ato_grouped_jsonl, to_grouped_jsonl
    from leyden.environments.exports.kto import ato_kto_jsonl, to_kto_jsonl
    from leyden.environments.exports.preference import ato_preference_jsonl, to_preference_jsonl
    from leyden.environments.exports.report import ExportReport
    from leyden.environments.exports.sft import ato_sft_jsonl, to_sft_jsonl
    from leyden.environments.exports.sharegpt import ato_sharegpt_jsonl, to_sharegpt_jsonl
    from leyden.environments.fingerprint import Fingerprint, FingerprintError, MismatchError
    from leyden.environments.gate import Budget, Gate
    from leyden.environments.judging import judge
    from leyden.environments.leakage import LeakageGuard, check_leakage
    from leyden.environments.outcomes import Outcome, Outcomes, outcomes_of
    from leyden.environments.output import RunOutput, RunStatus, ToolCall, ToolOutcome
    from leyden.environments.pools import Pools
    from leyden.environments.results import EnvironmentRunResult, TaskResult
    from leyden.environments.routing import Router
    from leyden.environments.run import RunCancelled, RunInterrupted, arun_rollouts, run_rollouts
    from leyden.environments.sampling import sample
    from leyden.environments.saved import open_saved
    from leyden.environments.score import Score, Scorer
    from leyden.environments.scorers import CodeScorer, JudgeScorer, RewardScorer, ToolCallScorer
    from leyden.environments.statistics import Interval, compare_paired, pass_at_k, pass_hat_k, wilson, wilson_by_task
    from leyden.environments.subjects import AgentsSDK, Endpoint
    from leyden.environments.task import Task
    from leyden.environments.triage import Suspect, examine_failures
    from leyden.environments.verdict import Decision, Verdict
    from leyden.environments.zone import Band, band_of, count_bands

__all__ = [
    "AdaptiveK", "AgentsSDK", "AttemptResult", "Band", "Bound", "Budget", "CodeScorer", "Decision", "Endpoint", "Environment",
    "EnvironmentDiff", "EnvironmentRunResult", "ExportReport", "Fingerprint", "FingerprintError", "Gate", "Interval", "JudgeScorer",
    "LeakageGuard", "MismatchError", "Outcome", "Outcomes", "Pools", "Rank", "RewardContract", "RewardScorer", "Router", "RunCancelled",
    "RunInterrupted", "RunOutput", "RunStatus", "Score", "Scorer", "StopReason", "Suspect", "Task", "TaskResult", "ToolCall",
    "ToolCallScorer", "ToolOutcome", "Verdict", "acalibrate", "arun_rollouts", "ato_chat_jsonl", "ato_grouped_jsonl", "ato_kto_jsonl",
    "ato_preference_jsonl", "ato_sft_jsonl", "ato_sharegpt_jsonl", "band_of", "calibrate", "check_leakage", "compare_clustered",
    "compare_paired", "count_bands", "examine_failures", "judge", "open_saved", "outcomes_of", "pass_at_k", "pass_hat_k", "run_rollouts",
    "sample", "to_chat_jsonl", "to_grouped_jsonl", "to_kto_jsonl", "to_preference_jsonl", "to_sft_jsonl", "to_sharegpt_jsonl", "wilson",
    "wilson_by_task",
]  # fmt: skip

_MODULES = {
    "adaptive": ("AdaptiveK",),
    "attempt": ("AttemptResult", "StopReason"),
    "calibration": ("acalibrate", "calibrate"),
    "compare": ("compare_clustered",),
    "contract": ("Bound", "Rank", "RewardContract"),
    "diff": ("EnvironmentDiff",),
    "environment": ("Environment",),
    "exports.chat": ("ato_chat_jsonl", "to_chat_jsonl"),
    "exports.grouped": ("ato_grouped_jsonl", "to_grouped_jsonl"),
    "exports.kto": ("ato_kto_jsonl", "to_kto_jsonl"),
    "exports.preference": ("ato_preference_jsonl", "to_preference_jsonl"),
    "exports.report": ("ExportReport",),
    "exports.sft": ("ato_sft_jsonl", "to_sft_jsonl"),
    "exports.sharegpt": ("ato_sharegpt_jsonl", "to_sharegpt_jsonl"),
    "fingerprint": ("Fingerprint", "FingerprintError", "MismatchError"),
    "gate": ("Budget", "Gate"),
    "judging": ("judge",),
    "leakage": ("LeakageGuard", "check_leakage"),
    "outcomes": ("Outcome", "Outcomes", "outcomes_of"),
    "output": ("RunOutput", "RunStatus", "ToolCall", "ToolOutcome"),
    "pools": ("Pools",),
    "results": ("EnvironmentRunResult", "TaskResult"),
    "routing": ("Router",),
    "run": ("RunCancelled", "RunInterrupted", "arun_rollouts", "run_rollouts"),
    "sampling": ("sample",),
    "saved": ("open_saved",),
    "score": ("Score", "Scorer"),
    "scorers": ("CodeScorer", "JudgeScorer", "RewardScorer", "ToolCallScorer"),
    "statistics": ("Interval", "compare_paired", "pass_at_k", "pass_hat_k", "wilson", "wilson_by_task"),
    "subjects": ("AgentsSDK", "Endpoint"),
    "task": ("Task",),
    "triage": ("Suspect", "examine_failures"),
    "verdict": ("Decision", "Verdict"),
    "zone": ("Band", "band_of", "count_bands"),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = globals()[name] = getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
