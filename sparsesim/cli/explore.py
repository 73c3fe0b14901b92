"""``sparsesim explore``: a local web page that answers while a slider is dragged."""

from __future__ import annotations

import os
import sys
from typing import Annotated
from urllib.parse import urlencode

import typer

from sparsesim.cli import options as opt
from sparsesim.cli.output import JsonTarget, say
from sparsesim.errors import Problem, UserError

__all__ = ["register"]

EXAMPLE = "Example: sparsesim explore --gpu h100_pcie --measured timings.csv"

FirstGpu = Annotated[
    str | None,
    typer.Option(
        "--gpu", metavar="GPU", help="GPU to begin with: packaged (see `sparsesim gpus`), or a hardware file."
    ),
]
Port = Annotated[int, opt.integer("--port", "Port; 0 takes a free one.")]
Host = Annotated[
    str, typer.Option("--host", metavar="HOST", help="Address to listen on; any but loopback lets others in.")
]
Measured = Annotated[
    list[str] | None, typer.Option("--measured", metavar="FILE", help="CSV of measured timings to draw in; repeatable.")
]


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command("explore", epilog=EXAMPLE)(explore)


def explore(
    gpu: FirstGpu = None,
    measured: Measured = None,
    port: Port = 8765,
    host: Host = "127.0.0.1",
    json: opt.Json = None,
) -> None:
    """Serve a page on this machine: a GPU's parameters as sliders, and what they do to one GEMM or workload."""
    target = JsonTarget.parse(json)
    if not 0 <= port <= 65535:
        raise UserError(Problem.line("--port", "", "a port from 0 to 65535", port))
    try:
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError:
        raise UserError(
            "explore: expected Starlette and uvicorn, found none: pip install 'sparsesim[explore]'"
        ) from None
    from sparsesim.explore.answers import Explorer
    from sparsesim.explore.server import LOOPBACK, make_app, open_socket, serve
    from sparsesim.explore.state import load_board, parse_state
    from sparsesim.hardware import gpu_names
    from sparsesim.measured import read_measured

    boards = []
    if gpu is not None and (gpu.endswith(".toml") or os.sep in gpu):
        board = load_board(gpu)
        gpu = board.gpu.name
        boards = [board] if gpu not in gpu_names() else []
    fields = {} if gpu is None else {"gpu": gpu}
    rows = [row for file in measured or () for row in read_measured(file)]
    explorer = Explorer(rows, boards)
    parse_state(fields.items(), explorer.boards)  # a name that is none is answered here
    app = make_app(explorer, LOOPBACK if host in LOOPBACK else (*LOOPBACK, host.lower()))
    listening = open_socket(host, port)
    try:
        shown = f"[{host}]" if ":" in host else host
        address = f"http://{shown}:{listening.getsockname()[1]}/{'?' + urlencode(fields) if fields else ''}"
        if target.write({"address": address, "measured_rows": len(rows)}):
            say(f"sparsesim explore: {address}  (Ctrl-C ends it)", "bold")
        sys.stdout.flush()
        serve(app, listening)
    finally:
        listening.close()
