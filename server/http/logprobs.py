"""Log-probabilities in the shapes of chat, of text completions, and of prompts."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence

from jaxserve.engine.events import PositionLogprobs, Started, TokenLogprob
from jaxserve.tokenizer.base import Tokenizer, token_text
from server.http.replies import (
    AlternativeReply,
    ChatLogprobsReply,
    CompletionLogprobsReply,
    PromptLogprobsReply,
    PromptTokenReply,
    TokenLogprobReply,
    TokenLogprobsReply,
)

# JSON has no -inf; OpenAI's own value for "very unlikely".
_LEAST = -9999.0


def chat_logprobs(positions: Iterable[PositionLogprobs], *, as_ids: bool = False) -> ChatLogprobsReply:
    """Chat's shape; `as_ids` names tokens by their ids instead of their texts."""
    return {
        "content": [
            {**_alternative(position.chosen, as_ids), "top_logprobs": [_alternative(token, as_ids) for token in position.top]}
            for position in positions
        ]
    }


def token_logprobs(positions: Iterable[PositionLogprobs], count: int) -> TokenLogprobsReply:
    """What vLLM tells of outputs in tokens: of each position `count` tokens, one at least, the one that stands there first."""
    return {
        "content": [
            {
                **_ranked(position.chosen),
                "top_logprobs": [_ranked(token) for token in _chosen_first(position)[: max(count, 1)]],
            }
            for position in positions
        ]
    }


def prompt_logprobs(positions: Iterable[PositionLogprobs | None]) -> PromptLogprobsReply:
    """The prompt's own, in vLLM's shape: the prompt's token first, then the likeliest."""
    return [None if position is None else _prompt_position(position) for position in positions]


class TextLogprobs:
    """Text completions' shape, piece by piece: it needs to know how much text came before.

    `as_ids` names tokens by their ids instead of their texts.
    """

    def __init__(self, tokenizer: Tokenizer, *, skip_special_tokens: bool, as_ids: bool = False) -> None:
        self._tokenizer = tokenizer
        self._as_ids = as_ids
        self._without_text = tokenizer.special_token_ids if skip_special_tokens else frozenset[int]()
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._offset = 0

    def prompt(self, started: Started) -> CompletionLogprobsReply:
        """The echoed prompt's. Its first token has no log-probability, as nothing precedes it, nor have those not asked for."""
        assert started.prompt_logprobs is not None
        scored = [position for position in started.prompt_logprobs if position is not None]
        before = started.prompt_token_ids[: len(started.prompt_token_ids) - len(scored)]
        reply: CompletionLogprobsReply = {
            "tokens": [_name(token, token_text(self._tokenizer, token), self._as_ids) for token in before],
            "token_logprobs": [None] * len(before),
            "top_logprobs": [None] * len(before),
            "text_offset": self._prompt_offsets(started.prompt_token_ids),
        }
        self._append(reply, scored)
        return reply

    def output(self, positions: Sequence[PositionLogprobs]) -> CompletionLogprobsReply:
        reply: CompletionLogprobsReply = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
        self._append(reply, positions)
        reply["text_offset"] = [self._place(position.chosen.token_id, position.chosen.raw) for position in positions]
        return reply

    def _prompt_offsets(self, token_ids: Sequence[int]) -> list[int]:
        """Where each token of an echoed prompt starts: the first word may lose the space that its token carries."""
        offsets, leading = [], True
        for token in token_ids:
            if leading:
                raw, leading = self._tokenizer.leading_bytes(token)
            else:
                raw = self._tokenizer.token_bytes(token)
            offsets.append(self._place(token, raw))
        return offsets

    def _place(self, token_id: int, raw: bytes) -> int:
        """Where the token's text starts, counted in characters; moves behind it."""
        start = self._offset
        if token_id not in self._without_text:
            self._offset += len(self._decoder.decode(raw))
        return start

    def _append(self, reply: CompletionLogprobsReply, positions: Iterable[PositionLogprobs]) -> None:
        """Tokens and their values, without offsets."""
        for position in positions:
            chosen = position.chosen
            top: dict[str, float] = {}
            for token in (*position.top, chosen):  # of tokens that look the same, the likeliest counts
                top.setdefault(_name(token.token_id, token.text, self._as_ids), _finite(token.logprob))
            reply["tokens"].append(_name(chosen.token_id, chosen.text, self._as_ids))
            reply["token_logprobs"].append(_finite(chosen.logprob))
            reply["top_logprobs"].append(top)


def joined(first: CompletionLogprobsReply, second: CompletionLogprobsReply) -> CompletionLogprobsReply:
    return {
        "tokens": first["tokens"] + second["tokens"],
        "token_logprobs": first["token_logprobs"] + second["token_logprobs"],
        "top_logprobs": first["top_logprobs"] + second["top_logprobs"],
        "text_offset": first["text_offset"] + second["text_offset"],
    }


def _chosen_first(position: PositionLogprobs) -> Sequence[TokenLogprob]:
    chosen = position.chosen
    return (chosen, *(token for token in position.top if token.token_id != chosen.token_id))


def _ranked(token: TokenLogprob) -> TokenLogprobReply:
    return {"token_id": token.token_id, "logprob": _finite(token.logprob), "rank": token.rank}


def _alternative(token: TokenLogprob, as_ids: bool) -> AlternativeReply:
    name = _name(token.token_id, token.text, as_ids)
    return {"token": name, "logprob": _finite(token.logprob), "bytes": list(token.raw)}


def _name(token_id: int, text: str, as_ids: bool) -> str:
    return f"token_id:{token_id}" if as_ids else text  # vLLM's way to write an id where a text is due


def _prompt_position(position: PositionLogprobs) -> dict[str, PromptTokenReply]:
    return {
        str(token.token_id): {"logprob": _finite(token.logprob), "rank": token.rank, "decoded_token": token.text}
        for token in (position.chosen, *position.top)
    }


def _finite(logprob: float) -> float:
    return max(logprob, _LEAST)
