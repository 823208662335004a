"""The model list: changed under way, attempts pinned to what they were claimed with."""

from __future__ import annotations

import asyncio
import sys

import pytest
from proxy_room import Engine, Room, Sample, entry, in_room, running_engine

from leyden.errors import MissingExtra, UsageError
from leyden.proxy import LLMProxy
from leyden.proxy.deployments import Deployment, Dialect
from leyden.types import LLM


async def replace(this: Room, engine: Engine) -> None:
    engine.samples = [Sample(pieces=["new", "", ""])]
    this.proxy.update_model_list([entry(engine, "version_1")])


async def content(this: Room, *args: object, **body: object) -> str:
    return (await this.ask(*args, **body)).json()["choices"][0]["message"]["content"]  # type: ignore[arg-type]


@pytest.mark.parametrize("info", [{"vocab_size": "49152"}, {"vocab_size": 0}, {"vocab_size": True}, {"exact": "no"}])
def test_facts_of_a_model_that_are_none_are_refused_by_name(info: dict[str, object]) -> None:
    """Else every call of it would fail, or be put together exactly where nobody asked for that."""
    params = {"model": "hosted_vllm/m", "api_base": "http://127.0.0.1:9/v1"}
    with pytest.raises(UsageError, match=next(iter(info))):
        Deployment.from_entry({"model_name": "policy", "litellm_params": params, "model_info": info})


def test_an_attempt_stays_on_its_checkpoint_when_the_model_list_changes_and_a_new_one_gets_the_new() -> None:
    async def test(this: Room) -> None:
        async with running_engine() as second:
            assert await content(this) == "42"
            await replace(this, second)
            new = await this.claim(llm=this.proxy.as_resource())
            assert (await content(this), await content(this, new)) == ("42", "new")
            assert {row.checkpoint for row in await this.rows()} == {"version_0"}
            assert {row.checkpoint for row in await this.rows(new)} == {"version_1"}

    in_room(test)


def test_a_call_in_flight_finishes_on_the_old_deployment_and_drain_waits_for_it() -> None:
    async def test(this: Room) -> None:
        async with running_engine() as second:
            old = this.proxy.as_resource().deployment
            assert old is not None
            this.engine.fault = "hang"
            asking = asyncio.create_task(this.ask())
            await this.engine.entered.wait()
            await replace(this, second)
            assert not await this.proxy.drain(old, timeout=0.01)
            draining = asyncio.create_task(this.proxy.drain(old, timeout=30))
            refused = await this.ask()
            assert (refused.status_code, refused.json()["error"]["code"]) == (409, "checkpoint_gone")
            assert refused.headers["x-should-retry"] == "false" and "version_0" in refused.json()["error"]["message"]
            assert not draining.done()
            this.engine.resume.set()
            assert await draining and (await asking).status_code == 200
            ok, gone = sorted(await this.rows(), key=lambda row: row.status, reverse=True)
            assert (ok.status, ok.checkpoint, gone.status) == ("ok", "version_0", "error")

    in_room(test)


def test_drain_waits_for_the_record_too() -> None:
    async def test(this: Room) -> None:
        deployment = this.proxy.as_resource().deployment
        assert deployment is not None
        this.store.open.clear()
        asking = asyncio.create_task(this.ask())
        await this.store.writing.wait()
        assert not await this.proxy.drain(deployment, timeout=0.01)
        this.store.open.set()
        assert await this.proxy.drain(deployment, timeout=30) and await this.rows()
        await asking
        assert await content(this) == "42", "a listed deployment goes on after a drain"

    in_room(test)


def test_an_engine_restarted_elsewhere_under_its_deployment_id_is_found() -> None:
    async def test(this: Room) -> None:
        async with running_engine() as second:
            this.proxy.update_model_list([entry(this.engine, id="dep-a")])
            lease = await this.claim(llm=this.proxy.as_resource())
            this.proxy.update_model_list([entry(second, id="dep-a")])
            assert await content(this, lease) == "42"
            assert second.bodies and not this.engine.bodies
            with pytest.raises(UsageError, match="already means version_0"):
                this.proxy.update_model_list([entry(second, "version_1", id="dep-a")])

    in_room(test)


def test_an_unknown_model_is_a_404_that_lists_the_models() -> None:
    async def test(this: Room) -> None:
        both = await this.claim(a=this.proxy.as_resource(), b=LLM(endpoint="http://x/v1", model="other", proxied=True))
        reply = await this.ask(both, model="gpt-9")
        assert reply.status_code == 404
        error = reply.json()["error"]
        assert (error["code"], error["param"]) == ("model_not_found", "model")
        assert "gpt-9" in error["message"] and "policy" in error["message"]
        [row] = await this.rows(both)
        assert row.status == "error" and row.model == "gpt-9" and row.deployment is None

    in_room(test)


def test_a_name_nobody_knows_is_answered_by_the_attempts_only_model_and_a_listed_one_by_itself() -> None:
    async def test(this: Room) -> None:
        async with running_engine() as judge:
            judge.samples = [Sample(pieces=["good", "", ""])]
            this.proxy.update_model_list([entry(this.engine), entry(judge, name="judge", checkpoint="judge_0")])
            assert await content(this, model="whatever-the-agent-hard-coded") == "42"
            assert await content(this, model="judge") == "good"

    in_room(test)


def test_models_are_listed_for_a_key() -> None:
    async def test(this: Room) -> None:
        url = f"{this.proxy.base_url}/models"
        listed = await this.client.get(url, headers={"authorization": f"Bearer {this.lease.key}"})
        assert [model["id"] for model in listed.json()["data"]] == ["policy"]
        assert (await this.client.get(url)).status_code == 401

    in_room(test)


