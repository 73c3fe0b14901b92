"""``sparsesim diagnose``: what made a candidate run worse than a base, what mends it, and whether it ships."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sparsesim.cli import options as opt
from sparsesim.cli.output import JsonTarget, add_row, bar, progress, say, show_table, table

if TYPE_CHECKING:
    from sparsesim.diagnose import Diagnosis, Run

__all__ = ["register"]

EXAMPLE = "Example: sparsesim diagnose base.json candidate.json --owners OWNERS --out out/release"

Base = Annotated[str, typer.Argument(metavar="BASE", help="JSON of simulate, a run file or a profile; or a pair file.")]
Candidate = Annotated[
    str | None, typer.Argument(metavar="[CANDIDATE]", help="The run to judge; none where BASE is a pair file.")
]
Hardware = Annotated[
    list[str] | None,
    typer.Option("--hardware", metavar="FILE", help="Hardware file that a run was simulated with (repeatable)."),
]
BaseQuality = Annotated[str | None, typer.Option("--base-quality", metavar="FILE", help="Quality file of the base.")]
Quality = Annotated[str | None, typer.Option("--quality", metavar="FILE", help="Quality file of the candidate.")]
OwnersFile = Annotated[
    str | None,
    typer.Option("--owners", metavar="FILE", help="Who owns mechanisms and layers, in the manner of CODEOWNERS."),
]
Tolerance = Annotated[
    float, typer.Option("--tolerance", metavar="SHARE", help="Loss that is let pass.", parser=opt.number)
]
ModelError = Annotated[
    float, typer.Option("--model-error", metavar="SHARE", help="Error of a simulated change.", parser=opt.number)
]
Allowance = Annotated[
    float,
    typer.Option("--allowance", metavar="SHARE", help="Loss of quality that is let pass.", parser=opt.number),
]
Out = Annotated[
    str | None, typer.Option("--out", metavar="DIR", help="Write the page (HTML, Markdown), slice and fixes there.")
]
ExitStatus = Annotated[bool, typer.Option("--exit-status", help="Exit with 0 for ship, 1 roll back, 3 hold.")]

STYLES = {"ship": "bold green", "hold": "bold yellow", "roll back": "bold red"}
STATES = {"pass": None, "undecided": "yellow", "fail": "red"}


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command("diagnose", epilog=EXAMPLE)(diagnose)


def diagnose(
    base: Base,
    candidate: Candidate = None,
    gpu: opt.OptionalGpu = None,
    hardware: Hardware = None,
    base_quality: BaseQuality = None,
    quality: Quality = None,
    owners: OwnersFile = None,
    tolerance: Tolerance = 0.02,
    model_error: ModelError = 0.28,
    allowance: Allowance = 0.01,
    out: Out = None,
    exit_status: ExitStatus = False,
    json: opt.Json = None,
) -> None:
    """Compare two runs of a workload: what changed, which change costs what, through which mechanism, what mends it.

    Changes are attributed by counterfactual runs (exact Shapley values), the smallest workload that still shows the
    effect is cut out, at most five fixes are ranked, and the release decision is ship, hold or roll back. --gpu is the
    GPU of profiles that do not name theirs.
    """
    target = JsonTarget.parse(json)
    from sparsesim.diagnose import Settings, load_owners
    from sparsesim.diagnose import diagnose as compare

    settings = Settings(tolerance, model_error, allowance)
    pair = _runs(base, candidate, gpu, hardware or [], base_quality, quality)
    known = load_owners(owners) if owners is not None else None
    with progress("counterfactuals") as report:
        found = compare(*pair, known, settings, progress=report)
    files: dict[str, str] = {}
    if out is not None:
        from sparsesim.diagnose.page import noted, write_folder

        found = noted(found)
        files = write_folder(found, Path(out))
    data = found.to_dict()
    if target.write({**data, "files": files}):
        show(found, files, out or "")
    if exit_status and found.decision.exit_status:
        raise typer.Exit(found.decision.exit_status)


def _runs(
    base: str,
    candidate: str | None,
    gpu: str | None,
    hardware: list[str],
    base_quality: str | None,
    quality: str | None,
) -> tuple[Run, Run]:
    """Both runs, or one error with every problem."""
    from sparsesim.diagnose import is_pair, read_pair, read_run
    from sparsesim.diagnose.runfile import with_quality
    from sparsesim.errors import UserError

    if candidate is None:
        if not is_pair(base):
            raise UserError(f"{base}: expected a file with [base] and [candidate] where one file is given, found none")
        if hardware or gpu:
            raise UserError(
                "--gpu, --hardware: expected neither beside a pair file, which names its boards, found some"
            )
        ours, theirs = read_pair(base)
        return with_quality(ours, base_quality), with_quality(theirs, quality)
    lines: list[str] = []
    runs: list[Run] = []
    for path, figures in ((base, base_quality), (candidate, quality)):
        try:
            runs.append(read_run(path, gpu, hardware, figures))
        except UserError as error:
            lines += error.problems
    if lines:
        raise UserError(dict.fromkeys(lines))  # one file may be both
    return runs[0], runs[1]


def show(found: Diagnosis, files: dict[str, str], folder: str) -> None:
    """Print decision, cause, figures, changes, mechanism, slice and fixes."""
    from sparsesim.diagnose.page import context

    words = context(found, folder)
    say(f"{words['verdict'].upper()}: {words['candidate']} against {words['base']}", STYLES[words["verdict"]])
    say(words["subtitle"])
    for reason in words["reasons"]:
        say(f"  {reason}")
    first = words["first"]
    if first is None:
        say(f"\nno cause is named: {words['no_cause']}")
    else:
        say(f"\nfirst cause  {first['what']}")
        say(f"             {first['effect']} {first['share']}; owner {first['owner']}")
        say(f"mechanism    {first['mechanism']} (class {first['kind']}): {first['meaning']}")
    right = ("base", "candidate", "change", "interval")
    grid = table("figure", *right, "state", right=right)
    for row in words["figures"] + words["drifts"]:
        cells = [row[key] for key in ("title", "base", "candidate", "change", "interval", "state")]
        add_row(grid, *cells, style=STATES[row["state"]])
    show_table("Figures", grid)
    if words["changes"]:
        grid = table("change", words["leading"], "", words["second"], right=(words["leading"], words["second"]))
        for row in words["changes"]:
            share = row["width"] / 50 * (1 if row["side"] == "loss" else -1)
            add_row(grid, row["what"], row["share"], bar(share, 12), row["other"])
        show_table("What changed, and what it costs", grid)
    for line in words["quality_causes"]:
        say(f"quality      {line}")
    if words["mechanisms"]:
        grid = table("mechanism", "class", words["leading"], "what it is", right=(words["leading"],))
        for row in words["mechanisms"]:
            add_row(grid, row["name"], row["kind"], row["share"], row["meaning"])
        show_table("Through which mechanism, on the slice", grid)
    if words["slice"] is not None:
        times = ("time", "dense", "speedup")
        grid = table("op", "run", "shape", "path", *times, "bound by", right=times)
        for row in words["slice"]["rows"]:
            add_row(grid, *(row[key] for key in ("op", "side", "shape", "path", "time", "dense", "speedup", "bound")))
        show_table("Reproducible slice", grid)
        say(words["slice"]["note"])
    if words["fixes"]:
        grid = table("fix", "brings", "owner", "risk")
        for row in words["fixes"]:
            add_row(grid, f"{row['rank']}. {row['title']}", row["brings"], row["owner"], row["risk"])
        show_table("Fixes", grid)
        if folder:
            say(f"proof of the first: {words['fixes'][0]['validation']}")
            say(f"on the board:       {words['fixes'][0]['measurement']}")
    elif first is not None:
        say(words["no_fix"])
    for note in words["notes"]:
        say(f"note         {note}")
    if files:
        say(f"\nwritten      {', '.join(sorted(Path(path).name for path in files.values()))} in {folder}")
