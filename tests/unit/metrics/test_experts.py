from jaxserve.metrics.instruments import Instruments
from jaxserve.metrics.steps import AT_ONCE, ExpertRecorder, StepRecorder
from jaxserve.metrics.turn import ExecutorCounts, LayerTokens, Turn
from tests.unit.metrics.scrape import recorded


def shown(instruments: Instruments) -> dict[tuple[str, str], float]:
    """Values by layer and expert."""
    return {
        (place[1], place[0]): value for (name, place), value in recorded(instruments).items() if name == "expert_tokens_total"
    }


def test_an_idle_engine_writes_every_series():
    instruments = Instruments()
    recorder = ExpertRecorder(instruments, "sparse")
    recorder.record((LayerTokens(1, (3, 0)), LayerTokens(4, (1, 2))), everything=True)
    assert shown(instruments) == {("1", "0"): 3, ("1", "1"): 0, ("4", "0"): 1, ("4", "1"): 2}
    recorder.record((LayerTokens(1, (3, 5)), LayerTokens(4, (2, 2))), everything=True)
    assert shown(instruments) == {("1", "0"): 3, ("1", "1"): 5, ("4", "0"): 2, ("4", "1"): 2}


def test_a_busy_engine_writes_some_at_a_time_and_comes_round():
    instruments, count = Instruments(), 2 * AT_ONCE + 6
    recorder = ExpertRecorder(instruments, "sparse")
    for written in (AT_ONCE, 2 * AT_ONCE, count):
        recorder.record((LayerTokens(0, (1,) * count),), everything=False)
        assert sum(shown(instruments).values()) == written
    recorder.record((LayerTokens(0, (2,) * count),), everything=False)
    assert list(shown(instruments).values()).count(2) == AT_ONCE


def test_steps_bring_them_along():
    instruments, tokens = Instruments(), [(1,) * (AT_ONCE + 1), (2,) * (AT_ONCE + 1)]
    recorder = StepRecorder(instruments, "sparse", lambda: ExecutorCounts(expert_tokens=(LayerTokens(0, tokens[0]),)))
    assert sum(shown(instruments).values()) == AT_ONCE + 1
    tokens.pop(0)
    recorder.turned(Turn(0.0))
    recorder.turned(Turn(1.0, ended=1.0))
    assert sum(shown(instruments).values()) == 2 * AT_ONCE + 1
    recorder.turned(Turn(2.0, ended=2.0, idle=True))
    assert sum(shown(instruments).values()) == 2 * AT_ONCE + 2
