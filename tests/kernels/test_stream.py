"""Blocks on several threads: in order, in the caller's thread, the first error first, and nobody waits for ever."""

from __future__ import annotations

import threading
import time

import pytest

from kullback._kernels import cpu
from kullback._kernels.stream import in_order

LARGE = 1 << 30
# Far more than any of these takes: only a deadlock gets there.
PATIENCE = 20.0


@pytest.fixture(params=[1, 2, 4])
def threads(request, monkeypatch):
    monkeypatch.setattr(cpu, "thread_count", lambda: request.param)
    monkeypatch.setattr(cpu, "_pool", None)
    return request.param


def test_taken_in_order_by_the_caller_read_one_at_a_time(threads):
    read, taken, workers, reading = [], [], set(), threading.Lock()

    def read_one(task):
        assert reading.acquire(blocking=False)
        read.append(task)
        reading.release()
        return task

    def work(task):
        workers.add(threading.get_ident())
        time.sleep(0.02 if task % 3 == 0 else 0.001)  # so that later ones are done first
        return task * task

    def take(square):
        taken.append((square, threading.get_ident()))

    in_order(range(30), read_one, work, take, size=LARGE)
    assert read == list(range(30))
    assert taken == [(n * n, threading.get_ident()) for n in range(30)]
    assert len(workers) == threads


def test_small_work_stays_in_the_callers_thread(threads):
    workers = set()
    in_order(range(5), lambda task: task, lambda task: workers.add(threading.get_ident()), lambda result: None, size=10)
    assert workers == {threading.get_ident()}


@pytest.mark.parametrize("step", ["read", "work", "take"])
def test_the_first_error_counts_and_what_came_before_is_taken(threads, step):
    taken, begun = [], []

    def fail(here, task):
        if here == "work":
            time.sleep(0.05 if task == 5 else 0.002)  # the sixth is there before the fifth
        if here == step and task in (5, 6):
            raise ValueError(f"task {task}")
        return task

    def read(task):
        begun.append(task)
        return fail("read", task)

    def take(task):
        fail("take", task)
        taken.append(task)

    with pytest.raises(ValueError, match="task 5"):
        in_order(range(1000), read, lambda task: fail("work", task), take, size=LARGE)
    assert taken == [0, 1, 2, 3, 4]
    assert len(begun) < 1000  # the others have stopped


def test_an_interrupt_stops_the_others(threads):
    begun = []

    def work(task):
        begun.append(task)
        if threading.get_ident() == caller and task > 2:
            raise KeyboardInterrupt
        time.sleep(0.001)

    caller = threading.get_ident()
    with pytest.raises(KeyboardInterrupt):
        in_order(range(100_000), lambda task: task, work, lambda result: None, size=LARGE)
    assert len(begun) < 100_000


def test_what_work_calls_may_use_threads_too(threads):
    sums = []

    def work(task):
        found = []
        cpu.on_threads(lambda queue: found.extend(queue), list(range(10)), LARGE)
        return sum(found)

    in_order(range(20), lambda task: task, work, sums.append, size=LARGE)
    assert sums == [45] * 20


def test_nobody_waits_for_a_pool_that_is_busy(monkeypatch):
    """A long job of one caller holds the pool's threads; another's is done by itself, and returns."""
    threads = 3
    monkeypatch.setattr(cpu, "thread_count", lambda: threads)
    monkeypatch.setattr(cpu, "_pool", None)
    release, held, done = threading.Event(), threading.Semaphore(0), []

    def long_job(queue):
        held.release()
        release.wait(PATIENCE)

    first = threading.Thread(target=cpu.on_threads, args=(long_job, list(range(threads)), LARGE))
    first.start()
    for _ in range(threads):
        assert held.acquire(timeout=PATIENCE)
    try:
        second = threading.Thread(target=cpu.on_threads, args=(lambda queue: done.extend(queue), list(range(8)), LARGE))
        second.start()
        second.join(PATIENCE)
        assert not second.is_alive()
        assert done == list(range(8))
    finally:
        release.set()
        first.join()
