"""Shapes of log-probabilities, and where each token starts in the text."""

import math

from jaxserve.engine.events import PositionLogprobs, Started, TokenLogprob
from server.http.logprobs import TextLogprobs, chat_logprobs, joined, prompt_logprobs
from tests.support.scripted import BOS, ByteTokenizer


def position(raw: bytes, *, token_id: int = 1, logprob: float = -1.0, top: tuple[TokenLogprob, ...] = ()) -> PositionLogprobs:
    return PositionLogprobs(TokenLogprob(token_id, logprob, 1, raw.decode("utf-8", "replace"), raw), top)


def test_offsets_count_characters_not_bytes_and_not_special_tokens() -> None:
    pieces = TextLogprobs(ByteTokenizer(), skip_special_tokens=True)
    first = pieces.output([position(b"\xc3"), position(b"\xa9"), position(b"<s>", token_id=BOS)])
    second = pieces.output([position(b"ab"), position(b"c")])
    assert joined(first, second)["text_offset"] == [0, 0, 1, 1, 3]


def test_special_tokens_count_where_they_are_written() -> None:
    pieces = TextLogprobs(ByteTokenizer(), skip_special_tokens=False)
    assert pieces.output([position(b"<s>", token_id=BOS), position(b"a")])["text_offset"] == [0, 3]


def test_echoed_prompt_starts_without_a_logprob() -> None:
    pieces = TextLogprobs(ByteTokenizer(), skip_special_tokens=True)
    started = Started("r", (97, 98), 0, 0.0, (None, position(b"b", token_id=98)))
    reply = pieces.prompt(started)
    assert reply == {
        "tokens": ["a", "b"],
        "token_logprobs": [None, -1.0],
        "top_logprobs": [None, {"b": -1.0}],
        "text_offset": [0, 1],
    }
    assert pieces.output([position(b"c")])["text_offset"] == [2]


class LeadingSpaces(ByteTokenizer):
    """Writes the space before a word into its token, as SentencePiece does."""

    def token_bytes(self, token_id: int) -> bytes:
        return {1: b" ab", 2: b" c"}[token_id]

    def leading_bytes(self, token_id: int) -> tuple[bytes, bool]:
        return self.token_bytes(token_id).removeprefix(b" "), False


def test_echoed_prompt_knows_that_the_first_word_has_no_space() -> None:
    pieces = TextLogprobs(LeadingSpaces(), skip_special_tokens=True)
    started = Started("r", (1, 2, 2), 0, 0.0, (None, position(b" c"), position(b" c")))
    assert pieces.prompt(started)["text_offset"] == [0, 2, 4]


def test_tokens_that_look_the_same_keep_the_likeliest() -> None:
    twins = (TokenLogprob(5, -0.25, 1, "\ufffd", b"\xc3"), TokenLogprob(6, -3.0, 2, "\ufffd", b"\xc4"))
    reply = TextLogprobs(ByteTokenizer(), skip_special_tokens=True).output([position(b"\xc4", logprob=-3.0, top=twins)])
    assert reply["top_logprobs"] == [{"\ufffd": -0.25}]


def test_impossible_tokens_have_a_number_that_json_can_write() -> None:
    reply = chat_logprobs([position(b"a", logprob=-math.inf)])
    assert reply["content"] == [{"token": "a", "logprob": -9999.0, "bytes": [97], "top_logprobs": []}]


def test_an_echo_that_is_scored_from_a_position_on() -> None:
    started = Started("a", (97, 98, 99), 0, 0.0, (None, None, position(b"c", token_id=99)))
    assert TextLogprobs(ByteTokenizer(), skip_special_tokens=True).prompt(started) == {
        "tokens": ["a", "b", "c"],
        "token_logprobs": [None, None, -1.0],
        "top_logprobs": [None, None, {"c": -1.0}],
        "text_offset": [0, 1, 2],
    }


def test_prompt_logprobs_are_keyed_by_token_id() -> None:
    top = (TokenLogprob(7, -0.5, 1, "b", b"b"),)
    assert prompt_logprobs([None, position(b"a", token_id=3, top=top)]) == [
        None,
        {
            "3": {"logprob": -1.0, "rank": 1, "decoded_token": "a"},
            "7": {"logprob": -0.5, "rank": 1, "decoded_token": "b"},
        },
    ]
