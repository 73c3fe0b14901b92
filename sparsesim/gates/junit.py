"""A report as JUnit XML, which every CI can read: one test case for each gate and run."""

from __future__ import annotations

import re
from xml.etree import ElementTree as xml

from sparsesim.gates.verdict import FAIL, UNDECIDED, GateReport

__all__ = ["junit_xml"]

#: what XML 1.0 has no way to write, not even as a reference
_NO_CHARACTER = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def junit_xml(report: GateReport) -> str:
    """The report; a failed gate is a failure, an undecided one an error: neither lets a CI pass."""
    states = [verdict.state for verdict in report.verdicts]
    suite = xml.Element(
        "testsuite",
        name=report.policy.name,
        tests=str(len(states)),
        failures=str(states.count(FAIL)),
        errors=str(states.count(UNDECIDED)),
    )
    for verdict in report.verdicts:
        gate = verdict.gate
        case = xml.SubElement(suite, "testcase", classname=f"gates.{gate.metric}", name=f"{gate.name} {gate.bound}")
        text = (
            f"value {verdict.value}, interval {verdict.low} to {verdict.high}, margin {verdict.margin}; run "
            f"{verdict.run or 'none'}; owner {gate.owner}"
        )
        if verdict.state in (FAIL, UNDECIDED):
            kind = "failure" if verdict.state == FAIL else "error"
            problem = xml.SubElement(case, kind, message=verdict.why, type=verdict.state)
            problem.text = f"{text}; rollback: {gate.rollback}"
        else:
            xml.SubElement(case, "system-out").text = text
    for element in suite.iter():
        element.attrib = {key: _written(value) for key, value in element.attrib.items()}
        element.text = element.text and _written(element.text)
    xml.indent(suite)
    return xml.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"


def _written(text: str) -> str:
    """`text` with U+FFFD for each character that XML does not know: a name may come with one."""
    return _NO_CHARACTER.sub("\ufffd", text)
