"""The release decision as one page, HTML or Markdown, and the files that go with it."""

from __future__ import annotations

import json
import math
import re
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

from sparsesim._version import __version__
from sparsesim.diagnose.diagnosis import Diagnosis, OpPair, validation
from sparsesim.diagnose.mechanism import meaning_of
from sparsesim.diagnose.run import EFFECTS, Run
from sparsesim.diagnose.runlines import not_written, run_lines
from sparsesim.errors import Problem, UserError
from sparsesim.workload import Workload
from sparsesim.workload.write import workload_lines, write_lines

__all__ = ["noted", "page", "write_folder"]

#: mechanisms that a page shows, and the least share [ln]
SHOWN, LEAST = 6, 0.002


def page(diagnosis: Diagnosis, kind: str, folder: str = "") -> str:
    """The page as ``html`` or ``md``; `folder` is where `write_folder` put the files that its commands name."""
    from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape

    environment = Environment(
        loader=PackageLoader("sparsesim.diagnose"),
        autoescape=select_autoescape(enabled_extensions=("html.j2",), default=False),
        undefined=StrictUndefined,
        keep_trailing_newline=True,
    )
    environment.filters["md"] = _md
    return environment.get_template(f"decision.{kind}.j2").render(context(diagnosis, folder))


def noted(diagnosis: Diagnosis) -> Diagnosis:
    """`diagnosis` with a note on each run that its files cannot reproduce: rules or heuristics that no file has."""
    runs: dict[str, Run] = {}
    if diagnosis.slice is not None:
        runs = {"slice.toml, base": diagnosis.slice.base, "slice.toml, candidate": diagnosis.slice.candidate}
    runs |= {f"fix-{number}.toml": fix.run for number, fix in enumerate(diagnosis.fixes, 1)}
    lost = {where: not_written(run) for where, run in runs.items()}
    notes = [f"{where} does not give the run again; lost: {'; '.join(what)}" for where, what in lost.items() if what]
    return replace(diagnosis, notes=(*diagnosis.notes, *notes))


def write_folder(diagnosis: Diagnosis, folder: Path) -> dict[str, str]:
    """Write page, JSON, slice and fixes into `folder`, each in one step; returns what → path.

    Raises
    ------
    UserError
        The folder or a file cannot be written.
    """
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise UserError(Problem.line("--out", "", "a folder that can be made", f"{folder}: {error.strerror}")) from None
    files: dict[str, str] = {}

    def write(what: str, name: str, lines: list[str]) -> None:
        write_lines(folder / name, lines)
        files[what] = str(folder / name)

    if diagnosis.slice is not None:
        cut = diagnosis.slice
        head = [
            f"# the smallest workload that still shows it: {cut.criterion}",
            f"# {shlex.join(_slice_command(folder))}",
        ]
        pair = [*run_lines(cut.base, "base", folder), "", *run_lines(cut.candidate, "candidate", folder)]
        write("slice", "slice.toml", [*head, "", *pair])
    for number, fix in enumerate(diagnosis.fixes, 1):
        head = [f"# {' '.join(fix.title.split())}", ""]
        pair = [*run_lines(diagnosis.base, "base", folder), "", *run_lines(fix.run, "candidate", folder)]
        write(f"fix {number}", f"fix-{number}.toml", [*head, *pair])
        ops = fix.run.runs_as
        touched = set(diagnosis.slice.ops) if diagnosis.slice is not None else {op.name for op in ops.ops}
        kept = tuple(op for op in ops.ops if op.name in touched) or ops.ops
        name = f"fix-{number}.jsonl"
        write(f"shapes {number}", name, list(workload_lines(Workload(ops.name, "", "", kept), ".jsonl")))
    write("markdown", "decision.md", page(diagnosis, "md", str(folder)).splitlines())
    write("html", "decision.html", page(diagnosis, "html", str(folder)).splitlines())
    files["json"] = str(folder / "diagnosis.json")
    document = {**diagnosis.to_dict(), "files": files}
    write("json", "diagnosis.json", json.dumps(document, indent=2).splitlines())
    return files


