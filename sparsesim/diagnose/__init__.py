"""Diagnosis of a regression: what changed between two runs, what it costs and why, what mends it, whether it ships."""

from sparsesim.diagnose.diagnosis import Diagnosis, Settings, diagnose
from sparsesim.diagnose.owners import Owners, load_owners
from sparsesim.diagnose.run import Conversion, Evaluator, Run
from sparsesim.diagnose.runfile import is_pair, read_pair, read_run

__all__ = [
    "Conversion",
    "Diagnosis",
    "Evaluator",
    "Owners",
    "Run",
    "Settings",
    "diagnose",
    "is_pair",
    "load_owners",
    "read_pair",
    "read_run",
]
