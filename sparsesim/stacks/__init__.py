"""Software stacks: which op runs on which path, with the reason; what a call costs beside its product.

Each is a file of rules in ``files/``; see docs/stacks.md.
"""

from sparsesim.stacks.calls import Added, Call
from sparsesim.stacks.facts import FLAGS, Setting
from sparsesim.stacks.load import CODES, StackFile, get_stack, load_stack, stack_files, stack_names
from sparsesim.stacks.rules import TREATMENTS, Decision, Rule, Stack

__all__ = [
    "CODES",
    "FLAGS",
    "TREATMENTS",
    "Added",
    "Call",
    "Decision",
    "Rule",
    "Setting",
    "Stack",
    "StackFile",
    "get_stack",
    "load_stack",
    "stack_files",
    "stack_names",
]
