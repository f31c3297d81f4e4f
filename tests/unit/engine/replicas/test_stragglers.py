"""Who is slow, for how long, and when it is tried again."""

from jaxserve.engine.replicas.stragglers import Stragglers

SLOW, WELL = {"a": 1.0, "b": 0.1, "c": 0.1}, {"a": 0.1, "b": 0.1, "c": 0.1}


def test_slow_for_long_enough_then_out_then_tried_again():
    stragglers = Stragglers(3.0, 10.0, 30.0)
    assert [stragglers.look(SLOW, now) for now in (0.0, 9.9)] == [[], []]
    assert stragglers.look(SLOW, 10.0) == ["a"]
    assert stragglers.quarantined == {"a"}
    stragglers.look(SLOW, 39.9)
    assert stragglers.quarantined == {"a"}
    stragglers.look(SLOW, 40.0)
    assert not stragglers.quarantined
    assert stragglers.look(SLOW, 60.0) == [], "what is known of it is from before"
    stragglers.look(SLOW | {"a": 0.9}, 61.0)
    assert stragglers.look(SLOW | {"a": 0.8}, 71.0) == ["a"]


def test_one_lull_is_enough_to_begin_anew():
    stragglers = Stragglers(3.0, 10.0, 30.0)
    stragglers.look(SLOW, 0.0)
    stragglers.look(WELL, 5.0)
    assert stragglers.look(SLOW, 10.0) == []
    assert stragglers.look(SLOW, 20.0) == ["a"]


def test_nobody_is_compared_with_the_unknown_and_who_left_is_forgotten():
    stragglers = Stragglers(3.0, 0.0, 30.0)
    for now in range(3):
        assert stragglers.look({"a": 1.0, "b": 0.0}, now) == []
        assert stragglers.look({"a": 1.0}, now) == []
    stragglers.look(SLOW, 5.0)
    assert stragglers.look(SLOW, 6.0) == ["a"]
    stragglers.look({"b": 0.1}, 7.0)
    assert not stragglers.quarantined


def test_of_two_the_slower_one_is_slow():
    stragglers = Stragglers(3.0, 0.0, 30.0)
    stragglers.look({"a": 1.0, "b": 0.1}, 0.0)
    assert stragglers.look({"a": 1.0, "b": 0.1}, 1.0) == ["a"]
