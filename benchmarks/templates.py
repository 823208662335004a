"""Chat templates of several families, the same agent in front of each: how often does the next prompt go on with what was sampled?

    python benchmarks/templates.py --json templates.json

In plain mode the engine renders the whole history anew at each turn, in exact mode the proxy puts the next prompt together from the ids
that were sampled. The agent keeps its history, and leaves out the thinking, as clients do. Then the calls become training rows, merged
where each prompt goes on with the last, and counted.

The sampler cuts a token in two now and then (``--odd``), as one that draws token by token does, and writes arguments with and without
spaces. ``--tokenizer``: a directory with a byte-level one; without it, SmolLM2's, imported.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import httpx
import uvicorn
from template_engine import FAMILIES, Family, ScriptedEngine

from leyden.algorithm.rows import RowsConfig, build_rows
from leyden.algorithm.triplets import GenerationsToTriplets
from leyden.audit import Continuity
from leyden.ports import reserve_port
from leyden.proxy import LLMProxy
from leyden.server.sqlstore import SQLStore
from leyden.types import Generation, NewRollout, Reward

TOOL = {
    "type": "function",
    "function": {
        "name": "calculate",
        "description": "Evaluates an expression.",
        "parameters": {"type": "object", "properties": {"expression": {"type": "string"}}, "required": ["expression"]},
    },
}
SYSTEM = "You are a careful assistant with a calculator. Use it, then answer with the number."
OPENINGS = (
    "Let me work this out carefully before I answer.", "I need the exact value here, so I use the calculator.",
    "The numbers are large enough to go wrong by hand.", "First the sum, then the remainder of the question.",
)  # fmt: skip


@dataclass(frozen=True)
class Measured:
    """One family in one mode. Shares are of the turns after each conversation's first."""

    family: str
    mode: str
    turns: int
    clean: float
    realigned: float
    forked: float
    findings: int
    tokens_separate: int  # a row a call
    tokens_merged: int
    fewer: float  # times


def script(family: Family, conversation: int, turns: int) -> list[str]:
    """What the model says: a call, then the answer, and so on; where there are no tools, answers only."""
    dice = random.Random(conversation)
    said = []
    for turn in range(turns):
        left, right = dice.randint(100, 99_999), dice.randint(100, 99_999)
        thought = f"<think>\n{dice.choice(OPENINGS)} {left} and {right}.\n</think>\n\n" if family.thinks else ""
        if family.with_tools and turn % 2 == 0:
            arguments = json.dumps({"expression": f"{left} + {right}"}, separators=dice.choice(((", ", ": "), (",", ":"))))
            said.append(thought + family.write.format(name="calculate", arguments=arguments))
        else:
            said.append(f"{thought}{dice.choice(OPENINGS)} {left} + {right} = {left + right}.\n\n### {left + right}")
    return said


async def converse(
    client: httpx.AsyncClient, url: str, key: str, family: Family, conversation: int, turns: int, stream: bool = False
) -> None:
    """An agent that keeps what it was told, as an OpenAI client's message has it."""
    messages: list[dict[str, Any]] = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": "What is 4711 + 815?"}]
    tools = {"tools": [TOOL]} if family.with_tools else {}
    for turn in range(turns):
        body = {"model": "policy", "messages": messages, "seed": conversation * turns + turn, **tools}
        response = await client.post(f"{url}/chat/completions", json=body, headers={"authorization": f"Bearer {key}"})
        response.raise_for_status()
        message = response.json()["choices"][0]["message"]
        calls = message.get("tool_calls") or []
        messages.append({"role": "assistant", "content": message["content"], **({"tool_calls": calls} if calls else {})})
        messages += [{"role": "tool", "tool_call_id": call["id"], "content": str(1000 + turn)} for call in calls]
        if not calls:
            messages.append({"role": "user", "content": f"And what is {turn} + 4711?"})


@asynccontextmanager
async def serving(app: Any) -> AsyncIterator[str]:
    socket = reserve_port("127.0.0.1", 0)
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, lifespan="off", timeout_graceful_shutdown=1))
    running = asyncio.create_task(server.serve(sockets=[socket]))
    try:
        yield f"http://127.0.0.1:{socket.getsockname()[1]}/v1"
    finally:
        server.should_exit = True
        await running


