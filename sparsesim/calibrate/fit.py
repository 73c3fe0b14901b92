"""The fit: bounded non-linear least squares on ln(predicted / measured), with kernels fixed within a round.

Coordinates run over the range of each parameter (see `Parameter`). Residuals are those of the rows under a soft-L1
loss, so that a few rows which no parameter explains do not bend the rest, and a weak pull of every coordinate
towards its start, so that parameters which the rows do not determine stay where they are. A round linearises with
the kernels that the library picks at its start; the picks are then renewed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sparsesim.calibrate.parameters import Parameter, parameters_of
from sparsesim.calibrate.result import Calibration, FittedParameter, FittedRow, error_groups, male
from sparsesim.calibrate.rows import RowSets, sample, split_rows
from sparsesim.calibrate.workers import Chosen, Pool, open_pool
from sparsesim.errors import Problem, UserError
from sparsesim.hardware import GpuSpec, load_gpu
from sparsesim.measured import MeasuredRow

__all__ = ["calibrate"]

#: |ln(predicted / measured)| from which on a residual counts linearly
LOSS_SCALE = 0.1
#: residual of a coordinate that crosses its whole range, in robust standard deviations of the rows' errors, and its
#: least value: as if each parameter were known beforehand to within half of its range
PULL = 2.0
LEAST_PULL = 1e-4
#: step of the finite differences; the event loop's times have steps of their own, so no smaller one
STEP = 0.05
#: model evaluations of one round: its start and the steps tried from there
EVALUATIONS = 3
#: default parameters are fitted if they move the rows by this (rms, over their range), the largest first
LEAST_EFFECT = 0.01
MOST_PARAMETERS = 16
#: a coordinate this near to an end of its range is at its bound
AT_BOUND = 0.01
#: rounds end once the loss falls by less than this share
ENOUGH = 0.002
LEAST_ROWS = 8


@dataclass
class _State:
    """The picks at one set of parameter values, the loss of the rows there, derivatives close by, and the pull."""

    x: np.ndarray
    picks: dict[int, Chosen]
    loss: float
    slopes: np.ndarray
    pull: float


class _Problem:
    """Residuals and their derivatives at fixed picks, each evaluated once."""

    def __init__(self, pool: Pool, parameters: Sequence[Parameter], start: np.ndarray) -> None:
        self.pool = pool
        self.parameters = list(parameters)
        self.start = start
        self.pull = LEAST_PULL
        self.picks: dict[int, Chosen] = {}
        self.slopes = np.zeros((0, len(parameters)))
        self._times: dict[bytes, np.ndarray] = {}

    def use(self, picks: Mapping[int, Chosen]) -> None:
        """Fix the kernels to `picks`, and the pull to the spread of the errors with them."""
        self.picks = dict(picks)
        self.pull = max(PULL * 1.4826 * float(np.median(np.abs(self.errors(picks)))), LEAST_PULL)
        self._times = {}

    def keep(self, columns: Sequence[int]) -> None:
        """Go on with some of the parameters."""
        self.parameters = [self.parameters[i] for i in columns]
        self.start, self.slopes = self.start[columns], self.slopes[:, columns]
        self._times = {}

    def changes(self, x: np.ndarray) -> dict[str, float]:
        """Parameter values [canonical units] at coordinates."""
        return {p.path: p.value(u) * p.canonical_factor for p, u in zip(self.parameters, x, strict=True)}

    def _log_times(self, points: Sequence[np.ndarray]) -> list[np.ndarray]:
        missing = [x for x in points if x.tobytes() not in self._times]
        for x, seconds in zip(missing, self.pool.times([self.changes(x) for x in missing], self.picks), strict=True):
            self._times[x.tobytes()] = np.log(seconds)
        return [self._times[x.tobytes()] for x in points]

    def residuals(self, x: np.ndarray) -> np.ndarray:
        """ln(predicted / measured) of the rows, then the pull of the parameters."""
        (times,) = self._log_times([x])
        return np.concatenate([times - self._measured(), self.pull * (x - self.start)])

    def jacobian(self, x: np.ndarray) -> np.ndarray:
        """Derivatives of `residuals`, by differences inwards."""
        steps = np.where(x + STEP <= 1.0, STEP, -STEP)
        points = [x + step * unit for step, unit in zip(steps, np.eye(len(x)), strict=True)]
        base, *moved = self._log_times([x, *points])
        self.slopes = np.stack([(y - base) / step for y, step in zip(moved, steps, strict=True)], axis=1)
        return np.concatenate([self.slopes, self.pull * np.eye(len(x))])

    def errors(self, picks: Mapping[int, Chosen]) -> np.ndarray:
        """ln(predicted / measured) of `picks`."""
        return np.array([_log_error(self.pool.rows[i], chosen) for i, chosen in picks.items()])

    def state(self, x: np.ndarray, picks: dict[int, Chosen]) -> _State:
        """Where the fit stands: at `x`, whose picks and times are `picks`."""
        return _State(x, picks, float(_loss(self.errors(picks)).sum()), self.slopes, self.pull)

    def _measured(self) -> np.ndarray:
        return np.array([math.log(self.pool.rows[i].time_us * 1e-6) for i in self.picks])


def _loss(residuals: np.ndarray) -> np.ndarray:
    """Soft L1: squares of small residuals, twice the size of large ones [in units of the loss scale]."""
    return 2.0 * LOSS_SCALE**2 * (np.sqrt(1.0 + (residuals / LOSS_SCALE) ** 2) - 1.0)


def _log_error(row: MeasuredRow, chosen: Chosen) -> float:
    return math.log(chosen.seconds * 1e6 / row.time_us)


def calibrate(
    rows: Iterable[MeasuredRow],
    gpu: GpuSpec,
    *,
    parameters: Sequence[str] | None = None,
    leave_out: bool = False,
    gpu_of: Callable[[str], GpuSpec] = load_gpu,
    count: int = 120,
    rounds: int = 3,
    fit_share: float = 0.5,
    jobs: int = 1,
    progress: Callable[[int, int], None] | None = None,
) -> Calibration:
    """Fit parameters to measured rows.

    Parameters
    ----------
    rows : iterable of MeasuredRow
        Of any GPUs; those of `gpu` are used, or with `leave_out` those of the others of its family.
    gpu : GpuSpec
        The description to start from; rows belong to it by name.
    parameters : sequence of str, optional
        Dotted paths; by default those of `DEFAULT_PARAMETERS` that move the rows.
    leave_out : bool
        Fit the values of the family's file on the other GPUs, and predict `gpu`, none of whose rows is fitted.
    gpu_of : callable
        Descriptions of the other GPUs, by name.
    count : int
        Rows to fit, and as many to hold out, spread over paths, types and size classes.
    rounds : int
        Times that kernels are picked anew and the fit goes on.
    fit_share : float
        Share of the shapes that may be fitted; the others are held out.
    jobs : int
        Processes; the result does not depend on it.
    progress : callable, optional
        Called as progress(done, total); the total is an estimate until the end.

    Returns
    -------
    Calibration
        Errors before and after on both parts, and each parameter with its range, sensitivity and uncertainty.

    Raises
    ------
    UserError
        No rows of the GPU, no other GPU of its family, unknown or unfit parameters, impossible counts, no scipy.
    """
    try:
        from scipy.optimize import least_squares
    except ImportError:
        raise UserError("calibrate: expected scipy (pip install 'sparsesim[calibrate]'), found none") from None
    _check(count, rounds, fit_share, jobs)
    all_rows = list(rows)
    gpus = _others(all_rows, gpu, gpu_of) if leave_out else {gpu.name: gpu}
    found = parameters_of(gpu, parameters, list(gpus.values()) if leave_out else ())
    used = [row for row in all_rows if row.gpu in gpus]
    if not used:
        names = ", ".join(dict.fromkeys(row.gpu for row in all_rows))
        raise UserError(f"{gpu.name}: expected measured rows of it, found rows of {names or 'no GPU'}")
    sets = split_rows(used, count, fit_share)
    left_out = sample([row for row in all_rows if row.gpu == gpu.name], count) if leave_out else []
    pooled = [*sets.fit, *sets.held_out, *left_out]
    parts = _parts(sets, left_out)
    meter = _Meter(progress, len(sets.fit), len(pooled), rounds, len(found))
    described = {**gpus, gpu.name: gpu} if left_out else gpus
    with open_pool(described, pooled, jobs, meter.add) as pool:
        before = pool.choose({}, dict.fromkeys(range(len(pooled))))
        skipped = {index: chosen.why for index, chosen in before.items() if chosen.kernel is None}
        fitted = [i for i in parts["fit"] if i not in skipped]
        if len(fitted) < LEAST_ROWS:
            reason = f"; {next(iter(skipped.values()))}" if skipped else ""
            raise UserError(f"{gpu.name}: expected at least {LEAST_ROWS} rows to fit, found {len(fitted)}{reason}")
        start = np.array([p.coordinate(p.start) for p in found])
        problem = _Problem(pool, found, start)
        picks = {i: before[i] for i in fitted}
        problem.use(picks)
        problem.jacobian(start)
        weak = _prune(problem) if parameters is None else []
        best = state = problem.state(problem.start, picks)
        history = [male(_log_error(pooled[i], c) for i, c in picks.items())]
        for _ in range(rounds):
            problem.use(state.picks)
            solved = least_squares(
                problem.residuals, state.x, jac=problem.jacobian, bounds=(0.0, 1.0), method="dogbox",
                loss="soft_l1", f_scale=LOSS_SCALE, max_nfev=EVALUATIONS,
            )  # fmt: skip
            x = _rounded(problem.parameters, solved.x)
            picks = pool.choose(problem.changes(x), state.picks)
            state = problem.state(x, picks)
            history.append(male(_log_error(pooled[i], c) for i, c in picks.items()))
            gain = best.loss - state.loss
            if gain > 0:
                best = state
            if gain < ENOUGH * best.loss:
                break
        others = {i: pick for i, pick in before.items() if i not in skipped and i not in best.picks}
        after = {**best.picks, **pool.choose(problem.changes(best.x), others)}
    meter.end()
    return Calibration(
        gpu=gpu.name,
        leave_out=leave_out,
        fitted_on=tuple(gpus),
        files=tuple(sorted({Path(row.file).name for row in used})),
        fit_share=fit_share,
        rows={name: sum(i not in skipped for i in members) for name, members in parts.items()},
        available=sets.available,
        parameters=tuple(_describe(problem, best)),
        weak=tuple(weak),
        groups=tuple(
            group
            for name, members in parts.items()
            for group in error_groups(name, pooled, [i for i in members if i not in skipped], before, after)
        ),
        predictions=tuple(
            FittedRow(name, pooled[i], before[i].seconds * 1e6, after[i].seconds * 1e6, after[i].name)
            for name, members in parts.items()
            for i in members
            if i not in skipped
        ),
        history=tuple(history),
        contradictions=tuple(sets.contradictions),
        skipped=tuple((pooled[i], why) for i, why in sorted(skipped.items())),
    )


def _check(count: int, rounds: int, fit_share: float, jobs: int) -> None:
    lines = []
    if count < LEAST_ROWS:
        lines.append(Problem.line("rows", "", f"at least {LEAST_ROWS}", count))
    if rounds < 1:
        lines.append(Problem.line("rounds", "", "at least 1", rounds))
    if not 0.0 < fit_share <= 1.0:
        lines.append(Problem.line("fit_share", "", "a share above 0 and up to 1", fit_share))
    if jobs < 1:
        lines.append(Problem.line("jobs", "", "at least 1", jobs))
    if lines:
        raise UserError(lines)


def _others(rows: Sequence[MeasuredRow], gpu: GpuSpec, gpu_of: Callable[[str], GpuSpec]) -> dict[str, GpuSpec]:
    """The other GPUs of the family that the rows hold, by name."""
    found = {}
    for name in sorted({row.gpu for row in rows} - {gpu.name}):
        try:
            other = gpu_of(name)
        except UserError:  # a GPU that nothing describes cannot be of the family
            continue
        if other.family == gpu.family:
            found[name] = other
    if not found:
        raise UserError(f"{gpu.name}: expected rows of another GPU of the family {gpu.family}, found none")
    if not any(row.gpu == gpu.name for row in rows):
        raise UserError(f"{gpu.name}: expected measured rows of it to predict, found none")
    return found


def _parts(sets: RowSets, left_out: Sequence[MeasuredRow]) -> dict[str, range]:
    """Name of each part → indices of its rows, in the order in which they are pooled."""
    first, second = len(sets.fit), len(sets.fit) + len(sets.held_out)
    parts = {"fit": range(first), "held_out": range(first, second)}
    if left_out:
        parts["left_out"] = range(second, second + len(left_out))
    return parts


def _prune(problem: _Problem) -> list[tuple[str, float]]:
    """Keep the parameters that move the rows most; (path, effect) of the others."""
    effects = _effects(problem.slopes)
    order = sorted(range(len(effects)), key=lambda i: (-effects[i], i))
    kept = sorted(i for i in order[:MOST_PARAMETERS] if effects[i] >= LEAST_EFFECT) or order[:1]
    weak = [(problem.parameters[i].path, float(effects[i])) for i in range(len(effects)) if i not in kept]
    problem.keep(kept)
    return weak


def _effects(slopes: np.ndarray) -> np.ndarray:
    """Root mean square over the rows of the change of ln(time) across the range of each parameter."""
    effects: np.ndarray = np.sqrt((slopes**2).mean(axis=0))
    return effects


def _rounded(parameters: Sequence[Parameter], x: np.ndarray) -> np.ndarray:
    """The coordinates of values as the file will hold them."""
    return np.clip([p.coordinate(p.rounded(u)) for p, u in zip(parameters, x, strict=True)], 0.0, 1.0)


def _describe(problem: _Problem, best: _State) -> Iterable[FittedParameter]:
    """What the fit found for each parameter; the uncertainty is that of the linearised, weighted fit."""
    errors = problem.errors(best.picks)
    weights = 1.0 / np.sqrt(1.0 + (errors / LOSS_SCALE) ** 2)
    slopes, count = best.slopes, len(problem.parameters)
    freedom = max(len(errors) - count, 1)
    variance = float((weights * errors**2).sum()) / freedom
    normal = (slopes * weights[:, None]).T @ slopes + best.pull**2 * np.eye(count)
    inverse = np.linalg.inv(normal)
    root = np.sqrt(np.diag(inverse))
    spread = math.sqrt(variance) * root
    correlation = inverse / np.outer(root, root) - np.eye(count)
    effects = _effects(slopes)
    for i, p in enumerate(problem.parameters):
        x = float(best.x[i])
        after = p.start if x == problem.start[i] else p.rounded(x)
        per_value = (p.high - p.low) if p.scale == "linear" else after * math.log(p.high / p.low)
        partner = int(np.argmax(np.abs(correlation[i])))
        yield FittedParameter(
            parameter=p,
            after=after,
            sensitivity=float(slopes[:, i].mean()) * p.slope(after),
            effect=float(effects[i]),
            error=float(spread[i]) * per_value,
            at_bound="low" if x < AT_BOUND else "high" if x > 1.0 - AT_BOUND else "",
            partner=problem.parameters[partner].path if count > 1 else "",
            correlation=float(correlation[i, partner]) if count > 1 else 0.0,
        )


class _Meter:
    """Counts simulated rows, and tells how many there will be."""

    def __init__(
        self, progress: Callable[[int, int], None] | None, fit: int, pooled: int, rounds: int, parameters: int
    ) -> None:
        self._progress = progress
        self._done = 0
        kept = min(parameters, MOST_PARAMETERS)
        self._total = 2 * pooled + fit * (1 + parameters + rounds * (1 + EVALUATIONS * (kept + 1)) + kept)

    def add(self, count: int) -> None:
        self._done += count
        if self._progress is not None:
            self._progress(self._done, max(self._total, self._done))

    def end(self) -> None:
        if self._progress is not None:
            self._progress(self._done, self._done)
