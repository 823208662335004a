"""What is in ``deploy/`` and docker-compose.yml fits the program: commands, times, names of metrics. There is no Docker here: the commands
that containers run are run as plain processes, from the same environment file."""

from __future__ import annotations

import asyncio
import configparser
import inspect
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from leyden.ports import reserve_port
from leyden.runners.pool import HAND_BACK
from leyden.server import executor
from leyden.server.client import StoreClient
from leyden.server.exposition import expose
from leyden.server.serving import STOP_GRACE
from leyden.server.sqlstore import SQLStore
from leyden.types import NewRollout, RolloutState

ROOT = Path(__file__).parent.parent
DEPLOY = ROOT / "deploy"
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
LASTING = [path for path in UNITS if "Type=exec" in path.read_text()]
DOCKERFILE = (DEPLOY / "Dockerfile").read_text()
START = (DEPLOY / "start.sh").read_text()
GUIDE = (ROOT / "docs" / "operating.md").read_text()

STORE_STOPS_WITHIN = STOP_GRACE + executor.PATIENCE  # seconds: requests in flight, then what waits
RUNNERS_STOP_WITHIN = 60 + HAND_BACK + 5.0  # the grace that start.sh and the unit give


# -- systemd ---------------------------------------------------------------------------------------------------------------


def unit(path: Path) -> configparser.SectionProxy:
    parser = configparser.RawConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(path.read_text())
    return parser["Service"]


@pytest.mark.parametrize("path", LASTING, ids=lambda path: path.name)
def test_a_unit_stops_its_process_later_than_that_stops_itself_and_knows_its_exit_statuses(path: Path) -> None:
    service = unit(path)
    within = RUNNERS_STOP_WITHIN if "runners" in path.name else STORE_STOPS_WITHIN
    assert service["KillSignal"] == "SIGTERM" and service["KillMode"] == "mixed"
    assert float(service["TimeoutStopSec"]) > within
    assert service["SuccessExitStatus"].split() == ["130", "143"] and service["RestartPreventExitStatus"] == "2"


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_a_unit_is_hardened(path: Path) -> None:
    service = unit(path)
    assert service["ProtectSystem"] == "strict" and service["User"] != "root" and service["CapabilityBoundingSet"] == ""
    for key in ("NoNewPrivileges", "ProtectHome", "PrivateTmp", "PrivateDevices", "RestrictSUIDSGID", "RestrictNamespaces"):
        assert service[key] == "yes", key
    assert service["UMask"] == "0077" and service["StateDirectoryMode"] == "0700"


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_a_unit_names_options_that_exist_and_variables_that_the_guide_explains(path: Path) -> None:
    command = unit(path)["ExecStart"]
    verb = import_module(f"leyden.cli.{command.partition('/leyden ')[2].split()[0]}")
    options = {f"--{name.replace('_', '-')}" for name in inspect.signature(verb.run).parameters}
    assert set(re.findall(r"--[a-z-]+", command)) <= options
    for variable in re.findall(r"\$\{(\w+)\}", command):
        assert f"`{variable}`" in GUIDE, f"{path.name}: {variable}"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd")
@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_systemd_reads_a_unit_without_complaint(path: Path, tmp_path: Path) -> None:
    copy = tmp_path / path.name.replace("@", "@default")  # with a program that is there
    copy.write_text(re.sub(r"/opt/leyden/bin/leyden", shutil.which("true") or "/bin/true", path.read_text()))
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", str(copy)], capture_output=True, text=True, check=False)
    ours = [line for line in (done.stdout + done.stderr).splitlines() if copy.name in line]
    assert not ours, ours


# -- containers ------------------------------------------------------------------------------------------------------------


def test_compose_has_a_database_two_stores_runners_and_the_proxy() -> None:
    roles = {name: service["command"][0] for name, service in SERVICES.items() if "command" in service}
    assert roles == {"tokens": "tokens", "store-1": "store", "store-2": "store", "proxy": "proxy", "runners": "runners"}
    assert SERVICES.keys() - roles == {"postgres"}
    for role in set(roles.values()):
        assert re.search(rf"^{role}\)$", START, re.MULTILINE), f"start.sh has no role {role}"


def test_each_image_is_a_target_of_the_dockerfile_that_starts_its_role() -> None:
    targets = dict(re.findall(r"^FROM role AS (\w+)\n.*?^CMD \[\"(\w+)\"\]", DOCKERFILE, re.MULTILINE | re.DOTALL))
    for service in SERVICES.values():
        if "build" in service:
            assert service["build"]["dockerfile"] == "deploy/Dockerfile" and service["build"]["target"] in targets
            assert service["command"][0] in (targets[service["build"]["target"]], "tokens")
    assert targets == {"store": "store", "runner": "runners", "proxy": "proxy"}


