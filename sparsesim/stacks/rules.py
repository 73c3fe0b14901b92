"""What a software stack is: an ordered list of rules that decide which path an op runs on, and why.

The first rule that refuses wins, and its reason is the op's reason. If none refuses, the op runs sparse. What then
becomes of a refused op is the stack's treatment: it raises, runs dense in silence, or is left unpruned.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from sparsesim.hardware import GpuSpec
from sparsesim.sparsity import Pattern
from sparsesim.stacks.calls import AddedSpec, Call, CatalogueSpec, HostSpec, added_launches, as_weight, padded
from sparsesim.stacks.conditions import Condition, Sizes, dtype_of, native_pattern
from sparsesim.stacks.facts import Setting
from sparsesim.workload import Gemm

__all__ = ["TREATMENTS", "Asks", "Behaviour", "Decision", "Rule", "Stack", "native_pattern"]

#: what becomes of a layer that the stack cannot run sparse
TREATMENTS = ("raise", "dense", "unpruned")


@dataclass(frozen=True)
class Asks:
    """A rule's test: where `when` holds, `needs` must; without `needs` the rule refuses every such call."""

    when: Condition
    needs: Condition | None
    setting: Setting

    def __call__(self, op: Gemm, pattern: Pattern, gpu: GpuSpec) -> str | None:
        if self.when.missing(op, pattern, gpu, self.setting) is not None:
            return None
        if self.needs is None:
            return f"{self.setting.version}" if self.when.version is not None else "none of its kind does"
        return self.needs.missing(op, pattern, gpu, self.setting)


@dataclass(frozen=True)
class Rule:
    """One reason for which a stack refuses the sparse path.

    refuses(op, pattern, gpu) returns what was found, in words, or None if the rule lets the op pass. `treatment` is
    the rule's own, where it differs from its stack's; `applies` says for which calls the rule is there.
    """

    code: str
    text: str
    source: str
    refuses: Callable[[Gemm, Pattern, GpuSpec], str | None]
    treatment: str | None = None
    applies: str = ""


@dataclass(frozen=True)
class Decision:
    """Path of one op under one stack, with the code and the text of the rule that decided.

    `path` is what a simulation runs; where the stack would raise, that is the dense path of a caller who then leaves
    the layer out. `treatment` says what the stack does, ``""`` where there is nothing to treat.
    """

    path: str
    reason: str
    text: str
    native: Pattern | None = None
    treatment: str = ""

    @property
    def is_fallback(self) -> bool:
        """An op with a sparse weight that runs on the dense path."""
        return self.path == "dense" and self.reason != "dense-weight"

    @property
    def outcome(self) -> str:
        """``sparse``, ``dense`` or ``error``: what a user of the stack sees."""
        return "error" if self.treatment == "raise" else self.path


@dataclass(frozen=True)
class Behaviour:
    """What the calls of a stack do beside deciding; see `calls` for the parts, of which the first that holds counts.

    padding : sides of the activation are padded to these multiples by type (``*`` = any), or refused
    dense_added : launches of the framework's dense call, such as the quantisation of the activation
    builder : sparse is taken only where it is timed to be faster
    emulated : the pattern is unpacked in front of the dense instruction
    """

    padding: tuple[tuple[Condition, dict[str, Sizes]], ...] = ()
    catalogue: tuple[CatalogueSpec, ...] = ()
    added: tuple[AddedSpec, ...] = ()
    dense_added: tuple[AddedSpec, ...] = ()
    host: tuple[HostSpec, ...] = ()
    builder: bool = False
    emulated: bool = False


@dataclass(frozen=True)
class Stack:
    """A software stack: rules, what it writes, how it picks kernels, and what its calls cost.

    policy : "search" = the fastest of all the library's kernels is taken; "heuristic" = the library predicts;
        "first" = the first of its list
    output : dtype → bytes of one output element on the sparse path
    base, version, versions : name without version; version in force; those known, oldest first
    treatment : of an ineligible layer, one of `TREATMENTS`
    """

    name: str
    title: str
    rules: tuple[Rule, ...]
    policy: str
    output: Callable[[str], float]
    dense_stack: str = "cublaslt"
    base: str = ""
    version: str = ""
    versions: tuple[str, ...] = ()
    treatment: str = "dense"
    setting: Setting = field(default_factory=Setting)
    behaviour: Behaviour = field(default_factory=Behaviour)

    def decide(self, op: Gemm, gpu: GpuSpec) -> Decision:
        """Which path `op` runs on, and why."""
        pattern = Pattern.parse(op.pattern)
        if pattern.is_dense:
            return Decision("dense", "dense-weight", "the weight is dense")
        for rule in self.rules:
            found = rule.refuses(op, pattern, gpu)
            if found is not None:
                return Decision("dense", rule.code, f"{rule.text}: {found}", None, rule.treatment or self.treatment)
        native = native_pattern(op, pattern, gpu)
        if native is None and self.behaviour.emulated:
            native = pattern
        if native is None:
            raise AssertionError(f"{self.name}: the rules let {pattern} pass, but {gpu.name} has no native form")
        how = "in front of the dense datapath" if self.behaviour.emulated else "natively"
        how = how if native == pattern else f"as {native}"
        return Decision("sparse", "eligible", f"all rules met; runs {how}", native)

    def call(self, op: Gemm, gpu: GpuSpec) -> Call:
        """What one call of `op` on the sparse path does."""
        plain = as_weight(op)
        pattern = Pattern.parse(op.pattern)
        known, setting, dtype = self.behaviour, self.setting, dtype_of(op, self.setting)

        def holds(condition: Condition) -> bool:
            return condition.missing(op, pattern, gpu, setting) is None

        wide = next((padded(plain, table, dtype) for when, table in known.padding if holds(when)), plain)
        added = tuple(added_launches(known.added, op, wide if op is plain else op, gpu, setting))
        beside_dense = tuple(added_launches(known.dense_added, op, op, gpu, setting))
        host = next((spec for spec in known.host if holds(spec.when)), None)
        chosen = next((spec for spec in known.catalogue if holds(spec.when)), None)
        return Call(
            op=wide,
            plain=plain,
            policy=self.policy if chosen is None else chosen.policy,
            added=added,
            dense_added=beside_dense,
            host_s=1e-6 * host.call_us if host else 0.0,
            plan_s=1e-6 * host.plan_us if host else 0.0,
            serial=bool(host and host.serial),
            kernels=None if chosen is None else chosen.kernels(op.dtype),
            loss=None if chosen is None else chosen.loss,
        )

    def under(self, setting: Setting) -> Stack:
        """The same stack in other circumstances; the version stays."""
        setting = replace(setting, version=self.setting.version)
        rules = tuple(
            replace(rule, refuses=replace(rule.refuses, setting=setting)) if isinstance(rule.refuses, Asks) else rule
            for rule in self.rules
        )
        return replace(self, rules=rules, setting=setting)
