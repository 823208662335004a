"""``run_rollouts``: K attempts at every task, each of them kept from the moment it ends."""

from __future__ import annotations

import asyncio
import logging
import shlex
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leyden.environments.connections import connections
from leyden.environments.credentials import place_of, without_credentials
from leyden.environments.evaldir import EvalDir
from leyden.environments.fingerprint import Fingerprint, MismatchError
from leyden.environments.live import shown
from leyden.environments.local import run_here
from leyden.environments.plan import Plan, make_plan
from leyden.environments.results import EnvironmentRunResult
from leyden.environments.tally import OnAttemptEnd, Tally
from leyden.errors import LeydenError, UsageError

if TYPE_CHECKING:
    from leyden.environments.adaptive import AdaptiveK
    from leyden.environments.environment import Environment
    from leyden.types import LLM

log = logging.getLogger(__name__)


class RunInterrupted(KeyboardInterrupt):
    """Ctrl+C in ``run_rollouts``. Nothing that had ended is lost: ``result`` holds it, and ``resume=eval_id`` goes on."""

    def __init__(self, result: EnvironmentRunResult, eval_id: str) -> None:
        super().__init__(f"eval {eval_id} was interrupted after {result.n_attempts} of {result.n_planned} attempts")
        self.result = result
        self.eval_id = eval_id


class RunCancelled(asyncio.CancelledError):
    """The same for a task that was cancelled in ``arun_rollouts``."""

    def __init__(self, result: EnvironmentRunResult, eval_id: str) -> None:
        super().__init__(f"eval {eval_id} was cancelled after {result.n_attempts} of {result.n_planned} attempts")
        self.result = result
        self.eval_id = eval_id


@dataclass(frozen=True)
class Asking:
    """What the caller wants of a run besides the environment; see ``run_rollouts``."""

    k: int = 8
    tasks: Iterable[Any] | None = None
    model: LLM | None = None
    concurrency: int = 4
    store: str | None = None
    evals: str | PathLike[str] = "evals"
    resume: str | None = None
    seed: int = 0
    adaptive: AdaptiveK | None = None
    on_attempt_end: OnAttemptEnd | None = None
    quiet: bool = False
    how: Mapping[str, Any] | None = None  # what else ``eval.json`` should hold, for the command line


def run_rollouts(
    env: Environment,
    *,
    k: int = 8,
    tasks: Iterable[Any] | None = None,
    model: LLM | None = None,
    concurrency: int = 4,
    store: str | None = None,
    evals: str | PathLike[str] = "evals",
    resume: str | None = None,
    seed: int = 0,
    adaptive: AdaptiveK | None = None,
    on_attempt_end: OnAttemptEnd | None = None,
    quiet: bool = False,
) -> EnvironmentRunResult:
    """Try every task ``k`` times and return what came of it, grouped by task and attempt. ``arun_rollouts`` is the same in an event loop.

    * ``tasks``: some of ``env.tasks``: themselves, their ids, or those of a result. ``model``: where an agent without a model of its own
      finds one, or another one instead of its own. ``concurrency``: attempts at once.
    * ``store``: None keeps the attempts in ``evals/<id>/store.db`` and makes them in this process. With a store's URL runners elsewhere
      make them (``leyden runners module:env --store URL --queue NAME``, the environment's name), and this only queues and waits.
    * ``resume``: the id of an eval that was killed or interrupted (a unique prefix, ``@latest``): only what is missing is tried. k, tasks
      and seed are as they were asked for then.
    * ``adaptive``: stops trying a task once enough is known of it; k is then at most its ``max_k``.
    * ``on_attempt_end(task, attempt)`` hears of each attempt that is in the store. Raising, it is not called again.

    The first attempt of every task comes first, then the second of every task: after one round something is known of all of them, and
    an environment that fails as a whole shows it after a handful of attempts, not after all of the first task's. When it does, the rest
    is not tried (``stopped_early``; see ``storm``). An attempt that ended by a failure of the infrastructure is tried again, up to three
    times, under the same index; it is never a further sample.

    Raises ``UsageError`` for whatever is wrong before the first attempt, ``MismatchError`` for an eval to resume of an environment or
    policy that has changed since, ``RuntimeError`` inside a running event loop, ``RunInterrupted`` on Ctrl+C.
    """
    asking = Asking(k, tasks, model, concurrency, store, evals, resume, seed, adaptive, on_attempt_end, quiet)
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        pass
    else:
        raise RuntimeError("run_rollouts() was called inside a running event loop: await arun_rollouts() there")
    return run_to_end(env, asking)


async def arun_rollouts(
    env: Environment,
    *,
    k: int = 8,
    tasks: Iterable[Any] | None = None,
    model: LLM | None = None,
    concurrency: int = 4,
    store: str | None = None,
    evals: str | PathLike[str] = "evals",
    resume: str | None = None,
    seed: int = 0,
    adaptive: AdaptiveK | None = None,
    on_attempt_end: OnAttemptEnd | None = None,
    quiet: bool = False,
) -> EnvironmentRunResult:
    """``run_rollouts`` in an event loop. A cancelled one raises ``RunCancelled``, which is a ``CancelledError`` with the partial result."""
    return await drive(env, Asking(k, tasks, model, concurrency, store, evals, resume, seed, adaptive, on_attempt_end, quiet))


