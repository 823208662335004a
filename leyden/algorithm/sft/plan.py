"""What a run will do, for a person to read before it starts."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Console

from leyden.algorithm.sft.settings import SFTConfig
from leyden.environments.gate import Gate


def describe_plan(
    config: SFTConfig, *, model: str, engine: str, train: int, heldout: int, regression: int = 0, tasks_from: str
) -> dict[str, str]:  # fmt: skip
    """Heading → one line. ``train``, ``heldout`` and ``regression`` are numbers of tasks."""
    collect = train * config.attempts
    evaluate = heldout * (config.evaluation_attempts + 1) + (regression if heldout else 0)
    measured = evaluate * (2 if config.random_control else 1)
    gate = config.gate
    train_config = config.train
    some_rows = max(config.selection.min_rows, round(collect * config.selection.fraction))
    return {
        "model": model,
        "engine": engine,
        "tasks": f"{train} to learn from, {heldout} held out{f', {regression} for regression' if regression else ''}, from {tasks_from}",
        "each iteration": f"{collect} attempts to learn from (T={config.temperature:g})"
        + (f", {evaluate} to measure the new version (T=1 and T=0)" if heldout else ", no measurement: nothing is held out"),
        "iterations": f"{config.iterations}, {evaluate + config.iterations * (collect + measured)} rollouts in all",
        "selection": f"best {config.selection.fraction:.0%} by reward, none below {config.selection.min_reward:g}, "
        f"at least {config.selection.min_rows} rows",
        "training": f"LoRA r={train_config.r}, alpha {train_config.alpha}, lr {train_config.lr:g}, "
        f"up to {train_config.steps(some_rows)} steps of {train_config.batch_size * train_config.accumulation} rows",
        "promotion": f"only if better beyond chance at T=1 (p < {gate.alpha:g}) and not worse at T=0{_also(gate)}"
        if heldout
        else "whatever was trained: nothing is held out to judge it by",
        **({"control": "as many rows at random, trained and measured beside; never promoted"} if config.random_control else {}),
        "bounds": f"{config.max_tokens} tokens an answer, {config.rollout.attempt_timeout:g} s an attempt, "
        f"{config.rollout.max_attempts} attempts a rollout",
    }


def _also(gate: Gate) -> str:
    asked = [f"{name} ≥ {least:g}" for name, least in gate.safety.items()] + [f"{name} within budget" for name in gate.budgets]
    return f", {', '.join(asked)}" if asked else ""


def print_plan(plan: Mapping[str, str], console: Console) -> None:
    width = max(map(len, plan))
    for heading, line in plan.items():
        console.print(f"{heading:>{width}}  {line}", markup=False, soft_wrap=True)
