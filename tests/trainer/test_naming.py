"""What another process can find by a name, and what only this one has."""

from __future__ import annotations

import subprocess
import sys

import crew
import pytest

import leyden
from leyden.runners.hooks import Hook
from leyden.runners.loading import load_agent, load_object
from leyden.runners.tracer import OtelTracer, Tracer
from leyden.trainer.naming import in_runner_process, name_of
from leyden.trainer.runners import Crew


class Settled(Tracer):
    def __init__(self, level):
        self.level = level


def test_what_stands_at_the_top_of_a_module_has_a_name():
    assert name_of("module:agent") == "module:agent"
    assert load_agent(name_of(crew.double)) is crew.double
    assert load_object(name_of(crew.WritingHook)) is crew.WritingHook
    assert name_of(OtelTracer()) == name_of(OtelTracer) == "leyden.runners.tracer:OtelTracer"


def test_what_only_this_process_has_has_none():
    @leyden.rollout
    async def closure(task):
        return 1.0

    for thing in (closure, crew.WritingHook(), Settled(3), lambda task: 1.0, leyden.rollout(lambda task: 1.0)):
        assert name_of(thing) is None


@pytest.mark.parametrize(
    ("options", "inside"),
    [
        ({}, False),
        ({"hooks": (crew.WritingHook,), "tracer": OtelTracer()}, False),
        ({"hooks": ("crew:WritingHook",)}, False),
        ({"hooks": (Hook(),)}, True),
        ({"tracer": Settled(1)}, True),
    ],
)
def test_one_nameless_part_keeps_the_runners_in_this_process(options, inside):
    crew_of = Crew(crew.double, 2, 8, **options)
    assert (crew_of.names is None) is inside
    assert ("thread of this process" in str(crew_of)) is inside


def test_only_a_runners_process_is_one():
    assert not in_runner_process()
    code = "import runpy, sys, leyden.trainer.naming as n; sys.argv = ['x', '--help']\ntry: runpy.run_module('leyden.runners.process')\n"
    code += "except SystemExit: pass\nprint(n.in_runner_process())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "False"
