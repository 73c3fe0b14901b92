"""A report as one HTML file that needs nothing else, and as Markdown.

The page's script and style are part of it; a content security policy allows that script (by its hash) and no request.
Text from inputs is escaped by the template engine (HTML) or by `cell` (Markdown).
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from sparsesim.report.bars import cause_bars, speedup_bars
from sparsesim.report.document import Report
from sparsesim.wording import amount, percent, show_time

__all__ = ["MOST_ROWS", "cell", "html", "markdown"]

TEMPLATES = Path(__file__).resolve().parent / "templates"
#: rows of a table on the page; the JSON form has all
MOST_ROWS = 1000
#: share [ln] below which a cause is not worth a line; the JSON form has it
LEAST_SHARE = 5e-5


def html(report: Report) -> str:
    """The page; equal reports give equal bytes."""
    script = _text("report.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return _render("report.html.j2", report, style=_text("report.css"), script=script, script_hash=digest)


def markdown(report: Report) -> str:
    """The same as Markdown, in GitHub's dialect of tables."""
    text = _render("report.md.j2", report)
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


def cell(value: object) -> str:
    """Text as a cell of a Markdown table: nothing in it is markup."""
    flat = " ".join(str(value).split())
    escaped = re.sub(r"([\\`*_{}\[\]|~])", r"\\\1", flat)
    return escaped.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def fence(command: str) -> str:
    """A command inside a Markdown code span, with as many backticks as it needs."""
    longest = max((len(run) for run in re.findall(r"`+", command)), default=0)
    ticks = "`" * (longest + 1)
    pad = " " if command.startswith("`") or command.endswith("`") else ""
    return f"{ticks}{pad}{' '.join(command.splitlines())}{pad}{ticks}"


def _render(name: str, report: Report, **more: Any) -> str:
    bars, unit = speedup_bars(report.answer)
    losses = report.losses
    return _environment(name.endswith(".html.j2")).get_template(name).render(
        report=report,
        bars=bars,
        unit=unit,
        steps=[
            (step, bar)
            for step, bar in zip(
                report.causes, cause_bars(report.causes, losses["promised"], losses["delivered"]), strict=True
            )
            if abs(step.share_ln) >= LEAST_SHARE
        ],
        layers=report.layers[:MOST_ROWS],
        hidden_layers=len(report.layers) - MOST_ROWS,
        states=_distinct([layer.state for layer in report.layers]),
        reasons=_distinct([layer.reason for layer in report.layers]),
        precision=_precision(report.counters["precision"]),
        **more,
    )  # fmt: skip


def _distinct(words: Sequence[str]) -> list[str]:
    return sorted(set(words))


def _precision(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Ops of one policy as one row, those that did not run as asked first."""
    groups: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in rows:
        key = tuple(row[name] for name in ("asked", "ran", "accumulator", "output", "output_bytes", "note"))
        entry = groups.setdefault(key, {**row, "names": [], "ops": 0})
        entry["names"].append(row["name"])
        entry["ops"] += 1
    return sorted(groups.values(), key=lambda entry: (entry["kept"], not entry["note"]))


@cache
def _environment(escape: bool) -> Environment:
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=escape,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {
        "us": show_time, "pct": percent, "bytes": lambda value: amount(value, "B"),
        "flop": lambda value: amount(value, "FLOP"), "cell": cell, "fence": fence,
    }  # fmt: skip
    return environment


def _text(name: str) -> str:
    return (TEMPLATES / name).read_text(encoding="utf-8")
