"""Software stacks: which op runs on which path, with the reason."""

from sparsesim.errors import UserError, nearest
from sparsesim.stacks.cublaslt import CUBLASLT
from sparsesim.stacks.cusparselt import CUSPARSELT
from sparsesim.stacks.rules import Decision, Rule, Stack

__all__ = ["STACKS", "Decision", "Rule", "Stack", "get_stack"]

STACKS: dict[str, Stack] = {stack.name: stack for stack in (CUBLASLT, CUSPARSELT)}


def get_stack(name: str) -> Stack:
    """The stack called `name`; raises UserError with the nearest valid name."""
    if name not in STACKS:
        raise UserError(f"stack: expected one of {', '.join(STACKS)}, found {name!r}{nearest(name, STACKS)}")
    return STACKS[name]