def test_a_model_is_shown_under_the_names_that_a_call_may_use() -> None:
    async def test(this: Room) -> None:
        headers = {"authorization": f"Bearer {this.lease.key}"}
        for name in ("policy", "org/whatever-the-agent-hard-coded"):
            shown = await this.client.get(f"{this.proxy.base_url}/models/{name}", headers=headers)
            assert shown.status_code == 200 and shown.json()["id"] == name
            assert (await content(this, model=name)) == "42"
        both = await this.claim(a=this.proxy.as_resource(), b=LLM(endpoint="http://x/v1", model="other", proxied=True))
        missing = await this.client.get(f"{this.proxy.base_url}/models/gpt-9", headers={"authorization": f"Bearer {both.key}"})
        assert (missing.status_code, missing.json()["error"]["code"]) == (404, "model_not_found")
        assert (await this.client.get(f"{this.proxy.base_url}/models/policy")).status_code == 401

    in_room(test)


def test_a_resource_names_endpoint_deployment_and_checkpoint() -> None:
    async def test(this: Room) -> None:
        llm = this.proxy.as_resource("policy", {"temperature": 1.0})
        assert llm.proxied and llm.endpoint == this.proxy.base_url and llm.api_key is None
        assert (llm.model, llm.checkpoint, llm.sampling_parameters) == ("policy", "version_0", {"temperature": 1.0})
        assert llm == this.proxy.as_resource(sampling_parameters={"temperature": 1.0})
        with pytest.raises(UsageError, match="no model 'other'") as caught:
            this.proxy.as_resource("other")
        assert caught.value.hint and "policy" in caught.value.hint

    in_room(test)


@pytest.mark.parametrize(
    ("params", "dialect", "model", "base"),
    [
        ({"model": "hosted_vllm/org/x", "api_base": "http://h:1/v1/"}, Dialect.VLLM, "org/x", "http://h:1/v1"),
        ({"model": "openai/x", "api_base": "http://h:1/v1"}, Dialect.VLLM, "x", "http://h:1/v1"),
        ({"model": "openai/gpt-x", "api_key": "k"}, Dialect.OPENAI, "gpt-x", "https://api.openai.com/v1"),
        ({"model": "smol", "api_base": "http://h:1/v1"}, Dialect.VLLM, "smol", "http://h:1/v1"),
        ({"model": "/runs/a/version_1", "api_base": "http://h:1/v1"}, Dialect.VLLM, "/runs/a/version_1", "http://h:1/v1"),
    ],
)
def test_entries_are_read_as_litellm_reads_them(params: dict[str, str], dialect: Dialect, model: str, base: str) -> None:
    deployment = Deployment.from_entry({"model_name": "policy", "litellm_params": params})
    assert (deployment.dialect, deployment.upstream_model, deployment.api_base) == (dialect, model, base)
    assert deployment.id == Deployment.from_entry({"model_name": "policy", "litellm_params": {**params, "api_key": "other"}}).id
    assert "api_key" not in repr(deployment)


def test_a_key_may_be_named_by_its_environment_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    params = {"model": "hosted_vllm/x", "api_base": "http://h:1/v1", "api_key": "os.environ/PROXY_TEST_KEY"}
    with pytest.raises(UsageError, match="PROXY_TEST_KEY"):
        Deployment.from_entry({"model_name": "policy", "litellm_params": params})
    monkeypatch.setenv("PROXY_TEST_KEY", "secret")
    assert Deployment.from_entry({"model_name": "policy", "litellm_params": params}).api_key == "secret"


GOOD = {"model_name": "good", "litellm_params": {"model": "hosted_vllm/x", "api_base": "http://h:1/v1"}}


@pytest.mark.parametrize(
    "bad",
    [
        {"model_name": "x"},
        {"model_name": "", "litellm_params": {"model": "hosted_vllm/x", "api_base": "http://h:1/v1"}},
        {"model_name": "x", "litellm_params": {"model": "hosted_vllm/x"}},
        {"model_name": "x", "litellm_params": {"model": "hosted_vllm/x", "api_base": "h:1"}},
        {"model_name": "x", "litellm_params": {"model": "hosted_vllm/x", "api_base": "http://me:secret@h:1/v1"}},
        {"model_name": "x", "litellm_params": {"model": "hosted_vllm/x", "api_base": "http://h:1/v1", "rpm": 3}},
        {"model_name": "x", "litellm_params": {"model": "hosted_vllm/x", "api_base": "http://h:1/v1"}, "model_info": {"id": "../x"}},
        {"model_name": "x", "litellm_params": {"model": "hosted_vllm/x", "api_base": "http://h:1/v1"}, "modelinfo": {}},
        GOOD,
    ],
)
def test_a_bad_entry_is_named_and_changes_nothing(bad: dict[str, object]) -> None:
    proxy = LLMProxy()
    proxy.update_model_list([GOOD])
    before = proxy._table.current
    with pytest.raises(UsageError) as caught:
        proxy.update_model_list([GOOD, bad])
    assert caught.value.hint and "secret" not in caught.value.message
    assert proxy._table.current == before


def test_another_provider_without_litellm_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "litellm", None)  # as if it were not installed
    with pytest.raises(MissingExtra) as caught:
        LLMProxy().update_model_list([{"model_name": "claude", "litellm_params": {"model": "anthropic/claude-x"}}])
    assert caught.value.hint == "pip install 'leyden[litellm]'"
