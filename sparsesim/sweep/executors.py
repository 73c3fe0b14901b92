"""Who evaluates the tasks: this process, worker processes of this machine, or a Dask cluster.

All have the same few methods; the driver knows no other difference. If a worker dies, what it had goes to another;
a point that kills its worker when it runs alone (on a cluster: again and again) is a failed point.
"""

from __future__ import annotations

import logging
import math
import queue
import re
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, Protocol

from sparsesim.errors import UserError
from sparsesim.processes import worker_processes
from sparsesim.sweep.address import model_version
from sparsesim.sweep.evaluate import Context, Outcome, Task, evaluate, failure, set_context

__all__ = ["Executor", "open_executor"]

#: tasks that a worker has waiting, so that it need not wait for the client; the same across a network
AHEAD, CLUSTER_AHEAD = 2, 4
#: how long to wait for the scheduler, and for its first worker; how often to look whether it is still there [s]
CONNECT_S, CHECK_S = 30.0, 5.0
#: how long a scheduler that is gone may hold up the end [s]
CLOSE_S = 5.0
ADDRESS = re.compile(r"(tcp|tls|ws|wss|ucx)://(\[[0-9A-Fa-f:.]+\]|[^\s:/\[\]]+):[0-9]{1,5}")
LOST = "--cluster: expected the Dask scheduler at {} until the end, lost it; finished points are kept"


class Executor(Protocol):
    """Evaluates tasks in any order."""

    @property
    def slots(self) -> int:
        """Tasks that are worth having under way."""

    def submit(self, task: Task) -> None:
        """Take a task."""

    def wait(self) -> list[Outcome]:
        """At least one outcome of the tasks under way."""


@contextmanager
def open_executor(context: Context, jobs: int, cluster: str | None = None) -> Iterator[Executor]:
    """An executor of `jobs` processes (1: this one), or of the Dask cluster at the address `cluster`.

    ``local`` starts a Dask cluster of `jobs` workers on this machine.

    Raises
    ------
    UserError
        No scheduler at that address, no workers, or workers with another version of the model.
    """
    if cluster is not None:
        with _dask(context, jobs, cluster) as executor:
            yield executor
    elif jobs == 1:
        set_context(context)
        yield _Here()
    else:
        with ExitStack() as stack:
            yield _Processes(context, jobs, stack)


class _Here:
    """One task at a time, in this process."""

    slots = 1

    def __init__(self) -> None:
        self._tasks: deque[Task] = deque()

    def submit(self, task: Task) -> None:
        self._tasks.append(task)

    def wait(self) -> list[Outcome]:
        return [evaluate(self._tasks.popleft())]


class _Processes:
    """Worker processes. A pool that breaks is made anew, and what was under way then runs alone, task by task."""

    def __init__(self, context: Context, jobs: int, stack: ExitStack) -> None:
        self.slots = jobs * AHEAD
        self._context, self._jobs, self._stack = context, jobs, stack
        self._waiting: deque[Task] = deque()
        self._running: dict[Future[Outcome], Task] = {}
        self._suspects = 0
        self._pool = self._start()

    def _start(self) -> ProcessPoolExecutor:
        manager = worker_processes([self._jobs], set_context, (self._context,))
        return self._stack.enter_context(manager)[0]

    def submit(self, task: Task) -> None:
        self._waiting.append(task)
        self._give()

    def _give(self) -> None:
        while self._waiting and len(self._running) < (1 if self._suspects else self.slots):
            task = self._waiting.popleft()
            try:
                future = self._pool.submit(evaluate, task)
            except BrokenProcessPool as err:
                future = Future()
                future.set_exception(err)
            self._running[future] = task

    def wait(self) -> list[Outcome]:
        outcomes: list[Outcome] = []
        while not outcomes:
            lost = self._collect(outcomes)
            if self._suspects:
                # a suspect ran alone: it is cleared, or found guilty
                self._suspects -= 1
                outcomes += [failure(task.position, "the worker process died") for task in lost]
            elif lost:
                self._suspects = len(lost)
                self._waiting.extendleft(sorted(lost, key=lambda task: -task.position))
            if lost:
                self._pool = self._start()
            self._give()
        return outcomes

    def _collect(self, outcomes: list[Outcome]) -> list[Task]:
        """Wait for a task; add what it returned to `outcomes`, return the tasks that died with their worker."""
        lost: list[Task] = []
        done = wait(self._running, return_when=FIRST_COMPLETED).done
        if any(isinstance(future.exception(), BrokenProcessPool) for future in done):
            done = wait(self._running).done  # the others end with the same error
        for future in done:
            task = self._running.pop(future)
            if isinstance(future.exception(), BrokenProcessPool):
                lost.append(task)
            else:
                outcomes.append(future.result())
        return lost


