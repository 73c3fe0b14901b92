"""The GPU that the sliders made, as a hardware file that extends the one they started from."""

from __future__ import annotations

import json
import re
from pathlib import Path

from sparsesim.explore.state import State, slider_of

__all__ = ["file_name", "hardware_file"]

_QUANTITY = re.compile(r"([+-]?[0-9.]+(?:[eE][+-]?[0-9]+)?)\s*(.*)")


def file_name(state: State) -> str:
    """What the file is called: the packaged GPU's name, and that it was explored."""
    return f"{state.base.gpu.name}_explored.toml"


def hardware_file(state: State) -> str:
    """TOML text for ``--gpu FILE``: `extends` the GPU of `state.source`, with one table for each changed parameter.

    Values stand there as the address has them, so that nothing is rounded on the way.
    """
    base = state.base.gpu
    # a download lies anywhere, so that a file is named by its whole path
    start = str(Path(state.source).resolve()) if state.source != base.name else base.name
    lines = [
        f"# {base.title}, changed with sparsesim explore",
        "",
        f"extends = {json.dumps(start)}",
        f"name = {json.dumps(base.name + '_explored')}",
        f"title = {json.dumps(base.title + ', explored')}",
        "hypothetical = true",
    ]
    sections: dict[str, list[str]] = {}
    for change in state.sets:
        path, _, _ = (part.strip() for part in change.partition("="))
        section, _, field = path.partition(".")
        before = slider_of(base, path)
        found = _QUANTITY.fullmatch(change.partition("=")[2].strip())
        assert found is not None, f"{change}: read before"
        number, unit = float(found[1]), found[2] or before.unit
        value = int(number) if number.is_integer() else number
        note = f"was {before.base:g} {before.unit}".removesuffix(" -")
        unit = unit.replace("µ", "u")
        sections.setdefault(section, []).append(
            f'{field} = {{ value = {value!r}, unit = "{unit}", source = "EXPLORED", status = "assumed", '
            f'note = "{note}" }}'
        )
    for section in sorted(sections):
        lines += ["", f"[{section}]", *sections[section]]
    return "\n".join(lines) + "\n"
