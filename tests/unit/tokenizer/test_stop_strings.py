"""Stop strings: the cases people meet."""

import pytest

from jaxserve.tokenizer.stop_strings import StopOutput, StopStrings


def test_no_stop_strings_hold_nothing_back() -> None:
    strings = StopStrings(())
    assert strings.push("text") == StopOutput("text")
    assert strings.flush() == StopOutput("")


def test_possible_beginning_is_held_until_decided() -> None:
    strings = StopStrings(("\nUser:",))
    assert strings.push("hello\nUs") == StopOutput("hello")
    assert strings.push("ually") == StopOutput("\nUsually")
    assert strings.push("\nUser") == StopOutput("")
    assert strings.flush() == StopOutput("\nUser")


@pytest.mark.parametrize(("include", "text"), [(False, "a"), (True, "a###")])
def test_text_ends_before_or_after_the_match(include: bool, text: str) -> None:
    strings = StopStrings(("###",), include_in_output=include)
    parts = [strings.push(part) for part in ("a#", "#", "#b")]
    assert "".join(part.text for part in parts) == text
    assert parts[-1].matched == "###"
    assert strings.push("more ###") == StopOutput("")
    assert strings.flush() == StopOutput("")


def test_first_to_be_complete_wins_then_the_longest() -> None:
    assert StopStrings(("abcd", "bc")).push("xabcd") == StopOutput("xa", "bc")
    assert StopStrings(("c", "bc")).push("xabc") == StopOutput("xa", "bc")


def test_long_repetitive_stop_strings() -> None:
    stop = "a" * 5_000 + "b"
    strings = StopStrings((stop,))
    sent = "".join(strings.push("a" * 3).text for _ in range(10_000))
    assert sent == "a" * 25_000
    assert strings.push("b") == StopOutput("", stop)


def test_empty_stop_string_is_refused() -> None:
    with pytest.raises(ValueError, match="must not be empty"):
        StopStrings(("a", ""))
