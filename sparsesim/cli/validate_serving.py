"""``sparsesim validate`` for files of serving throughputs: errors by GPU, type and phase."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparsesim.cli.output import JsonTarget, add_row, percent, progress, say, show_table, table

if TYPE_CHECKING:
    from sparsesim.serving.endtoend import EndToEnd

__all__ = ["run"]

NUMBERS = ("cells", "male", "p90", "bias", "rank corr.", "sign acc.", "within")


def run(files: list[str], target: JsonTarget) -> None:
    """Predict every cell of `files`; print the groups, or write JSON."""
    from sparsesim.serving.api import validate_serving

    with progress("serving") as report:
        result = validate_serving(files, report)
    if target.write(result.to_dict()):
        show(result)


def show(result: EndToEnd) -> None:
    """Print the groups, and what was skipped."""
    from sparsesim.serving.endtoend import ASKED, TARGETS

    title = "Served models, predicted against measured; male = mean |ln(predicted / measured)|"
    grid = table("gpu", "dtype", "phase", "kind", *NUMBERS, right=NUMBERS)
    for group in result.groups:
        sign = group.get("sign_accuracy")
        add_row(
            grid,
            *(group[name] for name in ("gpu", "dtype", "phase", "kind")),
            str(group["rows"]),
            *(f"{group[name]:.3f}" for name in ("male", "p90")),
            f"{group['bias']:+.3f}",
            f"{group['rank_correlation']:.3f}",
            "" if sign is None else f"{sign:.3f}",
            percent(group["within"]),
        )
    show_table(title, grid)
    for group in result.groups:
        if group["gpu"] == "all":
            what = "dense throughput" if group["kind"] == "throughput" else "model speedup"
            verdict = "met" if group["within"] >= ASKED else "missed"
            say(
                f"target     {what} within {percent(TARGETS[group['kind']], 0)} in {percent(ASKED, 0)} of the cells: "
                f"{percent(group['within'])}, {verdict}"
            )
    say(f"\n{len(result.predictions)} cells predicted, {len(result.skipped)} skipped")
    for item in result.skipped:
        say(f"  {item['row']}: {item['why']}")