def run_to_end(env: Environment, asking: Asking) -> EnvironmentRunResult:
    """``drive`` in an event loop of its own. Raises ``RunInterrupted`` on Ctrl+C."""
    cancelled: list[RunCancelled] = []
    results: list[EnvironmentRunResult] = []

    async def go() -> None:  # its task has no result: asyncio.run() spells the task out when it hands SIGINT back, however large that is
        try:
            results.append(await drive(env, asking))
        except RunCancelled as error:
            cancelled.append(error)
            raise

    try:
        asyncio.run(go())
    except KeyboardInterrupt:
        if not cancelled:
            raise
        raise RunInterrupted(cancelled[0].result, cancelled[0].eval_id) from None
    return results[0]


@connections()
async def drive(env: Environment, asking: Asking) -> EnvironmentRunResult:
    if not hasattr(env, "env_fingerprint"):
        raise UsageError(f"run_rollouts() takes an Environment, not {type(env).__name__}", "Environment(name, tasks, scorer, agent)")
    evals = Path(asking.evals)
    earlier = None if asking.resume is None else EvalDir.find(evals, asking.resume)
    asked = earlier.asked if earlier else {}
    store = asked.get("store") if earlier else asking.store
    adaptive = _adaptive(asked) if earlier else asking.adaptive
    plan = await make_plan(
        env,
        k=asked["k"] if earlier else asking.k if adaptive is None else adaptive.max_k,
        tasks=asked["tasks"] if earlier else asking.tasks,
        model=asking.model,
        concurrency=asking.concurrency,
        seed=asked["seed"] if earlier else asking.seed,
        remote=store is not None,
    )
    if earlier:
        _check_same(plan, asked, earlier.id)
    if store is not None and not earlier:
        await _check_store(store)
    run = earlier or EvalDir.create(evals, _as_asked(plan, store, adaptive, asking.how))
    tally = Tally(plan, adaptive, asking.on_attempt_end)
    began = time.monotonic()
    with run.lock(), shown(tally, asking.quiet) as view:
        try:
            if store is None:
                await run_here(run, asked or run.asked, plan, tally)
            else:
                from leyden.environments.elsewhere import run_elsewhere

                name = (asking.how or {}).get("env", "module:env")
                runners = shlex.join(["leyden", "runners", name, "--store", store, "--queue", plan.queue])
                await run_elsewhere(store, run, asked or run.asked, plan, tally, view.say, runners)
            result = tally.result(time.monotonic() - began, run.id)
            await result.asave(run.result)
        except asyncio.CancelledError:
            partial = tally.result(time.monotonic() - began, run.id)
            raise RunCancelled(partial, run.id) from None
        except LeydenError:
            view.say(f"eval {run.id} did not come to its end; what had ended is kept, and --resume {run.id} goes on")
            raise
        run.write_summary(result.summary())
    return result


async def _check_store(url: str) -> None:
    """A mistyped one should leave no eval behind. Raises ``Unavailable``."""
    from leyden.server.client import StoreClient

    async with StoreClient(url) as store:
        await store.list_queues()


def _as_asked(plan: Plan, store: str | None, adaptive: AdaptiveK | None, how: Mapping[str, Any] | None) -> dict[str, Any]:
    llm = plan.llm
    return {
        "format": 1,
        "env_name": plan.env.name,
        "k": plan.k,
        "tasks": [task.id for task in plan.tasks],
        "seed": plan.seed,
        "store": store,
        "model": None if llm is None else _without_keys(llm),
        "adaptive": None if adaptive is None else asdict(adaptive),
        "env_fingerprint": {"digest": plan.env_fingerprint.digest, "components": dict(plan.env_fingerprint.components)},
        "policy_fingerprint": {"digest": plan.policy_fingerprint.digest, "components": dict(plan.policy_fingerprint.components)},
        **(how or {}),
    }


def _without_keys(llm: LLM) -> dict[str, Any]:
    sampling = without_credentials(llm.sampling_parameters)
    return {"endpoint": place_of(llm.endpoint), "model": llm.model, "sampling_parameters": sampling}


def _adaptive(asked: Mapping[str, Any]) -> AdaptiveK | None:
    from leyden.environments.adaptive import AdaptiveK

    return AdaptiveK(**asked["adaptive"]) if asked.get("adaptive") else None


def _check_same(plan: Plan, asked: Mapping[str, Any], eval_id: str) -> None:
    """The attempts to come must be like those that are there. What no digest could be taken of cannot be compared, and is named."""
    if plan.env.name != asked["env_name"]:
        raise UsageError(f"eval {eval_id} is of {asked['env_name']!r}, not of {plan.env.name!r}", "resume it with that environment")
    for what, now in (("environment", plan.env_fingerprint), ("policy", plan.policy_fingerprint)):
        before = Fingerprint(**asked["env_fingerprint" if what == "environment" else "policy_fingerprint"])
        names = sorted({*before.components, *now.components})
        pairs = {name: (before.components.get(name), now.components.get(name)) for name in names}
        if changed := [name for name, (old, new) in pairs.items() if old != new]:
            raise MismatchError(
                f"eval {eval_id} was begun with another {what}: {', '.join(changed)} changed", "start a new eval, or undo the change"
            )
        if unknown := [name for name, (old, _) in pairs.items() if old is None]:
            log.warning("eval %s goes on, though nobody can tell whether its %s changed in: %s", eval_id, what, ", ".join(unknown))
