"""Many design points: files that span them, their evaluation on cores or a cluster, the store of their results.

`spec` reads a sweep file and `design` lays out its points; `evaluate` simulates one; `driver` runs them all through
one of the `executors` and keeps what is done in a `store`; `query` and `pareto` ask it; `optimise` searches.
"""

from sparsesim.sweep.driver import Summary, run_sweep
from sparsesim.sweep.optimise import Optimum, optimise
from sparsesim.sweep.spec import SweepSpec, read_spec
from sparsesim.sweep.store import open_store

__all__ = ["Optimum", "Summary", "SweepSpec", "open_store", "optimise", "read_spec", "run_sweep"]
