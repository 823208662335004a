"""``import leyden.agentlightning as agl``: the names that Agent-lightning's recipes use, for our parts.

docs/migrating-from-agent-lightning.md goes through them one by one. A name that is not offered raises ``NotOffered``, which names our way.
"""

from __future__ import annotations

from typing import Any

from leyden.agentlightning.adapter import (
    Adapter,
    LlmProxyTraceToTriplet,
    TraceAdapter,
    TracerTraceToTriplet,
    TraceToMessages,
    TraceToTriplet,
)
from leyden.agentlightning.agent import LitAgent, llm_rollout, prompt_rollout, rollout
from leyden.agentlightning.algorithm import Algorithm, algo
from leyden.agentlightning.emit import emit_annotation, emit_exception, emit_message, emit_object, emit_reward, operation
from leyden.agentlightning.hosting import InMemoryLightningStore, LightningStoreServer
from leyden.agentlightning.offered import NotOffered
from leyden.agentlightning.proxy import LLMProxy
from leyden.agentlightning.records import (
    Attempt,
    AttemptedRollout,
    AttemptStatus,
    Dataset,
    EnqueueRolloutRequest,
    NamedResources,
    ResourcesUpdate,
    Rollout,
    RolloutConfig,
    RolloutMode,
    RolloutStatus,
    Triplet,
)
from leyden.agentlightning.runner import LitAgentRunner
from leyden.agentlightning.spans import (
    Span,
    TraceStatus,
    find_final_reward,
    find_reward_spans,
    get_message_value,
    get_object_value,
    get_reward_value,
    get_rewards_from_span,
    is_reward_span,
)
from leyden.agentlightning.store import LightningStore, LightningStoreClient
from leyden.agentlightning.trainer import Trainer
from leyden.algorithm.algorithm import FastAlgorithm
from leyden.algorithm.baseline import Baseline
from leyden.runners.hooks import Hook
from leyden.runners.tracer import OtelTracer, Tracer
from leyden.types import LLM, PromptTemplate, Resource

AgentOpsTracer = OtelTracer  # ours underneath: no service outside is asked
DummyTracer = Tracer
ProxyLLM = LLM  # an endpoint of ours is the attempt's own already
Runner = LitAgentRunner
TraceToTripletBase = TraceToTriplet

__all__ = [
    "LLM", "Adapter", "AgentOpsTracer", "Algorithm", "Attempt", "AttemptStatus", "AttemptedRollout", "Baseline", "Dataset", "DummyTracer",
    "EnqueueRolloutRequest", "FastAlgorithm", "Hook", "InMemoryLightningStore", "LLMProxy", "LightningStore", "LightningStoreClient",
    "LightningStoreServer", "LitAgent", "LitAgentRunner", "LlmProxyTraceToTriplet", "NamedResources", "NotOffered", "OtelTracer",
    "PromptTemplate", "ProxyLLM", "Resource", "ResourcesUpdate", "Rollout", "RolloutConfig", "RolloutMode", "RolloutStatus", "Runner",
    "Span", "TraceAdapter", "TraceStatus", "TraceToMessages", "TraceToTripletBase", "Tracer", "TracerTraceToTriplet", "Trainer",
    "Triplet", "algo", "emit_annotation",
    "emit_exception", "emit_message", "emit_object", "emit_reward", "find_final_reward", "find_reward_spans", "get_message_value",
    "get_object_value", "get_reward_value", "get_rewards_from_span", "is_reward_span", "llm_rollout", "operation",
    "prompt_rollout", "rollout",
]  # fmt: skip

_SPANS = "make spans with OpenTelemetry's API inside the agent, under OtelTracer"
_STORE_READ = "the store answers with lists: query_rollouts(status_in=..., rollout_id_in=...)"
NOT_OFFERED = {
    "VERL": "leyden.SFT is the algorithm there is; write your own as a subclass of Algorithm",
    "APO": "write it as a subclass of Algorithm: prompts are resources (PromptTemplate), rewards are in query_spans(...)",
    "MongoLightningStore": "leyden store --database FILE keeps everything in SQLite",
    "LightningStoreThreaded": "every store here works in any thread",
    "CollectionBasedLightningStore": "leyden store --database FILE",
    "WeaveTracer": "OtelTracer joins the process's own OpenTelemetry provider, beside other exporters",
    "get_active_tracer": _SPANS,
    "set_active_tracer": _SPANS,
    "reward": "return the reward, or call emit_reward(...)",
    "make_tag_attributes": "emit_annotation({...})",
    "make_link_attributes": "emit_annotation({...})",
    "query_linked_spans": "query_spans(...), and your own filter",
    "OtelTraceAdapter": "TraceAdapter: spans come out of the store, not out of OpenTelemetry",
    "ExecutionStrategy": "an agent that can be imported runs in processes, another one in a thread",
    "ClientServerExecutionStrategy": "the default: runners are processes",
    "SharedMemoryExecutionStrategy": "an agent that only this process has runs in a thread of it",
    "with_store": "self.get_store() in the algorithm",
    "with_llm_proxy": "self.get_llm_proxy() in the algorithm",
    "PaginatedResult": _STORE_READ,
    "FilterOptions": _STORE_READ,
    "SortOptions": _STORE_READ,
    "Worker": "await leyden.StoreClient(url).list_workers()",
    "WorkerStatus": "await leyden.StoreClient(url).list_workers()",
    "SpanCoreFields": "Span",
    "AgentLightningClient": "LightningStoreClient",
    "AgentLightningServer": "leyden store, or LightningStoreServer",
    "DevTaskLoader": "Trainer(...).dev(agent, tasks)",
    "lightning_cli": "argparse, as in examples/math/options.py",
    "configure_logger": "logging.basicConfig(...)",
    "setup_logging": "logging.basicConfig(...)",
}


def __getattr__(name: str) -> Any:
    if name in NOT_OFFERED:
        raise NotOffered(f"leyden.agentlightning does not offer {name}", NOT_OFFERED[name])
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
