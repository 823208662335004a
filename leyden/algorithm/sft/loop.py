"""The whole story: serve → collect → select → train → verify → evaluate → promote, as often as asked.

The model's own attempts are its teachers. A version is served; runners try the tasks with it; of what it said, word for word, the
attempts that passed become training rows; a LoRA adapter is trained on them in a child process; what was saved is checked, and measured
on tasks it never saw; and it replaces its parent only if the gate says so: better beyond chance, and nothing against it.

``collect`` and ``evaluate`` have the version served that they are given. One engine serves at a time, and none while training: a laptop
has memory for one of them.

A driver that goes on with an interrupted run tells the same story from the start: a step that was finished gives what it gave.
"""

from __future__ import annotations

from collections.abc import Sequence

from leyden.algorithm.sft.arms import Arms
from leyden.algorithm.sft.collect import TooManyFailed
from leyden.algorithm.sft.cost import Cost
from leyden.algorithm.sft.driver import driving
from leyden.algorithm.sft.phases import Parts, Phases
from leyden.algorithm.sft.settings import SFTConfig
from leyden.algorithm.sft.summary import Iteration, Summary
from leyden.algorithm.sft.tasks import LoopTask


async def run_sft(
    parts: Parts, config: SFTConfig, train: Sequence[LoopTask], heldout: Sequence[LoopTask] = (), regression: Sequence[LoopTask] = ()
) -> Summary:
    """Improve ``@champion`` of the registry on ``train``, judged on ``heldout``, and on ``regression``, where it must not get worse.

    Nothing to learn is a normal ending.

    Raises ``Unavailable`` when a part fails, ``TooManyFailed`` when the rollouts do, ``LeaseLost`` when another driver takes the run over,
    ``Conflict`` or ``UsageError`` when a resumed run does not fit to its store or its settings.
    """
    run = parts.run
    async with driving(parts.store, run.id, config.model_dump(mode="json"), take_over=run.resumed) as driver:
        do = Phases(parts, config, train, heldout, regression, driver)
        champion = do.begin()
        summary = Summary(run=run.id, champion=champion.name, models=parts.registry.directory)
        try:
            best = await do.evaluate(0, champion)
            summary.add_version(champion.name, best)

            for number in range(1, config.iterations + 1):
                iteration = summary.add_iteration(Iteration(number=number, parent=champion.name))
                collected = await do.collect(number, champion)
                iteration.collected(collected)
                selection = await do.select(number, collected)
                iteration.selected(selection)
                if selection.nothing_to_learn:
                    break

                candidate, result = await do.train(number, champion, selection.rows)
                iteration.trained(candidate.name, result)
                measured = await do.evaluate(number, candidate)
                summary.add_version(candidate.name, measured)
                verdict = await do.promote(number, candidate, best, measured)
                iteration.judged(verdict)

                if config.random_control:
                    control, at_random = await do.control(number, champion, collected, len(selection.rows))
                    summary.add_version(control.name, at_random)
                    iteration.compared(Arms.of(champion.name, candidate.name, control.name, best, measured, at_random))
                if verdict.promote:
                    champion, best = candidate, measured
        except TooManyFailed as error:
            run.end("failed", error.message)  # what failed stays failed, however often the run goes on
            raise
        finally:
            await do.serving.stop()
        run.metric(step="end")
        fidelity = await parts.store.count_audits(run.id)
        summary.finish(champion.name, do.steps.seconds, Cost.read(run.metrics()), do.tokens, do.calls, fidelity)
        driver.summary = summary.as_dict()
    run.write_summary(summary.as_dict())  # last: whoever dies before goes on, and tells the store the same once more
    return summary
