"""Release gates: a policy against the results of runs."""

from sparsesim.gates.junit import junit_xml
from sparsesim.gates.policy import Gate, Policy, load_policy
from sparsesim.gates.verdict import GateReport, Verdict, judge, read_run

__all__ = ["Gate", "GateReport", "Policy", "Verdict", "judge", "junit_xml", "load_policy", "read_run"]
