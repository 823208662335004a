"""The OpenAI Agents SDK's traces, from agents that say nothing of them: each under its own rollout, and nothing of them on the network."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sdk_stub import SDKStub

from leyden.runners import PoolConfig, RunnerPool
from leyden.server.serving import listening
from leyden.server.sqlstore import SQLStore
from leyden.types import LLM, NewRollout, Rollout, RolloutConfig, RolloutState, Span

pytest.importorskip("agents")

AGENTS = Path(__file__).with_name("sdk_agents.py")
DEEDS = ("tool", "streamed", "responses", "responses streamed", "guardrail", "handoff", "mcp", "own processor", "fail")
Ran = dict[str, tuple[Rollout, list[Span]]]


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Ran, Path, str]]:
    """Two of each, all at once in one runner process; what it said."""
    place = tmp_path_factory.mktemp("sdk")

    async def scenario() -> Ran:
        with SDKStub() as stub:
            async with await SQLStore.open(sweep_every=0.1) as store, listening(store) as where:
                await store.add_resources({"llm": LLM(endpoint=stub.url, model="m")})
                (place / f"allowed-{stub.port}").touch()
                (place / f"allowed-{where.port}").touch()
                new = [{"do": do, "name": f"[{do}-{n}]", "dir": str(place)} for do in DEEDS for n in range(2)]
                config = RolloutConfig(max_attempts=1)
                async with RunnerPool(PoolConfig(f"{AGENTS}:agent", where.url, n=1, concurrency=32, log_dir=place)):
                    items = await store.enqueue([NewRollout(input=task, config=config) for task in new])
                    while len(await store.wait_rollouts([item.id for item in items])) < len(items):
                        pass
                return {item.input["name"]: (await store.get_rollout(item.id), await store.list_spans(item.id)) for item in items}

    found = asyncio.run(asyncio.wait_for(scenario(), 120.0))
    yield found, place, next(place.glob("runner-*.log")).read_text()


def by_operation(spans: list[Span]) -> dict[str, list[Span]]:
    found: dict[str, list[Span]] = {}
    for span in spans:
        found.setdefault(span.operation or span.name, []).append(span)
    return found


@pytest.mark.parametrize("do", [do for do in DEEDS if do != "fail"])
def test_an_attempts_traces_are_one_tree_under_its_rollout_and_of_nobody_else(ran: tuple[Ran, Path, str], do: str) -> None:
    for name in (f"[{do}-0]", f"[{do}-1]"):
        rollout, spans = ran[0][name]
        assert rollout.state is RolloutState.SUCCEEDED, rollout.error
        assert len({span.trace_id for span in spans}) == 1 and len({span.span_id for span in spans}) == len(spans)
        (root,) = [span for span in spans if span.parent_id is None]
        assert root.name == "rollout" and root.attributes["leyden.rollout_id"] == rollout.id
        known = {span.span_id for span in spans}
        assert all(span.parent_id in known for span in spans if span is not root)
        named = by_operation(spans)
        assert {span.agent_name for span in named["invoke_agent"]} == ({name, "specialist"} if do == "handoff" else {name})
        assert not any(str(other) in str(span.attributes) for span in spans for other in ran[0] if other != name)


@pytest.mark.parametrize("do", ["tool", "streamed"])
def test_a_chat_call_has_its_messages_its_model_and_its_tokens(ran: tuple[Ran, Path, str], do: str) -> None:
    _, spans = ran[0][f"[{do}-0]"]
    named = by_operation(spans)
    first, second = named["chat"]
    assert (first.model, first.input_tokens, first.output_tokens) == ("m", 10, 3) and first.name == "chat m"
    assert first.attributes["gen_ai.input.messages"][-1] == {"role": "user", "content": f"[{do}-0]?"}
    assert "tool_calls" in str(first.attributes["gen_ai.output.messages"]) or "function_call" in str(
        first.attributes["gen_ai.output.messages"]
    )
    assert len(second.attributes["gen_ai.input.messages"]) > len(first.attributes["gen_ai.input.messages"])
    (tool,) = named["execute_tool"]
    assert (tool.tool_name, tool.name) == ("look", "execute_tool look")
    assert tool.attributes["gen_ai.tool.call.result"] == f"result for [{do}-0]"
    (said,) = named["leyden.annotation"]  # in the tool's thread
    assert said.attributes == {"tool of": f"[{do}-0]"}


@pytest.mark.parametrize("do", ["responses", "responses streamed"])
def test_a_call_of_the_responses_api_has_what_the_sdk_leaves_out_of_its_own_export(ran: tuple[Ran, Path, str], do: str) -> None:
    first, second = by_operation(ran[0][f"[{do}-1]"][1])["chat"]
    assert (first.model, first.input_tokens, first.cached_tokens, first.reasoning_tokens) == ("stub", 10, 2, 1)
    assert first.attributes["gen_ai.response.id"] == "resp-1"
    assert first.attributes["gen_ai.output.messages"][0]["type"] == "function_call"
    assert second.attributes["gen_ai.output.messages"][0]["content"][0]["text"] == "4"
    assert f"[{do}-1]?" in str(first.attributes["gen_ai.input.messages"])


def test_handoffs_guardrails_and_lists_of_tools_are_spans_too(ran: tuple[Ran, Path, str]) -> None:
    (handoff,) = by_operation(ran[0]["[handoff-0]"][1])["handoff"]
    assert handoff.name == "handoff [handoff-0] to specialist"
    (guardrail,) = by_operation(ran[0]["[guardrail-0]"][1])["guardrail"]
    assert guardrail.name == "guardrail polite" and guardrail.attributes["span_data.triggered"] is False
    listed = by_operation(ran[0]["[mcp-0]"][1])
    assert listed["list_tools"][0].attributes["span_data.result"] == ["add"] and listed["list_tools"][0].name == "list_tools calculator"
    assert listed["execute_tool"][0].tool_name == "add"


def test_an_agents_own_trace_spans_and_processors_are_left_as_they_are(ran: tuple[Ran, Path, str]) -> None:
    _, spans = ran[0]["[own processor-0]"]
    (mine,) = [span for span in spans if span.name == "invoke_workflow my workflow"]
    assert mine.conversation_id == "talk-7" and mine.attributes["openai.agents.metadata"] == {"who": "[own processor-0]"}
    (thinking,) = [span for span in spans if span.name == "thinking"]
    assert thinking.parent_id == mine.span_id and thinking.attributes["span_data.data"]["about"] == "[own processor-0]"
    assert "object object" in thinking.attributes["span_data.data"]["odd"]  # what is no JSON is kept as a text
    assert {path.name for path in ran[1].glob("own-*")} >= {
        "own-custom",
        "own-generation",
        "own-agent",
    }  # it sees all, ours did not push it out


def test_a_failed_call_is_an_error_in_its_trace(ran: tuple[Ran, Path, str]) -> None:
    _, spans = ran[0]["[fail-0]"]
    failed = [span for span in spans if span.status == "error"]
    assert failed and all(span.status_message for span in failed)


def test_nothing_of_them_goes_to_openai_nor_is_there_any_noise_about_a_key(ran: tuple[Ran, Path, str]) -> None:
    _, place, log = ran
    allowed = {f"connected-127.0.0.1-{path.name.split('-')[1]}" for path in place.glob("allowed-*")} | {"connected-127.0.0.1-9"}
    assert {path.name for path in place.glob("connected-*")} <= allowed and not list(place.glob("resolved-*"))
    assert "OPENAI_API_KEY" not in log and "skipping trace export" not in log and "api.openai.com" not in log


ATTEMPT = """
from contextlib import contextmanager
from leyden.runners.tracer import AgentTracer, Recorder, recording
from leyden.types import Mode, Rollout, RolloutConfig, RolloutState
@contextmanager
def attempt():
    item = Rollout(id="r", input=1, mode=Mode.TEST, priority=0, state=RolloutState.RUNNING, config=RolloutConfig(), created_at=0)
    with recording(Recorder()) as recorder, AgentTracer().trace(item):
        yield recorder
