"""Worker processes that end with their parent: on an error, on Ctrl-C, and when the parent is killed.

Workers are spawned, not forked, so that they start from the same state everywhere. They never see Ctrl-C (the
parent ends them), and a thread in each ends it as soon as the parent is gone.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from typing import Any

__all__ = ["worker_processes"]


@contextmanager
def worker_processes(
    sizes: Sequence[int], initializer: Callable[..., None] | None = None, initargs: tuple[Any, ...] = ()
) -> Iterator[list[ProcessPoolExecutor]]:
    """Executors of `sizes` processes each. Left by an exception, running work is ended, not waited for."""
    context = multiprocessing.get_context("spawn")
    executors = [
        ProcessPoolExecutor(size, mp_context=context, initializer=_begin, initargs=(initializer, initargs))
        for size in sizes
    ]
    try:
        with _interrupts_held():  # children inherit it: a Ctrl-C while they start leaves them alone
            for executor, size in zip(executors, sizes, strict=True):
                for _ in range(size):
                    executor.submit(_nothing)
        yield executors
    except BaseException:
        for executor in executors:
            executor.shutdown(wait=False, cancel_futures=True)
        for child in multiprocessing.active_children():
            child.terminate()
        raise
    for executor in executors:
        executor.shutdown()


@contextmanager
def _interrupts_held() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "pthread_sigmask"):
        yield
        return
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def _begin(initializer: Callable[..., None] | None, initargs: tuple[Any, ...]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    if initializer is not None:
        initializer(*initargs)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _nothing() -> None:
    """Work that makes an executor start a process."""
