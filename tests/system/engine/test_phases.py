"""The parts of a start, each with its own time."""

import subprocess
import sys

import pytest

from jaxserve.engine import phases
from jaxserve.engine.phases import PhaseTimer, StartTimes, process_age


def test_every_phase_has_the_time_since_the_one_before(monkeypatch):
    times = iter([10.0, 11.0, 15.0, 15.5, 22.5])
    monkeypatch.setattr(phases, "process_age", lambda: 2.0)
    timer = PhaseTimer(lambda: next(times))
    for phase in ("files", "building", "rest", "warm"):
        timer.ended(phase)
    assert timer.start(3.5, 4.0) == StartTimes(imports=2.0, files=1.0, weights=3.5, programs=4.0, warm=7.0, rest=0.5)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells when a process began")
def test_a_process_is_as_old_as_it_is():
    code = "import time; time.sleep(0.3); from jaxserve.engine.phases import process_age; print(process_age())"
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert 0.3 <= float(child.stdout) < process_age()


def test_where_the_system_does_not_tell_it_is_nothing(monkeypatch, tmp_path):
    monkeypatch.setattr(phases, "_STAT", tmp_path / "stat")
    assert process_age() == 0.0
