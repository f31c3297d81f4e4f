"""Loading and compiling at once: together, told in turn, and neither outlives the other's failure."""

import threading

import pytest

from jaxserve.engine.startup import both
from tests.support.engine import silent

WAIT = 30  # seconds, after which a test has failed


def test_both_run_at_once_and_give_their_results():
    here_runs, beside_runs = threading.Event(), threading.Event()

    def here(progress):
        here_runs.set()
        assert beside_runs.wait(WAIT)
        return threading.current_thread()

    def beside(progress):
        beside_runs.set()
        assert here_runs.wait(WAIT)
        return threading.current_thread()

    mine, other = both(here, beside, silent)
    assert mine.result is threading.current_thread()
    assert other.result is not mine.result
    assert min(mine.seconds, other.seconds) > 0


def test_progress_is_told_one_call_at_a_time():
    told, inside = [], threading.Lock()

    def progress(*line):
        assert inside.acquire(blocking=False)
        told.append(line)
        inside.release()

    def work(name):
        def run(progress):
            for number in range(200):
                progress(name, number, 200)

        return run

    both(work("here"), work("beside"), progress)
    for name in ("here", "beside"):
        assert [line for line in told if line[0] == name] == [(name, number, 200) for number in range(200)]


@pytest.mark.parametrize("failing", ["here", "beside"])
def test_a_failure_ends_the_other(failing):
    """The other goes on until it tells something, and no further; nothing more is told then."""
    told, failed = [], threading.Event()
    turns: list[int | str] = []

    def fails(progress):
        failed.set()
        raise ValueError("broken")

    def works(progress):
        try:
            for number in range(10**9):
                turns.append(number)
                progress("works", number, 10**9)
        finally:
            turns.append("ended")

    order = (fails, works) if failing == "here" else (works, fails)
    with pytest.raises(ValueError, match="broken"):
        both(*order, lambda *line: told.append(line))
    assert turns[-1] == "ended"
    assert len(told) in (len(turns) - 2, len(turns) - 1)


def test_a_progress_that_raises_ends_both():
    """A start that is cancelled."""
    ended = []

    def work(progress):
        try:
            while True:
                progress("work", 1, 2)
        finally:
            ended.append("work")

    def cancelled(*line):
        raise KeyError("cancelled")

    with pytest.raises(KeyError, match="cancelled"):
        both(work, work, cancelled)
    assert ended == ["work", "work"]


def test_what_failed_first_is_what_is_raised():
    first = threading.Event()

    def here(progress):
        assert first.wait(WAIT)
        while True:
            progress("here", 0, 1)

    def beside(progress):
        first.set()
        raise ValueError("beside failed")

    with pytest.raises(ValueError, match="beside failed"):
        both(here, beside, silent)
