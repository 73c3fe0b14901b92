"""What if: parameters set and varied by path, sensitivities, break-even maps, patterns side by side.

All of them run scenarios (`scenario`), equal ones once and on all cores, and return plain results; `figures` draws
them and the CLI prints them.
"""

from sparsesim.scenarios.breakeven import BreakEven, break_even
from sparsesim.scenarios.patterns import ExpansionCheck, PatternTable, check_expansion, compare_patterns
from sparsesim.scenarios.scenario import Outcome, Scenario, build_scenario
from sparsesim.scenarios.sensitivity import Sensitivities, sensitivities
from sparsesim.scenarios.sweep import WhatIf, what_if

__all__ = [
    "BreakEven",
    "ExpansionCheck",
    "Outcome",
    "PatternTable",
    "Scenario",
    "Sensitivities",
    "WhatIf",
    "break_even",
    "build_scenario",
    "check_expansion",
    "compare_patterns",
    "sensitivities",
    "what_if",
]