def context(diagnosis: Diagnosis, folder: str = "") -> dict[str, Any]:
    """What the templates show, already worded."""
    base, candidate, first = diagnosis.base, diagnosis.candidate, diagnosis.first
    effect = next(e for e in EFFECTS if e.id == diagnosis.effect)
    other = next(e for e in EFFECTS if e.id == ("throughput" if diagnosis.effect != "throughput" else "speedup"))
    boards = base.gpu.title if base.gpu.name == candidate.gpu.name else f"{base.gpu.title} and {candidate.gpu.title}"
    stacks = dict.fromkeys((base.stack.name, candidate.stack.name))
    kind = "measured" if base.measured else "simulated"
    return {
        "verdict": diagnosis.decision.verdict,
        "verdict_class": diagnosis.decision.verdict.replace(" ", "-"),
        "base": base.label,
        "candidate": candidate.label,
        "subtitle": f"{candidate.workload.name}, {_count(len(candidate.workload.ops), 'op')}, on {boards}; "
        f"{' and '.join(stacks)}; both runs {kind}",
        "first": None if first is None else {
            "what": first.what,
            "effect": first.effect if first.kind == "quality" else effect.title,
            "share": f"loss {first.share:.4g}" if first.kind == "quality" else percent_ln(first.share),
            "mechanism": first.mechanism,
            "kind": first.mechanism_class,
            "meaning": meaning_of(first.mechanism),
            "owner": first.owner,
        },
        "no_cause": _no_cause(diagnosis),
        "reasons": list(diagnosis.decision.reasons),
        "figures": [
            {"title": f.title, "base": f"{f.base:.4g} {f.unit}", "candidate": f"{f.candidate:.4g} {f.unit}",
             "change": percent_ln(f.change), "interval": _interval(f.change, f.error), "state": f.state}
            for f in diagnosis.figures
        ],
        "drifts": [
            {"title": f"{d.metric}, {d.slice}", "base": f"{d.base:.4g}", "candidate": f"{d.candidate:.4g}",
             "change": f"loss {d.loss:.3g}",
             "interval": "unknown" if d.low is None or d.high is None else f"{d.low:.3g} to {d.high:.3g}",
             "state": d.state}
            for d in diagnosis.drifts
        ],
        "figures_note": _figures_note(diagnosis),
        "leading": effect.title,
        "second": other.title,
        "changes": _changes(diagnosis, other.id),
        "changes_note": f"Exact Shapley values over {diagnosis.found.runs} counterfactual runs, one change at a time: "
        f"factors that multiply to the change of the figure"
        + ("; changes put together, see the JSON for each" if diagnosis.found.grouped else "") + ".",
        "quality_causes": [
            f"{item.what}: loss {item.loss:.4g}" + ("" if item.exact else " (of all of these together)")
            for item in diagnosis.quality_causes
        ],
        "mechanisms": _mechanism_rows(diagnosis),
        "mechanisms_note": f"Losses of the base and of the base with {_followed(diagnosis)} changed, on the slice, by "
        "counterfactuals with each mechanism ideal; factors.",
        "slice": _slice(diagnosis, folder),
        "fixes": [
            {"rank": number, "title": fix.title, "brings": _brings(diagnosis, fix), "owner": fix.owner,
             "risk": fix.risk, "rollback": fix.rollback, **validation(diagnosis, fix, number, folder)}
            for number, fix in enumerate(diagnosis.fixes, 1)
        ],
        "no_fix": "Nothing to mend." if first is None else "None of the fixes tried brings anything.",
        "notes": list(diagnosis.notes),
        "provenance": f"sparsesim {__version__}; workload {candidate.workload.digest()[:12]}; tolerance "
        f"{100 * diagnosis.settings.tolerance:g} %, model error {100 * diagnosis.settings.model_error:g} %, quality "
        f"allowance {100 * diagnosis.settings.allowance:g} %",
    }  # fmt: skip


def _no_cause(diagnosis: Diagnosis) -> str:
    if any(drift.state != "pass" for drift in diagnosis.drifts):
        return "no loss of quality is known from noise; more samples or seeds would decide"
    if diagnosis.found.changes or diagnosis.drifts:
        return "no figure is worse than the base's"
    return "the two runs differ in nothing that has an effect"


def _followed(diagnosis: Diagnosis) -> str:
    """The change that the mechanisms are those of."""
    return next((change.id for change, _ in diagnosis.found.ranked(diagnosis.effect)), "nothing")


def _changes(diagnosis: Diagnosis, other: str) -> list[dict[str, Any]]:
    rows = diagnosis.changes
    shares = [abs(row["shares_ln"][diagnosis.effect]) for row in rows if row["shares_ln"]]
    most = max([*shares, abs(diagnosis.unexplained)], default=0.0) or 1.0

    def row_of(what: str, share: float, second: float) -> dict[str, Any]:
        return {
            "what": what, "share": percent_ln(share), "other": percent_ln(second),
            "side": "loss" if share < 0 else "gain", "width": round(50 * abs(share) / most, 1),
        }  # fmt: skip

    out = [
        row_of(row["what"], row["shares_ln"][diagnosis.effect], row["shares_ln"][other])
        if row["shares_ln"]
        else {"what": row["what"], "share": "no effect", "other": "no effect", "side": "", "width": 0}
        for row in rows
    ]
    if diagnosis.unexplained:
        share = diagnosis.unexplained
        out.append(row_of("not explained by the model: measured beyond what the changes give", share, share))
    return out


