"""What a person sees while a run goes on, on stderr: the grid on a terminal, a plain line every 30 seconds elsewhere."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from leyden.environments.grid import cut, open_row, widest

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from leyden.environments.tally import Tally

PLAIN_EVERY = 30.0  # seconds


class Live:
    """``say`` prints a line above whatever is shown."""

    def __init__(self, tally: Tally, console: Console | None) -> None:
        self._tally = tally
        self._console = console
        self._began = time.monotonic()

    def say(self, text: str) -> None:
        if self._console is not None:
            self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def line(self) -> str:
        tally = self._tally
        rate = f", {tally.n_passed}/{tally.n_scored} passed" if tally.n_scored else ""
        unscored = f", {tally.n_ended - tally.n_scored} unscored" if tally.n_ended > tally.n_scored else ""
        return f"{tally.plan.env.name}: {tally.n_ended}/{tally.n_planned} attempts{rate}{unscored}, {time.monotonic() - self._began:.0f} s"

    def __rich__(self) -> Text:
        from rich.text import Text

        tally, plan = self._tally, self._tally.plan
        height = (self._console.height if self._console else 24) - 4
        width = widest(task.id for task in plan.tasks)
        rows = (open_row(task.id or "", width, plan.k, tally.attempts_of(task.id or "")) for task in plan.tasks)
        return Text("\n".join([self.line(), *cut(rows, max(3, height))]), no_wrap=True, overflow="ellipsis")


@contextmanager
def shown(tally: Tally, quiet: bool) -> Iterator[Live]:
    """Show the tally until the block ends. ``quiet``: nothing at all."""
    if quiet:
        yield Live(tally, None)
        return
    from rich.console import Console

    console = Console(stderr=True)
    view = Live(tally, console)
    if console.is_terminal:
        from rich.live import Live as RichLive

        with RichLive(view, console=console, transient=True, refresh_per_second=4):
            yield view
        return
    over = threading.Event()

    def repeat() -> None:
        while not over.wait(PLAIN_EVERY):
            print(view.line(), file=sys.stderr, flush=True)

    thread = threading.Thread(target=repeat, name="eval-board", daemon=True)
    thread.start()
    try:
        yield view
    finally:
        over.set()
        thread.join()
