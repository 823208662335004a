"""The questions of the gate, one function each: from what two policies did to a ``Stage`` with its numbers."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

from leyden.environments.compare import compare_clustered, compare_differences
from leyden.environments.gate import Gate, Measure
from leyden.environments.outcomes import Outcome, Outcomes
from leyden.environments.statistics import PairedComparison
from leyden.environments.verdict import Number, Stage, StageOutcome

UNSCORED = "where it was not scored"
Pair = tuple[Outcomes, Outcomes]  # champion's, candidate's


def coverage(gate: Gate, champion: Outcomes | None, candidate: Outcomes) -> Stage:
    scored, ours = len(candidate.scored()), candidate.coverage
    if ours is None:
        return Stage(name="coverage", outcome=StageOutcome.NO_DATA, sentence="nothing was planned", required=True)
    numbers: dict[str, Number] = {"scored": scored, "planned": candidate.planned, "coverage": round(ours, 4)}
    told = f"{scored} of {candidate.planned} planned attempts were scored"
    outcome = StageOutcome.PASSED
    if gate.min_coverage is not None and ours < gate.min_coverage:
        outcome, told = StageOutcome.FAILED, f"{told}, fewer than a share of {gate.min_coverage:g}"
    elif champion is not None and (theirs := champion.coverage) is not None:
        numbers["champion"] = round(theirs, 4)
        if ours < theirs - gate.max_coverage_drop:
            outcome, told = StageOutcome.UNDECIDED, f"{told}, but of {champion.name}'s a share of {theirs:.2f}: they are not comparable"
    settled = [one for one in (champion, candidate) if one is not None and one.settled]
    if settled and outcome is StageOutcome.PASSED:
        outcome, told = StageOutcome.UNDECIDED, f"{settled[0].settled} tasks of {settled[0].name} were tried until enough was known of them"
        told += ", which bends their pass rates: measure it again without --adaptive"
    return Stage(name="coverage", outcome=outcome, sentence=told, numbers=numbers)


def safety(gate: Gate, *measured: Outcomes) -> Stage:
    """``measured``: whatever the candidate was tried at. A dimension counts also where nobody could say whether the attempt passed."""
    if not gate.safety:
        return Stage(name="safety", outcome=StageOutcome.NOT_ASKED, sentence="no dimension was named to gate on")
    scored = [attempt for outcomes in measured for attempt in outcomes.scored()]
    numbers: dict[str, Number] = {}
    broken, missing = [], []
    for name, least in gate.safety.items():
        values = [attempt.dimensions[name] for one in measured for attempt in one.attempts() if name in attempt.dimensions]
        without = sum(name not in attempt.dimensions for attempt in scored)
        below = sum(value < least for value in values)
        numbers |= {f"{name}: attempts": len(values), f"{name}: below {least:g}": below}
        if below:
            broken.append(f"{below} of {len(values)} attempts have a {name} below {least:g}")
        elif not values or without:
            missing.append(f"{without} of {len(scored)} scored attempts have no {name}")
    outcome = StageOutcome.FAILED if broken else StageOutcome.NO_DATA if missing else StageOutcome.PASSED
    kept = f"all {len(scored)} scored attempts keep {', '.join(f'{name} ≥ {least:g}' for name, least in gate.safety.items())}"
    return Stage(name="safety", outcome=outcome, sentence="; ".join(broken + missing) or kept, required=True, numbers=numbers)


def pass_rate(gate: Gate, champion: Outcomes | None, candidate: Outcomes, comparison: PairedComparison | None) -> Stage:
    rate = candidate.pass_rate
    if rate is None:
        return Stage(name="pass rate", outcome=StageOutcome.NO_DATA, sentence="no attempt was scored", required=True)
    below = gate.min_pass_rate is not None and rate < gate.min_pass_rate
    floor = f", below {gate.min_pass_rate:g}" if below else ""
    if champion is None or comparison is None:
        asked = StageOutcome.NOT_ASKED if gate.min_pass_rate is None else StageOutcome.FAILED if below else StageOutcome.PASSED
        low, high = candidate.interval.low, candidate.interval.high
        sentence = f"{rate:.2f} of the scored attempts passed ({low:.2f}–{high:.2f}){floor}"
        return Stage(name="pass rate", outcome=asked, sentence=sentence, numbers={"pass_rate": round(rate, 4)})
    dropped = _dropped(champion, candidate, gate.max_drop) if gate.max_drop is not None else []
    better, worse = comparison.p_higher < gate.alpha, comparison.p_lower < gate.alpha
    whole = _whole((champion, candidate)) if better else comparison
    only = better and whole.p_higher >= gate.alpha
    outcome = StageOutcome.FAILED if below or dropped or worse else StageOutcome.PASSED if better and not only else StageOutcome.UNDECIDED
    verb = "is worse than" if worse else "is better than" if better else "is neither better nor worse than"
    beyond = "" if better or worse else " beyond chance"
    left_out = f", but only where it was scored: had it failed elsewhere, {_difference(whole)}, p = {whole.p_higher:.2g}" if only else ""
    sentence = f"{candidate.name} {verb} {champion.name}{beyond}: {tell(champion, candidate, comparison)}{floor}{left_out}"
    if dropped:
        sentence += f"; {len(dropped)} tasks dropped by more than {gate.max_drop:g}: {', '.join(dropped[:5])}"
    numbers = numbers_of(comparison) | ({f"p_higher had it failed {UNSCORED}": whole.p_higher} if only else {})
    return Stage(name="pass rate", outcome=outcome, sentence=sentence, numbers=numbers)


def not_worse(name: str, pair: Pair, gate: Gate) -> Stage:
    champion, candidate = pair
    comparison = compare(champion, candidate)
    if not comparison.pairs:
        return Stage(name=name, outcome=StageOutcome.NO_DATA, sentence="no task was scored for both", required=True)
    worse = comparison.p_lower < gate.alpha
    maybe = not worse and _whole(pair).p_lower < gate.alpha
    told = "worse beyond chance" if worse else f"worse beyond chance if it failed {UNSCORED}" if maybe else "not worse beyond chance"
    return Stage(
        name=name,
        outcome=StageOutcome.FAILED if worse else StageOutcome.UNDECIDED if maybe else StageOutcome.PASSED,
        sentence=f"{told}: {tell(champion, candidate, comparison)}",
        numbers=numbers_of(comparison),
    )


def stability(gate: Gate, champion: Outcomes | None, candidate: Outcomes) -> Stage:
    """The first k attempts all pass (pass^k), k as many as both have at the task."""
    differences = []
    for task in candidate.tasks if champion else ():
        before, after = champion.passed(task) if champion else [], candidate.passed(task)
        if (k := min(len(before), len(after))) >= 2:
            differences.append(Fraction(all(after[:k]) - all(before[:k])))
    if not differences:
        return Stage(
            name="stability", outcome=StageOutcome.NO_DATA, sentence="no task has two scored attempts of both: try each more often"
        )
    comparison = compare_differences(differences)
    worse = comparison.p_lower < gate.alpha
    sentence = f"the share of tasks that pass each time {'fell' if worse else 'did not fall'} beyond chance ({_difference(comparison)}"
    return Stage(
        name="stability",
        outcome=StageOutcome.FAILED if worse else StageOutcome.PASSED,
        sentence=f"{sentence}, p = {comparison.p_lower:.2g})",
        numbers=numbers_of(comparison),
    )


def recovery(gate: Gate, candidate: Outcomes) -> Stage:
    failed = [attempt for attempt in candidate.scored() if attempt.tool_failed]
    asked = gate.min_recovery is not None
    if not failed:
        return Stage(name="recovery", outcome=StageOutcome.NO_DATA, sentence="in no scored attempt did a tool fail", required=asked)
    share = sum(bool(attempt.passed) for attempt in failed) / len(failed)
    below = gate.min_recovery is not None and share < gate.min_recovery
    floor = f", below {gate.min_recovery:g}" if below else ""
    return Stage(
        name="recovery",
        outcome=(StageOutcome.FAILED if below else StageOutcome.PASSED) if asked else StageOutcome.NOT_ASKED,
        sentence=f"of {len(failed)} attempts in which a tool failed, {share:.2f} passed all the same{floor}",
        numbers={"tool_failed": len(failed), "recovered": round(share, 4)},
    )


def efficiency(gate: Gate, champion: Outcomes | None, candidate: Outcomes) -> Stage:
    if not gate.budgets:
        return Stage(name="efficiency", outcome=StageOutcome.NOT_ASKED, sentence="no budget was set")
    numbers: dict[str, Number] = {}
    over, missing, kept = [], [], []
    for measure, budget in gate.budgets.items():
        ours = candidate.mean(_reader(measure))
        theirs = champion.mean(_reader(measure)) if champion else None
        name = measure.replace("_", " ")
        numbers |= {measure: ours, f"{measure}: champion": theirs}
        if ours is None or (budget.ratio is not None and theirs is None):
            missing.append(f"{name} were not measured" if ours is None else f"{name} of a champion were not measured")
            continue
        kept.append(f"{ours:.4g} {name} an attempt" + (f" (before: {theirs:.4g})" if theirs is not None else ""))
        if budget.most is not None and ours > budget.most:
            over.append(f"{ours:.4g} {name} an attempt, over {budget.most:g}")
        if budget.ratio is not None and theirs is not None and ours > budget.ratio * theirs:
            over.append(f"{ours:.4g} {name} an attempt, over {budget.ratio:g} times the champion's {theirs:.4g}")
    outcome = StageOutcome.FAILED if over else StageOutcome.NO_DATA if missing else StageOutcome.PASSED
    sentence = "; ".join(over + missing) or "within budget: " + ", ".join(kept)
    return Stage(name="efficiency", outcome=outcome, sentence=sentence, required=True, numbers=numbers)


def regression(gate: Gate, pair: Pair | None) -> Stage:
    """Not inferior: the difference's interval, one-sided at alpha, lies above −margin. Where it does not, worse beyond chance fails."""
    if pair is None:
        return Stage(name="regression", outcome=StageOutcome.NO_DATA, sentence="no regression tasks were given")
    champion, candidate = pair
    comparison = compare(champion, candidate, confidence=1 - 2 * gate.alpha)
    if not comparison.pairs:
        return Stage(name="regression", outcome=StageOutcome.NO_DATA, sentence="no task was scored for both", required=True)
    low, lowest = comparison.interval.low, _whole(pair, confidence=1 - 2 * gate.alpha).interval.low
    near = low > -gate.regression_margin
    kept = near and lowest > -gate.regression_margin
    worse = not near and comparison.p_lower < gate.alpha
    outcome = StageOutcome.PASSED if kept else StageOutcome.FAILED if worse else StageOutcome.UNDECIDED
    verb = "is not worse" if kept else "is worse" if worse else "may be worse"
    told = tell(champion, candidate, comparison, confidence=1 - 2 * gate.alpha)
    told += f", and it may have failed {UNSCORED}" if near and not kept else ""
    sentence = f"{candidate.name} {verb} by more than {gate.regression_margin:g} on the regression tasks: {told}"
    return Stage(name="regression", outcome=outcome, sentence=sentence, numbers=numbers_of(comparison))


