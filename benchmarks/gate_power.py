"""How often the gate is wrong, and what it can find: simulated comparisons, and the power by enumeration.

    python benchmarks/gate_power.py --json power.json

Two policies that are equally good are compared many times, on tasks of mixed difficulty: a share of them is promoted by chance, which must
not exceed the gate's level. Prints the tables of docs/gate.md; takes some minutes.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from leyden.environments.gate import Gate
from leyden.environments.judging import judge
from leyden.environments.outcomes import Outcome, Outcomes
from leyden.environments.power import mcnemar_power, smallest_difference
from leyden.environments.statistics import wilson

SIZES = (16, 32, 64, 128, 256, 512)  # held-out tasks
LOST = (0.02, 0.05, 0.1, 0.15)  # share of the tasks that are lost by chance from one measurement to the next
RISES = (0.05, 0.1, 0.2)

Difficulty = Callable[[random.Random], float]

# A task's chance to be passed. The last is what a model in training meets: most tasks never or always, some in between.
MIXES: dict[str, Difficulty] = {
    "uniform": lambda rng: rng.random(),
    "hard": lambda rng: rng.betavariate(1, 4),
    "two-sided": lambda rng: rng.betavariate(0.3, 0.3),
}


@dataclass(frozen=True)
class Case:
    """Tasks, and attempts at each of the champion and of the candidate."""

    tasks: int
    champion: int
    candidate: int
    mix: str


CASES = [
    Case(tasks, attempts, attempts, mix) for tasks, attempts in ((128, 1), (128, 4), (32, 8), (12, 4)) for mix in MIXES
] + [Case(128, 1, 4, mix) for mix in MIXES]  # fmt: skip


@dataclass(frozen=True)
class Simulated:
    """``covered``: how often the 95 % interval of the difference held the truth, which is 0."""

    case: Case
    comparisons: int
    promoted: int
    covered: int


def simulate(case: Case, comparisons: int, gate: Gate, seed: int) -> Simulated:
    """Compare two equally good policies so often. The same seed gives the same numbers."""
    rng = random.Random(f"{seed} {case}")
    promoted = covered = 0
    for _ in range(comparisons):
        chances = [MIXES[case.mix](rng) for _ in range(case.tasks)]
        champion = policy("champion", chances, case.champion, rng)
        verdict = judge(champion, policy("candidate", chances, case.candidate, rng), gate)
        numbers = verdict.stage("pass rate").numbers
        promoted += verdict.promote
        covered += float(numbers["low"] or 0) <= 0 <= float(numbers["high"] or 0)
    return Simulated(case, comparisons, promoted, covered)


def policy(name: str, chances: list[float], attempts: int, rng: random.Random) -> Outcomes:
    tasks = {str(place): tuple(Outcome(rng.random() < chance) for _ in range(attempts)) for place, chance in enumerate(chances)}
    return Outcomes(name, tasks, attempts * len(chances))


def print_simulated(found: list[Simulated], gate: Gate) -> None:
    print(f"Promoted although no better, at level {gate.alpha:g}\n")
    print("| tasks | attempts (champion, candidate) | difficulty | promoted (95 % interval) | interval of the difference holds 0 |")
    print("|---|---|---|---|---|")
    for one in found:
        share, interval = one.promoted / one.comparisons, wilson(one.promoted, one.comparisons)
        attempts = f"{one.case.champion}, {one.case.candidate}"
        rate = f"{share:.3f} ({interval.low:.3f}–{interval.high:.3f})"
        print(f"| {one.case.tasks} | {attempts} | {one.case.mix} | {rate} | {one.covered / one.comparisons:.3f} |")


def print_power(gate: Gate) -> list[dict[str, object]]:
    print(f"\nPower with one attempt a task, at level {gate.alpha:g}\n")
    print("| tasks | lost by chance | " + " | ".join(f"finds {rise:+.2f}" for rise in RISES) + " | found 80 % of the time |")
    print("|---|---|" + "---|" * (len(RISES) + 1))
    rows = []
    for n in SIZES:
        for lost in LOST:
            powers = [mcnemar_power(n, lost + rise, lost, gate.alpha) for rise in RISES]
            smallest = smallest_difference(n, lost, gate.alpha)
            rows.append({"tasks": n, "lost": lost, "power": dict(zip(map(str, RISES), powers, strict=True)), "smallest": smallest})
            cells = " | ".join(f"{power:.2f}" for power in powers)
            print(f"| {n} | {lost:.0%} | {cells} | {f'{smallest:+.2f}' if smallest else 'none'} |".replace("%", " %"))
    return rows


def main(args: argparse.Namespace) -> int:
    gate = Gate(alpha=args.alpha)
    with ProcessPoolExecutor() as pool:
        found = list(pool.map(partial(simulate, comparisons=args.comparisons, gate=gate, seed=args.seed), CASES))
    print_simulated(found, gate)
    power = print_power(gate)
    worst = max(one.promoted / one.comparisons for one in found)
    print(f"\nworst: {worst:.4f} promoted although no better; allowed: {gate.alpha + 0.01:g}")
    if args.json:
        values = {"alpha": gate.alpha, "seed": args.seed, "simulated": [asdict(one) for one in found], "power": power}
        args.json.write_text(json.dumps(values, indent=2) + "\n")
    return int(worst > gate.alpha + 0.01)


if __name__ == "__main__":
    options = argparse.ArgumentParser(description="False promotions and power of the gate.")
    options.add_argument("--comparisons", type=int, default=2000, metavar="N", help="simulated, in each case")
    options.add_argument("--alpha", type=float, default=0.05)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--json", type=Path, metavar="FILE", help="also write all numbers there")
    sys.exit(main(options.parse_args()))
