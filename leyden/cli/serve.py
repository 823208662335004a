"""``leyden serve MODEL_DIR``: the embedded engine in the foreground."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def run(
    model_dir: Annotated[Path, typer.Argument(help="A model directory, for instance runs/latest/models/version_1.")],
    port: Annotated[int, typer.Option(help="0: any free one.")] = 8000,
    host: Annotated[str, typer.Option(help="This machine only: there is no authentication.")] = "127.0.0.1",
    name: Annotated[str | None, typer.Option(help="The name that requests use; default: the directory's.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda or mps; default: the best there is.")] = None,
    max_len: Annotated[int | None, typer.Option(help="Tokens in prompt and answer together; default: the model's own.")] = None,
) -> None:
    """Serve a model over OpenAI's chat completions API until Ctrl+C."""
    from leyden.models.importer import check_checkpoint
    from leyden.process import check_port_free

    check_checkpoint(model_dir)  # and the port: both before the seconds that torch takes to import
    if port:
        check_port_free(host, port)
    from leyden.models.embedded import server

    server.serve(model_dir, host, port, model_name=name, device=device, max_model_len=max_len)