def test_what_the_dockerfile_copies_is_there_and_not_ignored() -> None:
    ignore = (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()
    kept = [line[1:] for line in ignore if line.startswith("!")]
    for sources in re.findall(r"^COPY (?!--from)(.+) \S+$", DOCKERFILE, re.MULTILINE):
        for source in sources.split():
            assert (ROOT / source).exists() and source in kept, source


def test_containers_are_stopped_as_patiently_as_units() -> None:
    for name, within in (("store-1", STORE_STOPS_WITHIN), ("store-2", STORE_STOPS_WITHIN), ("runners", RUNNERS_STOP_WITHIN)):
        assert float(SERVICES[name]["stop_grace_period"].removesuffix("s")) > within, name


def test_each_role_sees_its_own_token_alone_and_only_stores_see_the_database() -> None:
    mounts = {
        name: {str(mount).split(":")[0] for mount in service.get("volumes", []) if isinstance(mount, str) and "-token" in mount}
        for name, service in SERVICES.items()
    }
    assert mounts.pop("tokens") == {"admin-token", "runner-token", "proxy-token", "prometheus-token"} <= COMPOSE["volumes"].keys()
    assert {name: found for name, found in mounts.items() if found} == {"proxy": {"proxy-token"}, "runners": {"runner-token"}}
    with_database = {name for name, service in SERVICES.items() if "LEYDEN_DATABASE" in service.get("environment", {})}
    assert with_database == {"tokens", "store-1", "store-2"}


def test_the_environment_file_has_every_variable_that_compose_asks_for() -> None:
    wanted = set(re.findall(r"\$\{(\w+)", (ROOT / "docker-compose.yml").read_text()))
    assert wanted == environment_file().keys()


def compose_client() -> list[str] | None:
    """Either of the two; neither needs an engine to read a file."""
    for client in (["docker", "compose"], ["docker-compose"]):
        if shutil.which(client[0]) and subprocess.run([*client, "version"], capture_output=True, check=False).returncode == 0:
            return client
    return None


def test_docker_compose_reads_the_file_and_refuses_to_start_without_a_password(tmp_path: Path) -> None:
    client = compose_client()
    if client is None:
        pytest.skip("no client of Docker Compose")
    example = (DEPLOY / "leyden.env.example").read_text()
    for text, status in ((example.replace("POSTGRES_PASSWORD=", "POSTGRES_PASSWORD=x"), 0), (example, 1)):
        (tmp_path / "env").write_text(text)
        command = [*client, "--env-file", str(tmp_path / "env"), "config", "--quiet"]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == status and ("set it in deploy/leyden.env" in done.stderr) == bool(status), done.stderr


def environment_file() -> dict[str, str]:
    lines = (DEPLOY / "leyden.env.example").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


# -- what is watched -------------------------------------------------------------------------------------------------------


async def metric_names() -> set[str]:
    """Of everything that a store can say: samples, as queries name them."""
    async with await SQLStore.open(sweep_every=None) as store:
        measured = await store.measure()
        measured.metrics.requests["none", 200] += 1
    families = text_string_to_metric_families(expose(measured, "test").decode())
    return {sample.name for family in families for sample in family.samples} | {"leyden_rejected_items_total"}


def queries() -> Iterator[tuple[str, str]]:
    dashboard = json.loads((DEPLOY / "grafana" / "leyden.json").read_text())
    for panel in dashboard["panels"]:
        yield from ((panel["title"], target["expr"]) for target in panel.get("targets", ()))
    yield from ((variable["name"], variable["definition"]) for variable in dashboard["templating"]["list"] if "definition" in variable)
    rules = yaml.safe_load((DEPLOY / "prometheus" / "leyden.rules.yml").read_text())
    yield from ((rule["alert"], rule["expr"]) for group in rules["groups"] for rule in group["rules"])


def test_every_query_of_the_dashboard_and_the_alerts_names_metrics_that_exist() -> None:
    known = asyncio.run(metric_names())
    asked: set[str] = set()
    for title, query in queries():
        names = set(re.findall(r"\b(?:leyden|process)_\w+", query))
        assert (names or query.startswith("up{")) and names <= known, f"{title}: {names - known}"
        asked |= names
    leyden = {name for name in known if name.startswith("leyden_") and not name.endswith("_created")}
    assert len(leyden) > 25 and len(asked & leyden) > 20


def test_the_guide_explains_every_metric_and_every_alert() -> None:
    for name in asyncio.run(metric_names()):
        base = re.sub(r"_(bucket|sum|count)$", "", name)
        assert f"`{base}" in GUIDE or name.startswith(("process_", "python_")), name
    rules = yaml.safe_load((DEPLOY / "prometheus" / "leyden.rules.yml").read_text())
    for alert in (rule["alert"] for group in rules["groups"] for rule in group["rules"]):
        assert f"### {alert}" in GUIDE, alert


# -- the same commands as plain processes ----------------------------------------------------------------------------------

AGENT = """
import httpx
import leyden

@leyden.rollout
async def ask(task, llm: leyden.LLM) -> float:
    async with httpx.AsyncClient(trust_env=False, timeout=30) as http:
        body = {"model": llm.model, "messages": [{"role": "user", "content": task["question"]}]}
        answer = await http.post(f"{llm.endpoint}/chat/completions", json=body, headers={"authorization": f"Bearer {llm.api_key}"})
    return float(answer.json()["choices"][0]["message"]["content"] == "abc")
"""


@contextmanager
def started(role: str, environment: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    """What the container of that role runs; SIGTERM in the end, which it must take in good order."""
    process = subprocess.Popen(["sh", str(DEPLOY / "start.sh"), role], env=environment, stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.stderr is not None
        said = process.stderr.read()
        assert process.wait(60) == 143, f"{role}: {said}"


def wait_for_line(process: subprocess.Popen[str], beginning: str) -> str:
    assert process.stderr is not None
    said = []
    for line in process.stderr:
        said.append(line)
        if beginning in line:
            return line
    raise AssertionError("".join(said))


def free_port() -> str:
    with reserve_port("127.0.0.1", 0) as sock:
        return str(sock.getsockname()[1])


def test_tokens_store_proxy_and_runners_work_together_from_the_environment_file(tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text(AGENT)
    small_engine = ROOT / "tests" / "faults" / "small_engine.py"
    port = free_port()
    environment = {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "HOME": str(tmp_path),
        "LEYDEN_TOKENS": str(tmp_path / "tokens"),
        "LEYDEN_DATABASE": str(tmp_path / "leyden.db"),
        "LEYDEN_HOST": "0.0.0.0",
        "LEYDEN_PORT": port,
        "LEYDEN_STORE": f"http://127.0.0.1:{port}",
        "LEYDEN_PROXY_PORT": free_port(),
        "LEYDEN_SPOOL": str(tmp_path / "spool"),
        "LEYDEN_SERVED_MODEL": "small",
        **environment_file(),
        "LEYDEN_AGENT": f"{tmp_path / 'agent.py'}:ask",
    }
    assert environment["LEYDEN_RUNNERS"] == "2"
    for _ in range(2):  # a second time it makes none
        subprocess.run(["sh", str(DEPLOY / "start.sh"), "tokens"], env=environment, check=True, capture_output=True)
    tokens = {path.parent.name: path.read_text().strip() for path in (tmp_path / "tokens").glob("*/token")}
    assert tokens.keys() == {"admin", "runner", "proxy", "prometheus"}

    with ExitStack() as stack:
        store = stack.enter_context(started("store", environment))
        wait_for_line(store, "listening on")
        engine = stack.enter_context(subprocess.Popen([sys.executable, str(small_engine)], stdout=subprocess.PIPE, text=True))
        stack.callback(engine.kill)
        assert engine.stdout is not None
        proxy = stack.enter_context(started("proxy", environment | {"LEYDEN_ENGINE_URL": engine.stdout.readline().strip()}))
        runners = stack.enter_context(started("runners", environment))
        wait_for_line(proxy, "proxy: ")
        wait_for_line(runners, "2 runners of")
        asyncio.run(work(environment["LEYDEN_STORE"], tokens))


async def work(url: str, tokens: dict[str, str]) -> None:
    async with StoreClient(url, token=tokens["admin"]) as store:
        queued = await store.enqueue([NewRollout(input={"question": str(n)}) for n in range(4)])
        done = await store.wait_rollouts([rollout.id for rollout in queued], wait=20)
        assert [rollout.state for rollout in done] == [RolloutState.SUCCEEDED] * 4
        rewards = await store.list_rewards([rollout.id for rollout in queued])
        assert [reward.value for reward in rewards] == [1.0] * 4
        generations = await store.list_generations([rollout.id for rollout in queued])
        assert {generation.checkpoint for generation in generations} == {"small"} and len(generations) == 4
    async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=60) as http:
        assert (await http.get("/ready")).status_code == 200
        assert (await http.get("/metrics")).status_code == 401
        told = await http.get("/metrics", headers={"authorization": f"Bearer {tokens['prometheus']}"})
    assert 'leyden_store_attempts_ended_total{state="succeeded"} 4.0' in told.text


@pytest.mark.parametrize("port", ["abc", "65536", "-1", ""])
def test_a_port_that_is_none_is_two_lines_and_status_2(port: str) -> None:
    env = {**os.environ, "LEYDEN_PROXY_PORT": port, "LEYDEN_ENGINE_URL": "http://127.0.0.1:9/v1"}
    ended = subprocess.run([sys.executable, DEPLOY / "proxy.py"], env=env, capture_output=True, text=True, check=False, timeout=60)
    assert ended.returncode == 2
    assert ended.stderr.splitlines() == [
        f"error: LEYDEN_PROXY_PORT is {port!r}, which is no port",
        "hint: a number up to 65535; 0: any free one",
    ]