async def measure(family: Family, tokenizer: Any, mode: str, conversations: int, turns: int, odd: float) -> Measured:
    said = [text for n in range(conversations) for text in script(family, n, turns)]
    engine = ScriptedEngine(family, tokenizer, said.__getitem__, odd)
    proxy_info = {"id": mode, "exact": mode == "exact"}
    async with serving(engine.app) as api_base, httpx.AsyncClient(timeout=60, trust_env=False) as client:
        store = await SQLStore.open()
        proxy = LLMProxy(store)
        params = {"model": "hosted_vllm/policy", "api_base": api_base}
        proxy.update_model_list([{"model_name": "policy", "litellm_params": params, "model_info": proxy_info}])
        await proxy.start()
        try:
            resources = await store.add_resources({"llm": proxy.as_resource("policy")})
            await store.enqueue([NewRollout(input=n, resources_id=resources.id) for n in range(conversations)])
            leases = await store.claim("agents", conversations, lease_seconds=600)
            work = [converse(client, proxy.base_url, lease.key, family, n, turns) for n, lease in enumerate(leases)]
            await asyncio.gather(*work)
            calls = await store.list_generations([lease.ref.rollout_id for lease in leases])
        finally:
            await proxy.stop()
            await store.close()
    return summed_up(family, mode, calls, engine.end)


def summed_up(family: Family, mode: str, calls: list[Generation], end: int) -> Measured:
    audits = [call.audit for call in calls if call.audit is not None]
    assert len(audits) == len(calls), "a call without its audit"
    later = [audit.continuity for audit in audits if audit.continuity is not Continuity.NEW]
    share = {kind: later.count(kind) / max(1, len(later)) for kind in Continuity}
    rewards = [Reward(value=1.0, rollout_id=rollout, attempt=1) for rollout in {call.rollout_id for call in calls}]
    triplets = GenerationsToTriplets().adapt(calls, rewards)
    built = build_rows(triplets, {}, {end}, RowsConfig(max_tokens=1_000_000))
    separate = sum(len(triplet.prompt_ids) + len(triplet.response_ids) for triplet in triplets)
    return Measured(
        family=family.name,
        mode=mode,
        turns=len(later),
        clean=round(share[Continuity.CLEAN], 4),
        realigned=round(share[Continuity.REALIGNED], 4),
        forked=round(share[Continuity.FORKED], 4),
        findings=sum(bool(audit.findings) for audit in audits),
        tokens_separate=separate,
        tokens_merged=built.report.tokens,
        fewer=round(separate / built.report.tokens, 2),
    )


def load_tokenizer(directory: Path | None) -> Any:
    from transformers import AutoTokenizer

    if directory is None:
        from leyden.models.importer import default_directory, import_model

        directory = default_directory("smollm2", Path("models"))
        if not directory.exists():
            import_model("smollm2", directory)
    return AutoTokenizer.from_pretrained(directory, local_files_only=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokenizer", type=Path, metavar="DIR")
    parser.add_argument("--conversations", type=int, default=16)
    parser.add_argument("--turns", type=int, default=8)
    parser.add_argument("--odd", type=float, default=0.01, help="share of tokens that are sampled in two pieces")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    measured = []
    print(f"{'family':10}{'mode':8}{'clean':>8}{'realigned':>11}{'forked':>8}{'separate':>11}{'merged':>9}{'fewer':>8}")
    for family in FAMILIES:
        for mode in ("plain", "exact"):
            tokenizer = load_tokenizer(options.tokenizer)
            row = asyncio.run(measure(family, tokenizer, mode, options.conversations, options.turns, options.odd))
            measured.append(row)
            shares = f"{row.clean:8.1%}{row.realigned:11.1%}{row.forked:8.1%}"
            print(f"{row.family:10}{row.mode:8}{shares}{row.tokens_separate:11,}{row.tokens_merged:9,}{row.fewer:7.1f}x", flush=True)
    if options.json:
        settings = {name: getattr(options, name) for name in ("conversations", "turns", "odd")}
        options.json.write_text(json.dumps({"settings": settings, "measured": [asdict(row) for row in measured]}, indent=2) + "\n")
    exact = [row for row in measured if row.mode == "exact"]
    return 0 if all(row.clean == 1.0 and row.fewer >= 3 for row in exact) else 1


if __name__ == "__main__":
    sys.exit(main())
