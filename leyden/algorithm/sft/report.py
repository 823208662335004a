"""What a person sees while a run goes on: a live board on a terminal, else a plain line a step and one every 30 seconds.

All of it goes to stderr; the table at the end goes to stdout.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

PLAIN_EVERY = 30.0  # seconds between two lines about one step
PACE_FROM = 0.1  # of the whole that is done


class StepView:
    """One step's progress as far as it is known."""

    def __init__(self, title: str, total: int | None) -> None:
        self.title = title
        self.total = total
        self.done = 0
        self.note = ""
        self.started = time.monotonic()
        self._left: float | None = None

    def update(self, done: int | None = None, note: str | None = None, total: int | None = None, left: float | None = None) -> None:
        """``left``: seconds to go, where whoever does the step knows better than its pace tells."""
        self._left = left
        self.total = self.total if total is None else total
        self.done = self.done if done is None else done
        self.note = self.note if note is None else note

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.started

    @property
    def left(self) -> float | None:
        """Seconds to go, as told or at the pace so far; None before there is a pace: the first ones all take the longest."""
        if self._left is not None or not self.total or self.done < self.total * PACE_FROM:
            return self._left
        return self.seconds / self.done * max(0, self.total - self.done)

    def line(self) -> str:
        parts = [f"{self.done}/{self.total}" if self.total else "", self.note, f"{clock(self.seconds)} gone"]
        if self.left is not None:
            parts.append(f"about {clock(self.left)} left")
        return f"{self.title}: " + ", ".join(part for part in parts if part)


class Board:
    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(stderr=True, highlight=False)
        self._progress: Progress | None = None

    def say(self, text: str) -> None:
        self.console.print(text, markup=False, soft_wrap=True)

    @contextmanager
    def step(self, title: str, total: int | None = None) -> Iterator[StepView]:
        """Show one step until the block ends; its last ``note`` stays as the step's result."""
        view = StepView(title, total)
        show = self._show_live if self.console.is_terminal else self._show_plain
        with show(view):
            yield view
        self.say(f"✓ {view.title}: {view.note + ', ' if view.note else ''}{clock(view.seconds)}")

    @contextmanager
    def beside(self, title: str) -> Iterator[None]:
        """A step that others are shown beside: it has no bar."""
        view = StepView(title, None)
        if not self.console.is_terminal:
            self.say(f"… {title}")
        yield
        self.say(f"✓ {title}: {clock(view.seconds)}")

    @contextmanager
    def _show_live(self, view: StepView) -> Iterator[None]:
        columns = (
            TextColumn("{task.description}"), BarColumn(bar_width=24), TextColumn("{task.fields[note]}", markup=False),
            TimeElapsedColumn(), TextColumn("{task.fields[left]}"),
        )  # fmt: skip
        progress = _ViewProgress(view, *columns, console=self.console, transient=True, refresh_per_second=4)
        with progress:
            yield

    @contextmanager
    def _show_plain(self, view: StepView) -> Iterator[None]:
        self.say(f"… {view.title}")
        over = threading.Event()

        def repeat() -> None:
            while not over.wait(PLAIN_EVERY):
                self.say("  " + view.line())

        thread = threading.Thread(target=repeat, name="board", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()


class _ViewProgress(Progress):
    """A progress bar that reads its view each time it is drawn, so that updates cost nothing."""

    def __init__(self, view: StepView, *columns: object, **options: object) -> None:
        self._view = view
        self._task: TaskID | None = None
        super().__init__(*columns, **options)  # type: ignore[arg-type]
        self._task = self.add_task(view.title, total=view.total, note="", left="")

    def get_renderables(self):  # type: ignore[no-untyped-def]
        if self._task is not None:
            view = self._view
            left = f"{clock(view.left)} left" if view.left is not None else ""
            count = f"{view.done}/{view.total} " if view.total else ""
            self.update(self._task, total=view.total, completed=view.done, note=count + view.note, left=left)
        yield from super().get_renderables()


def clock(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def stdout_console() -> Console:
    """For what another program may read: plain where it is no terminal, and never wrapped there."""
    return Console(file=sys.stdout, highlight=False, width=None if sys.stdout.isatty() else 160)