"""


def in_a_process_of_its_own(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def test_the_sdk_is_not_imported_for_an_agent_that_does_not_use_it() -> None:
    code = """
import sys
from leyden.runners import openai_agents
openai_agents.watch()
with attempt():
    pass
assert not {"agents", "openai", "mcp"} & set(sys.modules)
"""
    in_a_process_of_its_own(ATTEMPT + code)


def test_a_module_of_the_agents_own_may_have_the_sdks_name(tmp_path: Path) -> None:
    (tmp_path / "agents" / "tracing").mkdir(parents=True)
    (tmp_path / "agents" / "__init__.py").touch()
    (tmp_path / "agents" / "tracing" / "__init__.py").write_text("mine = True\n")
    code = f"""
import sys
sys.path.insert(0, {str(tmp_path)!r})
from leyden.runners import openai_agents
openai_agents.watch()
import agents.tracing
assert agents.tracing.mine and agents.tracing.__spec__.loader.get_filename("agents.tracing")
openai_agents.join()
"""
    in_a_process_of_its_own(code)


def test_a_provider_that_is_at_work_already_stays_and_ours_listens_beside(tmp_path: Path) -> None:
    code = """
import os
os.environ["OPENAI_API_KEY"] = "none"
from agents.tracing import get_trace_provider, set_trace_processors, trace, custom_span
class Own:
    seen = []
    def on_trace_start(self, trace): self.seen.append("trace")
    def on_trace_end(self, trace): pass
    def on_span_start(self, span): pass
    def on_span_end(self, span): self.seen.append(span.span_data.type)
    def shutdown(self): pass
    def force_flush(self): pass
set_trace_processors([Own()])
before = get_trace_provider()
from leyden.runners import openai_agents
openai_agents.watch()
for _ in range(2):
    with attempt() as recorder, trace("w"), custom_span("c"):
        pass
    assert [span.name for span in recorder.spans] == ["c", "invoke_workflow w", "rollout"], recorder.spans
    assert get_trace_provider() is before
assert Own.seen == ["trace", "custom"] * 2
with trace("outside"):
    pass
assert len(recorder.spans) == 3
"""
    in_a_process_of_its_own(ATTEMPT + code)


def test_an_import_that_is_waited_for_is_told_once_and_fails_as_it_would(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from leyden.runners.late import when_imported

    (tmp_path / "waited_for.py").write_text("value = 1\n")
    (tmp_path / "waited_for_in_vain.py").write_text("raise ImportError('broken')\n")
    monkeypatch.syspath_prepend(tmp_path)
    told: list[Any] = []
    before = list(sys.meta_path)
    for name in ("waited_for", "waited_for_in_vain", "waited_for_nowhere"):
        when_imported(name, partial(lambda name, module: told.append((name, module.value)), name))
    import waited_for  # type: ignore[import-not-found]

    for name in ("waited_for_in_vain", "waited_for_nowhere"):
        with pytest.raises(ImportError):
            __import__(name)
    when_imported("waited_for", lambda module: told.append("at once"))
    assert told == [("waited_for", 1), "at once"] and waited_for.__spec__.loader.get_code("waited_for")
    assert sys.meta_path == before
