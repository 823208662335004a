"""The whole story: serve → collect → select → train → verify → evaluate → promote, as often as asked.

The model's own attempts are its teachers. A version is served; runners try the tasks with it; of what it said, word for word, the
attempts that passed become training rows; a LoRA adapter is trained on them in a child process; what was saved is checked, and measured
on tasks it never saw; and it replaces its parent only if it is better beyond chance.

One engine serves at a time, and none while training: a laptop has memory for one of them.
"""

from __future__ import annotations

from collections.abc import Sequence

from leyden.algorithm.sft.driver import driving
from leyden.algorithm.sft.phases import Parts, Phases
from leyden.algorithm.sft.serving import DRAIN
from leyden.algorithm.sft.settings import SFTConfig
from leyden.algorithm.sft.summary import Iteration, Summary
from leyden.algorithm.sft.tasks import LoopTask


async def run_sft(parts: Parts, config: SFTConfig, train: Sequence[LoopTask], heldout: Sequence[LoopTask] = ()) -> Summary:
    """Improve ``@champion`` of the registry on ``train``, judged on ``heldout``. Nothing to learn is a normal ending.

    Raises ``Unavailable`` when a part fails, ``TooManyFailed`` when the rollouts do, ``LeaseLost`` when another driver takes the run over.
    """
    async with driving(parts.store, parts.run.id, config.model_dump(mode="json")) as driver:
        do = Phases(parts, config, train, heldout, driver)
        champion = parts.registry.get("@champion")
        summary = Summary(run=parts.run.id, champion=champion.name, models=parts.registry.directory)
        try:
            await do.serve(0, champion)
            best = await do.evaluate(0, champion)
            summary.add_version(champion.name, best)

            for number in range(1, config.iterations + 1):
                iteration = summary.add_iteration(Iteration(number=number, parent=champion.name))
                await do.serve(number, champion)
                collected = await do.collect(number, champion)
                iteration.collected(collected)
                selection = do.select(number, collected)
                iteration.selected(selection)
                if selection.nothing_to_learn:
                    break

                await do.serving.stop(drain=DRAIN)
                candidate, result = await do.train(number, champion, selection.rows)
                iteration.trained(candidate.name, result)

                await do.serve(number, candidate)
                measured = await do.evaluate(number, candidate)
                summary.add_version(candidate.name, measured)
                decision = do.promote(number, candidate, best, measured)
                iteration.decided(decision)
                if decision.promote:
                    champion, best = candidate, measured
        finally:
            await do.serving.stop()
        summary.finish(champion.name, do.steps.seconds, do.tokens, parts.proxy.counters)
        driver.summary = summary.as_dict()
        parts.run.write_summary(driver.summary)
    return summary