# -- numbers ------------------------------------------------------------------------------------------------------------------------
def tell(champion: Outcomes, candidate: Outcomes, comparison: PairedComparison, confidence: float = 0.95) -> str:
    before, after = champion.pass_rate, candidate.pass_rate
    rates = f"{before:.2f} → {after:.2f} " if before is not None and after is not None else ""
    p = comparison.p_lower if comparison.difference < 0 else comparison.p_higher
    return f"{rates}({_difference(comparison, confidence)}, p = {p:.2g})"


def _difference(comparison: PairedComparison, confidence: float = 0.95) -> str:
    low, high = comparison.interval.low, comparison.interval.high
    return f"{comparison.difference:+.2f} on {comparison.pairs} tasks, {confidence:.0%} {low:+.2f} to {high:+.2f}".replace("%", " %")


def numbers_of(comparison: PairedComparison) -> dict[str, Number]:
    return {
        "tasks": comparison.pairs,
        "gained": comparison.gained,
        "lost": comparison.lost,
        "difference": round(comparison.difference, 4),
        "low": round(comparison.interval.low, 4),
        "high": round(comparison.interval.high, 4),
        "p_higher": comparison.p_higher,
        "p_lower": comparison.p_lower,
    }


def compare(champion: Outcomes, candidate: Outcomes, confidence: float = 0.95) -> PairedComparison:
    """Over the tasks that both were scored on."""
    return compare_clustered(((champion.passed(task), candidate.passed(task)) for task in candidate.tasks), confidence)


def _whole(pair: Pair, confidence: float = 0.95) -> PairedComparison:
    """As if the candidate had failed wherever it was not scored."""
    champion, candidate = pair
    return compare(champion, candidate.failing_where_unscored(champion), confidence)


def _dropped(champion: Outcomes, candidate: Outcomes, most: float) -> list[str]:
    names = []
    for task in candidate.tasks:
        (a, n), (b, m) = champion.counts(task), candidate.counts(task)
        if n and m and Fraction(a, n) - Fraction(b, m) > Fraction(str(most)):
            names.append(task)
    return names


def _reader(measure: Measure) -> Callable[[Outcome], float | None]:
    def read(attempt: Outcome) -> float | None:
        value: float | None = getattr(attempt, measure)
        return value

    return read
