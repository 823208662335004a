"""``leyden serve MODEL_DIR``: an engine in the foreground."""

from __future__ import annotations

import asyncio
import shlex
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

if TYPE_CHECKING:
    from leyden.models.engine import Engine


def run(
    model_dir: Annotated[Path, typer.Argument(help="A model directory, for instance runs/latest/models/version_1.")],
    port: Annotated[int, typer.Option(help="0: any free one.")] = 8000,
    host: Annotated[str, typer.Option(help="This machine only: there is no authentication.")] = "127.0.0.1",
    name: Annotated[str | None, typer.Option(help="The name that requests use; default: the directory's.")] = None,
    max_len: Annotated[int | None, typer.Option(help="Tokens in prompt and answer together; default: the engine's choice.")] = None,
    engine: Annotated[str, typer.Option(help="auto, embedded or vllm. auto: vLLM where there is a GPU and a vLLM.")] = "auto",
    device: Annotated[str | None, typer.Option(help="Embedded engine: cpu, cuda or mps; default: the best there is.")] = None,
    python: Annotated[str | None, typer.Option(help="vLLM: the interpreter of an environment that has it.")] = None,
    command: Annotated[str | None, typer.Option(help='vLLM: how to start it instead, such as "vllm serve".')] = None,
    options: Annotated[str, typer.Option(help="vLLM: more of its own options, in one text.")] = "",
) -> None:
    """Serve a model over OpenAI's chat completions API until Ctrl+C."""
    from pydantic import ValidationError

    from leyden.errors import UsageError
    from leyden.models.engine_config import EngineConfig
    from leyden.models.importer import check_checkpoint
    from leyden.ports import check_port_free

    check_checkpoint(model_dir)  # and the port: both before the seconds that an engine takes to start
    if port:
        check_port_free(host, port)
    vllm_only = any([python, command, options])
    if device and vllm_only:
        raise UsageError("--device is for the embedded engine, --python, --command and --options are for vLLM", "leave one of them out")
    try:
        config = EngineConfig.model_validate({
            "kind": "embedded" if device else "vllm" if vllm_only and engine == "auto" else engine,
            "python": python, "command": tuple(shlex.split(command)) if command else None, "port": port, "max_model_len": max_len,
            "extra_args": tuple(shlex.split(options)),
        })  # fmt: skip
    except ValidationError as error:
        first = error.errors()[0]
        raise UsageError(f"{'.'.join(map(str, first['loc'])) or 'engine'}: {first['msg']}", "see leyden serve --help") from None

    from leyden.models.engines import choose, make_engine

    choice = choose(config)
    if choice.kind == "embedded":
        from leyden.models.embedded import server

        return server.serve(model_dir, host, port, model_name=name, device=device, max_model_len=max_len)
    if host not in ("127.0.0.1", "localhost"):
        raise UsageError(f"refusing to listen on {host}: the engine has no authentication", "put a proxy with tokens in front of it")

    from leyden.models.version import Manifest, Version
    from leyden.process import new_marker

    print(choice, file=sys.stderr, flush=True)
    version = Version(model_dir, Manifest(version=name or model_dir.resolve().name, files={}, created_at=0))
    raise typer.Exit(asyncio.run(_foreground(make_engine(config, version, version, log_path=None, marker=new_marker()))))


async def _foreground(engine: Engine) -> int:
    """Serve until a signal, and return the exit status it asks for. Raises ``Unavailable`` if the engine dies."""

    async def serve() -> NoReturn:
        await engine.start()
        print(f"serving {engine.model_name} at {engine.base_url}", file=sys.stderr, flush=True)
        raise await engine.wait_death()

    received: list[int] = []
    serving = asyncio.ensure_future(serve())

    def on_signal(signum: int) -> None:
        received.append(signum)
        serving.cancel()

    for signum in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(signum, on_signal, signum)
    try:
        await asyncio.wait({serving})
        if received:
            return 128 + received[0]
        await serving
    finally:
        await engine.stop()