@contextmanager
def _dask(context: Context, jobs: int, address: str) -> Iterator[Executor]:
    try:
        import distributed
    except ImportError:
        raise UserError("--cluster: expected Dask (pip install 'sparsesim[cluster]'), found none") from None
    log = logging.getLogger("distributed.client")
    level = log.level
    with ExitStack() as stack:
        log.setLevel(logging.CRITICAL)  # a lost scheduler is our error line, not its traceback
        stack.callback(log.setLevel, level)
        if address == "local":
            # a task leaves nothing on a worker that the disk would be needed for
            local = distributed.LocalCluster(
                n_workers=jobs, threads_per_worker=1, dashboard_address="127.0.0.1:0", host="127.0.0.1", silence_logs=50
            )
            address = stack.enter_context(local).scheduler_address
        elif not ADDRESS.fullmatch(address):
            raise UserError(f"--cluster: expected local, or an address such as tcp://host:8786, found {address!r}")
        try:
            client = distributed.Client(address, timeout=CONNECT_S, set_as_default=False)
        except (OSError, ValueError, TypeError) as err:
            raise UserError(f"--cluster: expected a Dask scheduler at {address}, found none: {err}") from None
        stack.callback(client.close, timeout=CLOSE_S)
        yield _Dask(client, context)


def _context_plugin(context: Context) -> Any:
    """What gives every worker of a cluster, those that join later too, the context."""
    from distributed import WorkerPlugin

    class ContextPlugin(WorkerPlugin):
        name = "sparsesim-context"

        def setup(self, worker: Any) -> None:
            set_context(context)

    return ContextPlugin()


class _Dask:
    """A cluster: the scheduler gives tasks of a lost worker to another; results are released as they come."""

    def __init__(self, client: Any, context: Context) -> None:
        self._client = client
        self._address = client.scheduler.address
        self._done: queue.SimpleQueue[tuple[Task, Any]] = queue.SimpleQueue()
        self._futures: dict[int, Any] = {}
        self._slots, self._counted = 1, -math.inf
        try:
            client.wait_for_workers(1, timeout=CONNECT_S)
        except TimeoutError:
            raise UserError(
                f"--cluster: expected a worker within {CONNECT_S:g} s, found none at {client.scheduler.address}"
            ) from None
        models = client.run(model_version)
        if odd := sorted(f"{worker} has {found}" for worker, found in models.items() if found != context.model):
            raise UserError(f"--cluster: expected workers with model {context.model}, found {', '.join(odd)}")
        client.register_plugin(_context_plugin(context))

    def _check(self) -> None:
        """Raise `UserError` if the scheduler is gone: even if it came back, it would not know the tasks."""
        if self._client.status != "running":
            raise UserError(LOST.format(self._address))

    @property
    def slots(self) -> int:
        self._check()
        now = time.monotonic()
        if now - self._counted > CHECK_S:  # workers come and go; to ask takes the scheduler's time
            workers = self._client.scheduler_info(n_workers=-1)["workers"].values()
            self._slots = max(1, sum(worker["nthreads"] for worker in workers)) * CLUSTER_AHEAD
            self._counted = now
        return self._slots

    def submit(self, task: Task) -> None:
        future = self._client.submit(evaluate, task, pure=False, key=f"sparsesim-{task.position}-{id(task):x}")
        self._futures[task.position] = future
        future.add_done_callback(lambda future: self._done.put((task, future)))

    def wait(self) -> list[Outcome]:
        found: list[tuple[Task, Any]] = []
        while not found:
            with suppress(queue.Empty):
                found.append(self._done.get(timeout=CHECK_S))
            self._check()
        while not self._done.empty():
            found.append(self._done.get())
        if any(future.cancelled() for _, future in found):
            raise UserError(LOST.format(self._address))
        return [self._outcome(task, future) for task, future in found]

    def _outcome(self, task: Task, future: Any) -> Outcome:
        del self._futures[task.position]
        try:
            outcome: Outcome = future.result(timeout=CONNECT_S)
        except Exception as err:  # the cluster gave the task up
            return failure(task.position, f"{type(err).__name__}: {' '.join(str(err).split())}")
        finally:
            future.release()
        return outcome
