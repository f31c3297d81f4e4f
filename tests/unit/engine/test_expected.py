"""Sequences of lists that are about to come are counted until they come, or the list is over."""

from contextlib import suppress

from jaxserve.engine.expected import ExpectedRequests


def test_what_came_and_what_is_over_is_expected_no_more():
    expected = ExpectedRequests()
    with expected.expect("a", ["x", "y", "z"], 4), expected.expect("b", ["x"], 1):
        assert (expected.of("a"), expected.of("b"), expected.of("c"), expected.sequences) == (12, 1, 0, 13)
        expected.came("a", "y")
        expected.came("a", "y")
        expected.came("c", "y")
        assert (expected.of("a"), expected.of("b"), expected.sequences) == (8, 1, 9)
        with suppress(ValueError), expected.expect("a", ["w"], 2):
            assert expected.of("a") == 10
            raise ValueError
        assert expected.of("a") == 8
    assert (expected.of("a"), expected.of("b"), expected.sequences) == (0, 0, 0)
