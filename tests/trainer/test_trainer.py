"""What a trainer brings it ends again, however the run goes; what it was handed it leaves alone."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
from contextlib import contextmanager, suppress
from pathlib import Path

import crew
import httpx
import psutil
import pytest

import leyden
from leyden.algorithm.algorithm import Algorithm
from leyden.algorithm.baseline import Baseline
from leyden.algorithm.sft.history import read_history
from leyden.algorithm.sft.rundir import RunDir
from leyden.errors import Unavailable, UsageError
from leyden.process import MARKER, find_by_marker, new_marker
from leyden.proxy import LLMProxy
from leyden.server.client import StoreClient
from leyden.trainer import Trainer, store_child
from leyden.types import FailureKind, PromptTemplate, RolloutState

HERE = Path(__file__).parent
TASKS = [{"n": n} for n in range(4)]


@pytest.fixture
def own(tmp_path):
    """Options of a trainer that brings everything itself."""
    return {"n_runners": 1, "concurrency": 4, "runs": tmp_path / "runs"}


def history(runs):
    """How the latest run stands."""
    return str(read_history(RunDir.find(runs, "@latest")))


@contextmanager
def store_process(directory):
    ready = directory / "ready.json"
    command = [sys.executable, "-m", "leyden", "store", "--port", "0", "--database", str(directory / "s.db"), "--ready-file", str(ready)]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        while not ready.exists():
            assert process.poll() is None
        yield json.loads(ready.read_text())["url"], process
    finally:
        process.terminate()
        process.wait(60)


def test_it_brings_store_proxy_and_runners_and_ends_them(own, nothing_left, talk):
    seen = {}

    class Looks(crew.Rewards):
        async def run(self, train_dataset=None, val_dataset=None):
            context = self.context
            rewards = await super().run(train_dataset)
            seen["processes"] = {" ".join(process.cmdline()) for process in find_by_marker(nothing_left)}
            async with httpx.AsyncClient(trust_env=False, timeout=60) as client:
                seen["health"] = (await client.get(f"{context.store_url}/health")).status_code
            seen["proxy"] = self.get_llm_proxy().base_url
            seen["latest"] = (await self.get_store().get_resources()).resources
            return rewards

    template = PromptTemplate(template="{n}")
    trainer = Trainer(algorithm=Looks(), initial_resources={"prompt_template": template}, **own)
    assert trainer.fit(crew.double, TASKS, board=talk) == [0.0, 2.0, 4.0, 6.0]
    assert any("leyden store" in command for command in seen["processes"])
    assert any("leyden.runners.process" in command for command in seen["processes"])
    assert seen["health"] == 200
    assert seen["proxy"].startswith("http://127.0.0.1:")
    assert seen["latest"] == {"prompt_template": template}
    assert "resume" not in talk.said
    assert history(own["runs"]) == "finished"
    with pytest.raises(UsageError, match="has no store"):
        trainer.algorithm.get_store()


def test_an_algorithm_that_needs_no_runner_need_not_wait_for_them(own, nothing_left, talk):
    class Quick(Algorithm):
        async def run(self, train_dataset=None, val_dataset=None):
            return "done"

    assert Trainer(algorithm=Quick(), **own).fit(crew.double, TASKS, board=talk) == "done"
    assert "… start 1 runners" in talk.said and "✓ start 1 runners" not in talk.said
    assert history(own["runs"]) == "finished"


def test_runners_that_cannot_start_end_an_algorithm_that_waits_for_them(own, nothing_left, talk):
    with pytest.raises(UsageError, match="Nothing"):
        Trainer(algorithm=crew.Rewards(), hooks=["crew:Nothing"], **own).fit(crew.double, TASKS, board=talk)
    assert history(own["runs"]).startswith("failed: ")


def test_a_failing_algorithm_ends_everything_too(own, nothing_left, talk):
    with pytest.raises(Unavailable, match="had enough"):
        Trainer(algorithm=crew.Fails(), **own).fit(crew.double, TASKS, board=talk)
    assert history(own["runs"]) == "failed: the algorithm has had enough"
    assert "resume" not in talk.said


def script(directory, algorithm, *, guarded=True, runners=1):
    body = f"""\
        from pathlib import Path
        import sys
        sys.path.insert(0, {str(HERE)!r})
        import crew, leyden
        from leyden.cli import reported
        def main():
            trainer = leyden.Trainer(algorithm=crew.{algorithm}(), n_runners={runners}, runs=Path("runs"))
            print(trainer.fit(agent, [{{"n": 1}}]))
        @leyden.rollout
        async def agent(task):
            return task["n"]
        """
    end = 'if __name__ == "__main__":\n    sys.exit(reported(main))\n' if guarded else "main()\n"
    path = directory / "training.py"
    path.write_text(textwrap.dedent(body) + end)
    return subprocess.Popen([sys.executable, str(path)], cwd=directory, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize(("sig", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_ctrl_c_ends_everything_in_good_order(tmp_path, nothing_left, sig, status):
    process = script(tmp_path, "Waits")
    assert process.stdout is not None
    assert process.stdout.readline() == "waiting\n"
    assert len(find_by_marker(nothing_left)) >= 3  # the script, the store, a runner
    process.send_signal(sig)
    _, talk = process.communicate(timeout=60)
    assert process.returncode == status, talk
    assert "stopping: ending" in talk
    assert "Traceback" not in talk
    assert history(tmp_path / "runs") == "cancelled: interrupted"


def test_a_second_ctrl_c_ends_everything_at_once(tmp_path, nothing_left):
    process = script(tmp_path, "Waits")
    assert process.stdout is not None
    assert process.stdout.readline() == "waiting\n"
    for child in find_by_marker(nothing_left):
        if "leyden store" in " ".join(child.cmdline()):
            child.suspend()  # it cannot end in good order
    process.send_signal(signal.SIGINT)
    assert process.stderr is not None
    while not process.stderr.readline().startswith("stopping: ending"):
        pass
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130


def test_an_agent_of_the_script_itself_runs_in_processes(tmp_path, nothing_left):
    process = script(tmp_path, "Rewards", runners=2)
    out, talk = process.communicate(timeout=120)
    assert out == "[1.0]\n", talk
    assert "this process only" not in talk


def test_a_script_that_starts_at_its_import_is_told_how_to_be_written(tmp_path, nothing_left):
    process = script(tmp_path, "Rewards", guarded=False)
    out, talk = process.communicate(timeout=120)
    assert process.returncode != 0, out
    assert "a runner's process imported the script that trains" in talk


def test_a_store_that_was_handed_over_lives_on(own, tmp_path, nothing_left):
    with store_process(tmp_path) as (url, process):
        for store in (url, StoreClient(url)):
            assert Trainer(algorithm=crew.Rewards(), store=store, **own).fit(crew.double, TASKS) == [0.0, 2.0, 4.0, 6.0]
        assert process.poll() is None
        assert httpx.get(f"{url}/health", trust_env=False, timeout=60).status_code == 200
        assert not list((tmp_path / "runs").glob("*/store.db"))


def test_a_proxy_that_runs_already_lives_on_and_its_store_is_the_trainers(own, tmp_path, nothing_left):
    class Names(crew.Rewards):
        async def run(self, train_dataset=None, val_dataset=None):
            return self.context.store_url, self.get_llm_proxy().base_url

    with store_process(tmp_path) as (url, _):
        proxy = LLMProxy(StoreClient(url))
        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=loop.run_forever, daemon=True)
        thread.start()
        asyncio.run_coroutine_threadsafe(proxy.start(), loop).result()
        base_url = proxy.base_url
        assert Trainer(algorithm=Names(), llm_proxy=proxy, **own).fit(None) == (url, base_url)
        assert httpx.get(f"{base_url}/models", trust_env=False, timeout=60).status_code == 401  # it answers: who are you?
        asyncio.run_coroutine_threadsafe(proxy.stop(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()


def test_a_proxy_without_a_store_gets_the_trainers_and_is_ended(own, nothing_left):
    proxy = LLMProxy()
    Trainer(algorithm=crew.Rewards(), llm_proxy=proxy, **own).fit(None, [])
    assert proxy.base_url == ""
    assert proxy.store is None


def test_an_algorithm_without_async_gets_a_thread(own, nothing_left):
    class Plain(crew.Algorithm):
        def run(self, train_dataset=None, val_dataset=None):
            async def ask():
                async with StoreClient(self.context.store_url) as store:
                    return [rollout.state for rollout in await store.enqueue([leyden.NewRollout(input=task) for task in train_dataset])]

            return asyncio.run(ask())

    assert Trainer(algorithm=Plain(), **own).fit(None, TASKS) == [RolloutState.QUEUED] * 4


def test_runners_end_after_their_share_and_the_algorithm_goes_on(own, tmp_path, nothing_left):
    class Counts(crew.Rewards):
        async def run(self, train_dataset=None, val_dataset=None):
            store = self.get_store()
            ids = [rollout.id for rollout in await store.enqueue([leyden.NewRollout(input=task) for task in train_dataset])]
            while not (workers := await store.list_workers()) or any(worker.stopped_at is None for worker in workers):
                await asyncio.sleep(0.05)
            return [rollout.state for rollout in await store.list_rollouts(ids=ids)]

    states = Trainer(algorithm=Counts(), max_rollouts=3, **own).fit(crew.double, TASKS)
    assert sorted(states) == [RolloutState.QUEUED] + [RolloutState.SUCCEEDED] * 3


# -- the store's death ------------------------------------------------------------------------------------------------------------


def own_store(marker):
    return next(process for process in find_by_marker(marker) if "leyden store" in " ".join(process.cmdline()))


class Survives(crew.Rewards):
    """Kills the store so often, and after each death sees that what was acknowledged is there."""

    def __init__(self, marker, deaths):
        self.marker, self.deaths = marker, deaths

    async def run(self, train_dataset=None, val_dataset=None):
        store = self.get_store()
        for death in range(self.deaths):
            (queued,) = await store.enqueue([leyden.NewRollout(input={"n": death})])
            killed = own_store(self.marker)
            killed.send_signal(signal.SIGKILL)
            with suppress(psutil.NoSuchProcess):
                while killed.is_running() and killed.status() != "zombie":  # its death is the trainer's to collect
                    await asyncio.sleep(0.01)
            assert (await store.get_rollout(queued.id)).input == {"n": death}
        return await super().run(train_dataset)


def test_a_store_that_dies_is_started_again_with_all_it_held(own, nothing_left, talk):
    rewards = Trainer(algorithm=Survives(nothing_left, 1), **own).fit(crew.double, TASKS, board=talk)
    assert rewards == [0.0, 2.0, 4.0, 6.0]
    assert talk.said.count("the store died (signal 9): starting it again on port") == 1


def test_a_store_that_keeps_dying_ends_the_run_with_one_line_and_nobody_waits_for_it(own, nothing_left, talk, monkeypatch):
    monkeypatch.setattr(store_child, "MAX_RESTARTS", 1)
    asked = []

    class AsksOnceMore(Survives):
        async def run(self, train_dataset=None, val_dataset=None):
            try:
                return await super().run(train_dataset)
            finally:
                try:
                    async with asyncio.timeout(60):
                        await self.get_store().list_workers()
                except (Unavailable, TimeoutError) as error:
                    asked.append(error)

    with pytest.raises(Unavailable, match="the store died 2 times"):
        Trainer(algorithm=AsksOnceMore(nothing_left, 2), **own).fit(None, TASKS, board=talk)
    assert talk.said.count("starting it again") == 1
    assert [type(error) for error in asked] == [Unavailable]


def test_a_store_that_dies_again_while_it_starts_has_died_once_more(own, nothing_left, talk, monkeypatch):
    monkeypatch.setattr(store_child, "MAX_RESTARTS", 1)
    wait_ready, starts = store_child.wait_ready, []

    async def second_one_dies(child, *waiting):
        starts.append(child)
        if len(starts) == 2:
            os.kill(child.pid, signal.SIGKILL)
        await wait_ready(child, *waiting)

    monkeypatch.setattr(store_child, "wait_ready", second_one_dies)
    with pytest.raises(Unavailable, match="the store died 2 times, at last with signal 9"):
        Trainer(algorithm=Survives(nothing_left, 1), **own).fit(None, TASKS, board=talk)


# -- going on ---------------------------------------------------------------------------------------------------------------------


def test_a_resumable_run_says_how_it_goes_on_and_the_same_call_does(own, nothing_left, talk, tmp_path):
    trainer = Trainer(algorithm=crew.Resumable(), command=["python", "train.py", "--new", "--train", "8"], **own)
    with pytest.raises(Unavailable, match="the light went out"):
        trainer.fit(None, [], board=talk)
    (run,) = (path for path in (tmp_path / "runs").iterdir() if not path.is_symlink())
    assert f"resume: python train.py --train 8 --resume {run.name}\n" in talk.said
    assert trainer.fit(None, [], board=talk) == []
    assert f"run {run.name} goes on" in talk.said
    assert len(list((tmp_path / "runs").iterdir())) == 2  # the run and `latest`


def test_other_tasks_or_new_are_another_run_and_an_unfinished_one_is_named(own, nothing_left, talk):
    for options, tasks in (({}, TASKS), ({"new": True}, TASKS), ({}, TASKS[:2])):
        with pytest.raises(Unavailable, match="the light went out"):
            Trainer(algorithm=crew.Resumable(), **options, **own).fit(None, tasks, board=talk)
    _, second, third = RunDir.in_directory(own["runs"])
    assert third.id == RunDir.find(own["runs"], "@latest").id
    (line,) = (line for line in talk.said.splitlines() if "unfinished" in line)
    assert line.startswith(f"run {second.id} is unfinished, but was started with other settings (tasks was ")


def test_resume_by_name_from_python(own, nothing_left, talk, tmp_path):
    with pytest.raises(Unavailable):
        Trainer(algorithm=crew.Resumable(), **own).fit(None, [], board=talk)
    run = (tmp_path / "runs" / "latest").resolve().name
    assert f'resume: Trainer(..., resume="{run}")' in talk.said
    assert Trainer(algorithm=crew.Resumable(), resume=run, **own).fit(None, []) == []
    with pytest.raises(UsageError, match="--resume excludes --new and --fork"):
        Trainer(algorithm=crew.Resumable(), resume=run, new=True, **own).fit(None, [])
    with pytest.raises(UsageError, match="a run of Rewards cannot go on"):
        Trainer(algorithm=crew.Rewards(), resume=run, **own).fit(None, [])


# -- a quick look -----------------------------------------------------------------------------------------------------------------


def test_dev_says_what_the_agent_earns_and_trains_nothing(own, nothing_left, talk):
    @leyden.rollout
    async def sometimes(task):
        if task["n"] == 3:
            raise ValueError("no three")
        return task["n"]

    report = Trainer(algorithm=Baseline(), **own).dev(sometimes, TASKS, board=talk)
    assert [end.reward for end in report.ended] == [0.0, 1.0, 2.0, None]
    assert report.ended[3].rollout.failure is FailureKind.AGENT
    assert report.mean_reward == 1.0
    assert "reward 2  {'n': 2}" in talk.said
    assert "agent  {'n': 3}" in talk.said


def test_an_algorithm_is_needed_to_fit(own):
    with pytest.raises(UsageError, match="no algorithm"):
        Trainer(algorithm=None, **own).fit(crew.double, TASKS)
    assert not own["runs"].exists()


def test_a_port_that_is_taken_is_refused_before_anything_starts(own):
    import socket

    with socket.create_server(("127.0.0.1", 0)) as sock:
        taken = sock.getsockname()[1]
        for options in ({"port": taken}, {"llm_proxy": LLMProxy(port=taken)}):
            with pytest.raises(UsageError, match=f"port {taken} is taken"):
                Trainer(algorithm=crew.Rewards(), **options, **own).fit(crew.double, TASKS)
    assert not own["runs"].exists()


def test_the_marker_of_a_run_is_its_own(own, nothing_left):
    """A second run at the same time, under the same marker, is not ended by the first one's end."""
    before = os.environ[MARKER]
    other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], env=os.environ | {MARKER: new_marker()})
    try:
        Trainer(algorithm=crew.Rewards(), **own).fit(None, [])
        assert other.poll() is None
        assert os.environ[MARKER] == before
    finally:
        other.kill()
        other.wait()


