"""How wrong the model is about a change: ``python bench/differences.py sparse.csv …`` (measured rows).

For rows that differ in their token count n alone, neighbours in n: the error of the difference of ln(speedup), model
against measured. `diagnose --model-error` has the 90th percentile as its default, for it compares runs.
"""

from __future__ import annotations

import math
import sys
from collections import defaultdict
from itertools import pairwise
from statistics import median

from sparsesim.api import validate_files

#: rows below are mostly launch costs [µs]
LEAST_US = 10.0


def errors(paths: list[str]) -> list[float]:
    """|error of a difference of ln(speedup)| for each pair of neighbouring token counts."""
    found: dict[tuple[object, ...], dict[int, dict[bool, float]]] = defaultdict(lambda: defaultdict(dict))
    for row in validate_files(paths).to_dict()["rows"]:
        if row["measured_us"] >= LEAST_US:
            key = tuple(row[name] for name in ("gpu", "source", "m", "k", "batch", "dtype", "timing", "l2", "clock"))
            error = math.log(row["predicted_us"] / row["measured_us"])
            found[key][row["n"]][row["pattern"] == "dense"] = error
    out = []
    for by_n in found.values():
        ends = [by_n[n][True] - by_n[n][False] for n in sorted(by_n) if len(by_n[n]) == 2]
        out += [abs(after - before) for before, after in pairwise(ends)]
    return sorted(out)


if __name__ == "__main__":
    values = errors(sys.argv[1:])
    print(f"{len(values)} pairs: median {math.expm1(median(values)):.1%}, 90th percentile "
          f"{math.expm1(values[int(0.9 * len(values))]):.1%}")  # fmt: skip
