"""What the cold start benchmark reads in a banner, and what it makes of several starts."""

from benchmarks.cold_start import headline, phases, summary
from jaxserve.engine.banner import start_line
from jaxserve.engine.phases import StartTimes

TIMES = {"imports": 1.5, "files": 0.2, "weights": 3.0, "programs": 20.5, "warm": 0.1, "rest": 0.4}


def start(seconds, times):
    return {"seconds": seconds, "processor_seconds": 2 * seconds, "phases": times}


def test_every_phase_is_read_in_the_banner():
    assert phases(f"jaxserve 1\n  mesh     cpu x1\n{start_line(StartTimes(**TIMES))}\n  setting  port: 0\n") == TIMES


def test_medians_of_the_rounds():
    later = {name: 10 * seconds for name, seconds in TIMES.items()}
    result = summary([start(9.0, later), start(3.0, TIMES), start(4.0, TIMES)])
    assert (result["seconds"], result["processor_seconds"], result["phases"]) == (4.0, 8.0, TIMES)


def test_the_first_start_stands_beside_the_second():
    second = dict.fromkeys(TIMES, 0.5)
    result = headline({"first": start(20.0, TIMES), "second": start(4.0, second)})
    assert (result["first_seconds"], result["second_seconds"]) == (20.0, 4.0)
    assert result["phases"]["programs"] == [20.5, 0.5]
    assert result["phases"].keys() == TIMES.keys()
