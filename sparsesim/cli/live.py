"""``sparsesim validate --live``: measure, compare, and write the accuracy page of this machine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sparsesim.cli import measure
from sparsesim.cli.output import progress, write_file
from sparsesim.errors import UserError

if TYPE_CHECKING:
    from sparsesim.validate import Validation

__all__ = ["validate_live"]

#: what is measured where no shapes are given: from launch-bound to power-bound
SQUARES = "512,1024,2048,4096,8192"
DTYPES = "f16,bf16"


def validate_live(
    shapes: Sequence[str], min_us: float, out: str, timing: str, l2: str, gpu: str | None = None
) -> tuple[Validation, Path]:
    """Measure `shapes` (a workload or measured rows; default squares), compare, write the page; returns both."""
    from sparsesim.api import validate_files
    from sparsesim.live import accuracy_page, doubtful_rows, read_provenance
    from sparsesim.measure.session import Settings
    from sparsesim.protocol import Protocol

    if len(shapes) > 1:
        raise UserError(f"FILES: expected one file of shapes with --live, found {len(shapes)}")
    settings = Settings(Protocol.parse(timing, l2))
    wanted = (
        measure.Wanted(shapes[0], out=out, gpu=gpu)
        if shapes
        else measure.Wanted(m=SQUARES, dtypes=DTYPES, out=out, gpu=gpu)
    )
    session = measure.run(wanted, settings)
    if not session.complete:
        raise UserError(measure.unfinished(session))
    with progress("predicting") as report:
        result = validate_files([session.path], min_us, report, gpu)
    page = session.path.with_suffix(".md")
    text = accuracy_page(result, read_provenance(session.provenance), doubtful_rows(session.path), min_us)
    write_file(page, text)
    return result, page
