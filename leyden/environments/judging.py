"""The gate before a checkpoint serves: is the candidate better than the champion beyond chance, and does nothing speak against it?

The stages come in a fixed order: safety; pass rate; stability and recovery; efficiency and cost; regression on other tasks. Every one is
looked at, also behind one that failed, and what has no data says so. A candidate is rejected where a stage failed: it is worse beyond
chance, or breaks a bound that somebody set. It is promoted where the pass rate is better beyond chance and no stage is open. Else it is
undecided: nothing was shown either way, and ``power`` says what so many tasks could have shown.

Each test is one-sided at ``alpha``. A promotion needs the test of the pass rate, and no other stage can promote: so of candidates that are
no better, a share of at most ``alpha`` is promoted: each time anew, for nothing corrects for the comparisons that a run has made before.
"""

from __future__ import annotations

from collections.abc import Sequence

from leyden.environments import stages
from leyden.environments.gate import Gate
from leyden.environments.outcomes import Outcomes
from leyden.environments.power import OFTEN, clustered_power, mcnemar_power, smallest_clustered, smallest_difference
from leyden.environments.statistics import PairedComparison
from leyden.environments.verdict import Decision, Stage, StageOutcome, Verdict

EXACT_POWER = 1000  # tasks up to which the power is enumerated


def judge(
    champion: Outcomes | None,
    candidate: Outcomes,
    gate: Gate | None = None,
    *,
    regression: stages.Pair | None = None,
    greedy: stages.Pair | None = None,
) -> Verdict:
    """Compare them task by task. Without a ``champion`` only the bounds are asked for.

    ``regression``: both on other tasks, on which the candidate must not be worse by more than the margin. ``greedy``: both on the same
    tasks at temperature 0, where it must not be worse beyond chance.
    """
    gate = gate or Gate()
    comparison = stages.compare(champion, candidate) if champion else None
    found = [
        stages.coverage(gate, champion, candidate),
        stages.safety(gate, candidate, *(pair[1] for pair in (greedy, regression) if pair is not None)),
        stages.pass_rate(gate, champion, candidate, comparison),
    ]
    if greedy is not None:
        found.append(stages.not_worse("greedy", greedy, gate))
    found += [
        stages.stability(gate, champion, candidate), stages.recovery(gate, candidate), stages.efficiency(gate, champion, candidate),
        stages.regression(gate, regression),
    ]  # fmt: skip
    found = [stage.model_copy(update={"required": stage.required or stage.name in gate.require}) for stage in found]
    decision, reason = _decide(found, champion, candidate)
    return Verdict(
        decision=decision,
        champion=champion.name if champion else None,
        candidate=candidate.name,
        reason=reason,
        stages=tuple(found),
        power=_power(comparison, _single(champion, candidate), gate.alpha) if champion and comparison else None,
        warnings=tuple(_warnings(gate, champion, candidate, comparison)),
    )


def _decide(found: Sequence[Stage], champion: Outcomes | None, candidate: Outcomes) -> tuple[Decision, str]:
    failed = [stage for stage in found if stage.outcome is StageOutcome.FAILED]
    open_ = [stage for stage in found if stage.hinders]
    if failed or open_:
        first = (failed or open_)[0]
        more = "".join(f"; {stage.name}: {stage.outcome}" for stage in (failed or open_)[1:])
        decision = Decision.REJECT if failed else Decision.UNDECIDED
        return decision, f"{first.name}: {first.sentence}{more}"
    told = [stage for stage in found if stage.outcome is StageOutcome.PASSED and ("difference" in stage.numbers or champion is None)]
    reason = "; ".join(stage.sentence if stage.name == "pass rate" else f"{stage.name}: {stage.sentence}" for stage in told)
    return Decision.PROMOTE, reason if champion else f"{candidate.name} keeps every bound. {reason}".rstrip()


def _single(champion: Outcomes | None, candidate: Outcomes) -> bool:
    return all(len(attempts) <= 1 for outcomes in (champion, candidate) if outcomes for attempts in outcomes.tasks.values())


def _power(comparison: PairedComparison, single: bool, alpha: float) -> str | None:
    n = comparison.pairs
    if not n:
        return None
    if single and n <= EXACT_POWER:
        lost = (comparison.lost + 0.5) / (n + 1)
        shares = [(rise, mcnemar_power(n, lost + rise, lost, alpha)) for rise in (0.05, 0.1, 0.2) if 2 * lost + rise <= 1]
        smallest = smallest_difference(n, lost, alpha)
        given = f"{n} tasks of which {lost:.0%} are lost by chance".replace("%", " %")
    else:
        shares = [(rise, clustered_power(n, rise, comparison.deviation, alpha)) for rise in (0.05, 0.1, 0.2)]
        smallest = smallest_clustered(n, comparison.deviation, alpha)
        given = f"{n} tasks whose differences vary by {comparison.deviation:.2f}"
    found = ", ".join(f"{rise:+.2f} with probability {share:.2f}" for rise, share in shares) or "no size"
    often = f"{smallest:+.2f} is found {OFTEN:.0%} of the time".replace("%", " %") if smallest else "no rise is found 80 % of the time"
    return f"power: {given} show a rise of {found}; {often}"


def _warnings(gate: Gate, champion: Outcomes | None, candidate: Outcomes, comparison: PairedComparison | None) -> list[str]:
    said = []
    tasks = comparison.pairs if comparison is not None else sum(candidate.counts(task)[1] > 0 for task in candidate.tasks)
    if tasks < gate.min_heldout:
        said.append(f"{tasks} tasks are fewer than {gate.min_heldout}: the test holds its level, but finds less (see power)")
    if champion is not None and (alone := champion.tasks.keys() ^ candidate.tasks.keys()):
        said.append(f"{len(alone)} tasks were tried by one of the two only, and do not count: {', '.join(sorted(alone)[:5])}")
    return said
