"""The typer application and its commands in the order that ``--help`` shows them."""

from __future__ import annotations

from typing import Annotated

import typer

from sparsesim._version import __version__
from sparsesim.cli import (
    audit,
    calibrate,
    catalogue,
    check,
    diagnose,
    explain,
    explore,
    frontier,
    gate,
    gemm,
    imports,
    measure,
    microbench,
    optimise,
    quality,
    query,
    replay,
    report,
    serve,
    simulate,
    sweep,
    timeline,
    validate,
    whatif,
)

__all__ = ["app"]

app = typer.Typer(
    name="sparsesim",
    help="Simulator of GPUs with sparse tensor cores: time, path, and where the speedup went.",
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"sparsesim {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Print the help where no command is given."""
    if context.invoked_subcommand is None:
        print(context.get_help())


MODULES = (
    gemm, simulate, explain, report, explore, whatif, timeline, sweep, query, optimise, serve, quality, frontier, gate,
    diagnose, imports, audit, validate, measure, microbench, calibrate, check, replay, catalogue,
)  # fmt: skip
for module in MODULES:
    module.register(app)
