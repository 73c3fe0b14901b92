"""The commands that make the numbers of a report again."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

__all__ = ["LAYERED", "OWN_PART", "Source"]

#: foreign formats that become a file of layers and phases, and those whose token count the import fixes
LAYERED = ("hf-config",)
OWN_PART = ("safetensors",)


@dataclass(frozen=True)
class Source:
    """What a report was asked for, in the words of the command line.

    workload, gpu : as they were given
    foreign : the format of a file that has to be imported before other commands take it; empty for a workload
    tokens, phase, dtype, pattern, dims : the part of it, and what it ran with instead of its own; None if not given
    stack, timing, l2, clock, baseline : as they were used
    """

    workload: str
    gpu: str
    foreign: str = ""
    tokens: int | None = None
    phase: str | None = None
    dtype: str | None = None
    pattern: str | None = None
    dims: tuple[tuple[str, int], ...] = ()
    stack: str = "cusparselt"
    timing: str = "kernel"
    l2: str = "rotating"
    clock: str = "free"
    baseline: str | None = None

    def report(self) -> str:
        """The command of the report itself."""
        words = ["sparsesim", "report", self.workload, *self._gpu(), *self._part(), *self._overrides(), *self._dims()]
        return shlex.join([*words, *self._protocol(), "--html", "report.html"])

    def prepare(self) -> str | None:
        """The command that imports a foreign file, or None."""
        if not self.foreign:
            return None
        words = ["sparsesim", "import", self.workload, *self._overrides(), *self._dims()]
        return shlex.join([*words, *(self._part() if self.foreign in OWN_PART else []), "--out", self._imported()])

    def run(self, command: str) -> str:
        """`command` (simulate or explain) of the workload."""
        workload = self._imported() if self.foreign else self.workload
        overrides = [] if self.foreign else self._overrides()
        part = [] if self.foreign in OWN_PART else self._part()
        words = ["sparsesim", command, workload, *self._gpu(), *part, *overrides, *self._protocol()]
        return shlex.join(words)

    def gemm(self, m: int, n: int, k: int, dtype: str, pattern: str, batch: int, accumulator: str | None) -> str:
        """The command of one GEMM."""
        words = ["sparsesim", "gemm", *self._gpu(), "-m", str(m), "-n", str(n), "-k", str(k), "--dtype", dtype]
        words += ["--pattern", pattern, *(["--batch", str(batch)] if batch > 1 else [])]
        words += ["--acc", accumulator] if accumulator else []
        return shlex.join([*words, *self._protocol()])

    def _imported(self) -> str:
        return "workload.toml" if self.foreign in LAYERED else "workload.jsonl"

    def _gpu(self) -> list[str]:
        return ["--gpu", self.gpu]

    def _part(self) -> list[str]:
        tokens = [] if self.tokens is None else ["--tokens", str(self.tokens)]
        return [*([] if self.phase is None else ["--phase", self.phase]), *tokens]

    def _overrides(self) -> list[str]:
        dtype = [] if self.dtype is None else ["--dtype", self.dtype]
        return [*dtype, *([] if self.pattern is None else ["--pattern", self.pattern])]

    def _dims(self) -> list[str]:
        return [word for name, size in self.dims for word in ("--dim", f"{name}={size}")]

    def _protocol(self) -> list[str]:
        words = ["--stack", self.stack]
        for flag, value, usual in (("timing", self.timing, "kernel"), ("l2", self.l2, "rotating"),
                                   ("clock", self.clock, "free")):  # fmt: skip
            words += [] if value == usual else [f"--{flag}", value]
        return words + ([] if self.baseline is None else ["--baseline", self.baseline])
