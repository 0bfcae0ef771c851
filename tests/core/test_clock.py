"""Clocks: the virtual one jumps, the wall one waits to deadlines or until it is woken."""

from __future__ import annotations

import threading

from headway.core.clock import VirtualClock, WallClock


def test_virtual_time_never_runs_backwards() -> None:
    clock = VirtualClock()
    clock.wait_until(5.0)
    clock.wait_until(3.0)
    clock.finish_step(1.0, 2.0)
    assert clock.now() == 5.0
    clock.finish_step(4.0, 2.5)
    assert clock.now() == 6.5


def test_virtual_time_stands_still_until_woken_when_nothing_is_announced() -> None:
    """Not a busy loop: the thread sleeps until somebody sets the event, which is then cleared."""
    clock, wake = VirtualClock(), threading.Event()
    thread = threading.Thread(target=clock.wait_until, args=(None, wake))
    thread.start()
    assert thread.is_alive()
    wake.set()
    thread.join(timeout=30)
    assert not thread.is_alive() and not wake.is_set() and clock.now() == 0.0
    clock.wait_until(None)
    assert clock.now() == 0.0


def test_the_wall_clock_sleeps_a_priced_step_out_and_not_longer_than_needed() -> None:
    clock = WallClock()
    started_at = clock.now()
    clock.finish_step(started_at, 0.002)
    assert clock.now() >= started_at + 0.002
    clock.finish_step(started_at - 100.0, 50.0)  # already over: returns at once


def test_the_wall_clock_waits_to_an_instant_or_until_woken() -> None:
    clock, wake = WallClock(), threading.Event()
    instant = clock.now() + 0.002
    clock.wait_until(instant)
    assert clock.now() >= instant
    wake.set()
    clock.wait_until(clock.now() + 3600.0, wake)  # set already: returns at once
    assert not wake.is_set()
    clock.wait_until(clock.now() - 1.0, wake)