def _mechanism_rows(diagnosis: Diagnosis) -> list[dict[str, Any]]:
    kept = sorted(diagnosis.mechanisms, key=lambda item: -abs(item.change))[:SHOWN]
    kept = [item for item in kept if abs(item.change) >= LEAST]
    most = max((abs(item.change) for item in kept), default=1.0)
    return [
        {"name": f"{item.id} (mainly {item.mainly})" if item.mainly else item.id, "kind": item.kind,
         "share": percent_ln(item.change), "meaning": meaning_of(item.id),
         "side": "loss" if item.change < 0 else "gain", "width": round(50 * abs(item.change) / most, 1)}
        for item in sorted(kept, key=lambda item: item.change)
    ]  # fmt: skip


def _slice(diagnosis: Diagnosis, folder: str) -> dict[str, Any] | None:
    cut = diagnosis.slice
    if cut is None:
        return None
    rows = [_op_row(pair, side) for pair in diagnosis.ops for side in ("base", "candidate")]
    note = (
        f"{len(cut.ops)} of {_count(cut.of, 'op')} ({cut.minimal}), {percent_ln(cut.effect)} here against "
        f"{percent_ln(cut.whole)} of the whole; held to: {cut.criterion}."
    )
    return {"rows": rows, "note": note, "command": shlex.join(_slice_command(Path(folder)))}


def _op_row(pair: OpPair, side: str) -> dict[str, str]:
    data = pair.base if side == "base" else pair.candidate
    if not data:
        empty = dict.fromkeys(("shape", "path", "time", "dense", "speedup", "bound", "clock"), "")
        return {"op": pair.name, "side": side, **empty, "path": "not in this run"}
    time = f"{data['time_us']:.4g} µs"
    if "measured_us" in data:
        time = f"{data['measured_us']:.4g} µs measured, model {time}"
    return {
        "op": pair.name,
        "side": side,
        "shape": f"{data['m']}×{data['n']}×{data['k']} {data['dtype']} {data['pattern']}",
        "path": data["path"] if data["path"] == "sparse" else f"dense ({data['reason']})",
        "time": time,
        "dense": f"{data['dense_time_us']:.4g} µs",
        "speedup": f"{data['speedup']:.3f}",
        "bound": data["bound_by"],
        "clock": f"{data['clock_mhz']:.0f} MHz",
    }


def _slice_command(folder: Path) -> list[str]:
    return ["sparsesim", "diagnose", str(folder / "slice.toml")]


def _brings(diagnosis: Diagnosis, fix: Any) -> str:
    title = diagnosis.figure(diagnosis.effect).title
    what = title if fix.takes_back is not None else "time saved, as throughput"
    parts = [f"{what} {percent_ln(fix.gain)}", f"effective speedup {fix.speedup:.3f}"]
    if fix.recovers is not None:
        parts.append(f"{100 * fix.recovers:.0f} % of the regression")
    if fix.quality_gain:
        parts.insert(0, f"quality: loss of {fix.quality_gain:.4g} taken back")
    return "; ".join(parts)


def _figures_note(diagnosis: Diagnosis) -> str:
    if diagnosis.base.measured:
        return (
            "Times are measured; the dense baseline of the speedup is the model's. Throughput counts the "
            "dense-equivalent operations of the workload."
        )
    return (
        f"Intervals are the model's error of a change, {100 * diagnosis.settings.model_error:g} % of the figure; "
        "quality has its own, paired over samples where it can be. Throughput counts the dense-equivalent operations "
        "of the workload."
    )


def percent_ln(value: float) -> str:
    """A change given as a logarithm, in per cent."""
    text = f"{100 * math.expm1(value):+.1f} %"
    return "0.0 %" if text in ("+0.0 %", "-0.0 %") else text


def _interval(change: float, error: float) -> str:
    return f"{percent_ln(change - error)} to {percent_ln(change + error)}" if error else "exact"


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _md(text: Any) -> str:
    """`text` as literal Markdown."""
    return re.sub(r"([\\`*_|<>#\[\]])", r"\\\1", " ".join(str(text).split()))