# -- where the runners are --------------------------------------------------------------------------------------------------------


def test_a_closure_and_an_instance_of_a_hook_run_in_a_thread_of_this_process(own, nothing_left, talk, tmp_path):
    here = []

    @leyden.rollout
    async def closure(task):
        here.append(os.getpid())
        return 1.0

    tasks = [{"directory": str(tmp_path)}]
    assert Trainer(algorithm=crew.Rewards(), hooks=[crew.WritingHook()], **own).fit(closure, tasks, board=talk) == [1.0]
    assert here == [os.getpid()]
    assert [path.suffix for path in tmp_path.glob(f"*.{os.getpid()}")] == [f".{os.getpid()}"]
    assert "the runners are a thread of it" in talk.said


def test_a_hook_that_has_a_name_runs_where_the_agent_does(own, nothing_left, tmp_path):
    tasks = [{"directory": str(tmp_path)}]
    (pid,) = Trainer(algorithm=crew.Rewards(), hooks=[crew.WritingHook], **own).fit(crew.pid_of, tasks)
    assert pid != os.getpid()
    assert len(list(tmp_path.glob(f"*.{pid:.0f}"))) == 1


def test_an_agent_in_a_thread_that_cannot_be_stopped_does_not_keep_the_trainer(own, nothing_left):
    over = threading.Event()

    class Leaves(crew.Algorithm):
        async def run(self, train_dataset=None, val_dataset=None):
            await self.get_store().enqueue([leyden.NewRollout(input=1)])
            while not over.is_set():
                await asyncio.sleep(0.05)
            return "left"

    @leyden.rollout
    def stubborn(task):
        over.set()
        threading.Event().wait(60)

    assert Trainer(algorithm=Leaves(), **own).fit(stubborn, []) == "left"
