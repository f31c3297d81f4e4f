"""SamplingParams: how the next token is chosen and when a sequence ends. Names and defaults follow vLLM's."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Any, cast

from jaxserve.errors import InvalidRequestError
from jaxserve.sampling.response import ResponseParams
from jaxserve.sampling.structured import FIELD, StructuredOutputsParams

# What the parameters of one request may list at most; docs/gateway.md says why.
MAX_STOP_STRINGS = 16
MAX_STOP_CHARS = 4096  # of all its stop strings together
MAX_STOP_TOKEN_IDS = 16
MAX_SEQUENCES = 128
MAX_LOGPROBS = 20
MAX_LOGIT_BIAS = 1024
MAX_LISTED_IDS = 32_768  # of allowed_token_ids; each sequence of a request counts the ids that it brings
MAX_INT32 = 2**31 - 1  # parameters go to the device as int32 and float32
MAX_FLOAT32 = 3.4e38
MAX_MIN_TOKENS = 2**30  # fits with the prompt's length added
RAW_LOGPROBS = "raw_logprobs"
PROCESSED_LOGPROBS = "processed_logprobs"
LOGPROBS_MODES = (RAW_LOGPROBS, PROCESSED_LOGPROBS)  # vLLM's names
_NEEDS_SCORES = "0, or left out, without prompt_logprobs"


@dataclass(frozen=True, slots=True)
class Numeric:
    """What a number of SamplingParams may be: every surface that takes it, and its documentation, follow this declaration.

    Attributes:
        low: the least it may be, or what it must be above if `above`.
        high: the most it may be; None for no bound.
        text: what it does, in a few words for people who write requests.
        above: see `low`.
        integer: whether it is one.
    """

    low: float
    high: float | None
    text: str
    above: bool = False
    integer: bool = False

    def check(self, name: str, value: Any) -> None:
        """Raise InvalidRequestError unless the value is such a number."""
        if self.integer:
            _require(name, isinstance(value, int) and not isinstance(value, bool), "an integer")
        else:
            _require(name, _is_number(value, MAX_FLOAT32), "a finite number")
        if not self.above:
            _in_range(name, value, self.low, self.high)
        elif self.high is None:
            _require(name, value > self.low, f"above {self.low:g}, got {value}")
        else:
            _require(name, self.low < value <= self.high, f"in ({self.low:g}, {self.high:g}], got {value}")


def _number(default: float, text: str, low: float, high: float | None, *, above: bool = False) -> Any:
    return field(default=default, metadata={_NUMERIC: Numeric(low, high, text, above, isinstance(default, int))})


_NUMERIC = "numeric"


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How to choose tokens for one request.

    Attributes:
        n: independent sequences for the prompt.
        max_tokens: tokens to generate at most; None means up to the context limit, 0 that only the prompt is scored.
        min_tokens: end-of-sequence and stop tokens are suppressed before this many tokens.
        temperature: 0 is greedy; larger is more random.
        top_k: keep the k likeliest tokens; 0 or -1 keeps all.
        top_p: keep the smallest set of likeliest tokens whose probability reaches this.
        min_p: drop tokens less likely than this times the likeliest one.
        typical_p: of what the others kept, keep the tokens whose information is nearest to the mean, until their probability
            reaches this; 1 keeps all (Meister et al., Locally Typical Sampling, 2022).
        top_n_sigma: keep tokens whose logit is at most so many standard deviations of all logits below the largest; 0 and below
            keep all (Tang et al., Top-n-sigma, 2024).
        presence_penalty: subtracted from the logit of every token generated so far.
        frequency_penalty: subtracted once for each time a token was generated.
        repetition_penalty: logits of tokens in prompt or output are divided (positive) or multiplied (negative) by this.
        max_draft_tokens: tokens that are guessed in a step and verified, at most; 0 for none, -1 for as many as pay. The tokens
            are the same either way.
        logit_bias: token id -> added to its logit.
        allowed_token_ids: only these tokens may be generated; None allows all.
        seed: makes the request's samples reproducible; None draws one.
        stop: strings that end the text; not included in it unless `include_stop_str_in_output`.
        stop_token_ids: tokens that end the sequence.
        ignore_eos: go on after the model's end-of-sequence token.
        include_stop_str_in_output: keep the matched stop string in the text.
        skip_special_tokens: leave special tokens out of the text.
        logprobs: log-probabilities of this many likeliest tokens (and the chosen one) per position; None for none.
        logprobs_mode: which they are: "raw_logprobs", the model's own, or "processed_logprobs", those that the token was drawn
            by: after penalties, biases, masks, temperature and truncation. Greedy tokens are not drawn: theirs are of
            temperature 1 and untruncated. None takes the engine's. Those of the prompt are always raw.
        prompt_logprobs: the same for prompt positions.
        prompt_logprobs_start: only for prompt positions from this one on; those before it may come from the prefix cache.
        structured_outputs: the form that the output must have; None for any.
    """

    n: int = 1
    max_tokens: int | None = 16
    min_tokens: int = 0
    temperature: float = _number(1.0, "0 takes the likeliest token", 0.0, 100.0)
    top_k: int = _number(0, "keep the k likeliest tokens; 0 and -1 keep all", -1, MAX_INT32)
    top_p: float = _number(1.0, "keep the likeliest tokens of so much probability together; 1 keeps all", 0.0, 1.0, above=True)
    min_p: float = _number(0.0, "keep tokens at least so likely, as a share of the likeliest; 0 keeps all", 0.0, 1.0)
    typical_p: float = _number(
        1.0, "keep the most typical tokens of so much probability together; 1 keeps all", 0.0, 1.0, above=True
    )
    top_n_sigma: float = _number(
        -1.0, "keep tokens with logits at most so many deviations below the largest; 0 and below keep all", -1000.0, 1000.0
    )
    presence_penalty: float = _number(0.0, "taken from a token's logit if it came before; 0 for none", -2.0, 2.0)
    frequency_penalty: float = _number(0.0, "taken from a token's logit for every time that it came; 0 for none", -2.0, 2.0)
    repetition_penalty: float = _number(
        1.0, "makes tokens of prompt and output so far less likely; 1 for none", 0.0, None, above=True
    )
    max_draft_tokens: int = _number(
        -1, "tokens guessed in a step at most, which changes none; 0 for none, -1 for as many as pay", -1, MAX_INT32
    )
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    allowed_token_ids: tuple[int, ...] | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    logprobs: int | None = None
    logprobs_mode: str | None = None
    prompt_logprobs: int | None = None
    prompt_logprobs_start: int = 0
    structured_outputs: StructuredOutputsParams | ResponseParams | None = None

    def __post_init__(self) -> None:
        for name in ("stop", "stop_token_ids", "allowed_token_ids"):
            value = getattr(self, name)
            if isinstance(value, str):
                object.__setattr__(self, name, (value,))
            elif value is not None:
                _require(name, isinstance(value, Iterable), "a list")
                object.__setattr__(self, name, tuple(value))
        for name, empty in (("stop", ()), ("stop_token_ids", ()), ("logit_bias", {})):
            if getattr(self, name) is None:  # vLLM's default
                object.__setattr__(self, name, empty)
        self._check_types()
        self._check_ranges()
        self._check_lists()

    def _check_types(self) -> None:
        for name in ("n", "min_tokens", "prompt_logprobs_start"):
            _require(name, isinstance(getattr(self, name), int) and not isinstance(getattr(self, name), bool), "an integer")
        for name in ("max_tokens", "seed", "logprobs", "prompt_logprobs"):
            value = getattr(self, name)
            _require(name, value is None or (isinstance(value, int) and not isinstance(value, bool)), "an integer or null")
        for name in ("ignore_eos", "include_stop_str_in_output", "skip_special_tokens"):
            _require(name, isinstance(getattr(self, name), bool), "true or false")
        _require("logit_bias", isinstance(self.logit_bias, Mapping), "a mapping from token ids to numbers")
        check_logprobs_mode(self.logprobs_mode, optional=True)
        form = isinstance(self.structured_outputs, StructuredOutputsParams | ResponseParams | None)
        _require(FIELD, form, "a StructuredOutputsParams, a ResponseParams or null")

    def _check_ranges(self) -> None:
        _in_range("n", self.n, 1, MAX_SEQUENCES)
        if self.max_tokens is not None:
            _in_range("max_tokens", self.max_tokens, 1 if self.prompt_logprobs is None else 0, None)
        if self.scores_only:
            _require("n", self.n == 1, f"1 with max_tokens 0, got {self.n}")
        most = MAX_MIN_TOKENS if self.max_tokens is None else self.max_tokens
        _in_range("min_tokens", self.min_tokens, 0, min(most, MAX_MIN_TOKENS))
        for name, numeric in NUMBERS.items():
            numeric.check(name, getattr(self, name))
        if self.seed is not None:
            _in_range("seed", self.seed, -(2**63), 2**64 - 1)
        for name in ("logprobs", "prompt_logprobs"):
            value = getattr(self, name)
            if value is not None:
                _in_range(name, value, 0, MAX_LOGPROBS)
        _in_range("prompt_logprobs_start", self.prompt_logprobs_start, 0, None)
        _require("prompt_logprobs_start", self.prompt_logprobs_start == 0 or self.prompt_logprobs is not None, _NEEDS_SCORES)

    def _check_lists(self) -> None:
        _require("stop", len(self.stop) <= MAX_STOP_STRINGS, f"at most {MAX_STOP_STRINGS} strings, got {len(self.stop)}")
        _require("stop", all(isinstance(s, str) and s for s in self.stop), "a list of non-empty strings")
        length = sum(map(len, self.stop))
        _require("stop", length <= MAX_STOP_CHARS, f"at most {MAX_STOP_CHARS} characters in all, got {length}")
        _require(
            "stop_token_ids",
            len(self.stop_token_ids) <= MAX_STOP_TOKEN_IDS,
            f"at most {MAX_STOP_TOKEN_IDS} ids, got {len(self.stop_token_ids)}",
        )
        biases = len(self.logit_bias)
        _require("logit_bias", biases <= MAX_LOGIT_BIAS, f"at most {MAX_LOGIT_BIAS} entries, got {biases}")
        for token, bias in self.logit_bias.items():
            _require("logit_bias", _is_token_id(token), f"keyed by token ids, got {token!r}")
            _require("logit_bias", _is_number(bias, 100.0), f"in [-100, 100], got {bias!r}")
        if self.allowed_token_ids is not None:
            allowed = len(self.allowed_token_ids)
            _require("allowed_token_ids", allowed > 0, "a non-empty list or null")
            _require("allowed_token_ids", allowed <= MAX_LISTED_IDS, f"at most {MAX_LISTED_IDS} ids, got {allowed}")
        for name in ("stop_token_ids", "allowed_token_ids"):
            ids = getattr(self, name) or ()
            _require(name, _are_token_ids(ids), "a list of token ids")

    @property
    def scores_only(self) -> bool:
        """Whether nothing is generated."""
        return self.max_tokens == 0

    @property
    def biased(self) -> bool:
        """Whether tokens have a bias of their own, or are forbidden."""
        return bool(self.logit_bias) or self.allowed_token_ids is not None

    @property
    def penalized(self) -> bool:
        """Whether logits depend on the tokens so far."""
        return self.presence_penalty != 0.0 or self.frequency_penalty != 0.0 or self.repetition_penalty != 1.0


NUMBERS: Mapping[str, Numeric] = MappingProxyType(
    {item.name: item.metadata[_NUMERIC] for item in fields(SamplingParams) if _NUMERIC in item.metadata}
)
"""Declarations of the numbers that say how a token is chosen, by name."""


def check_logprobs_mode(mode: object, *, optional: bool = False) -> None:
    """Raise InvalidRequestError unless it is one of LOGPROBS_MODES, or None if it is optional."""
    if mode in ("raw_logits", "processed_logits"):
        raise InvalidRequestError(
            f"logprobs_mode {mode!r} is not supported: logits are not told, only {' and '.join(LOGPROBS_MODES)}",
            param="logprobs_mode",
        )
    known = mode in LOGPROBS_MODES or (optional and mode is None)
    _require("logprobs_mode", known, f"one of {', '.join(LOGPROBS_MODES)}")


def key_of_seed(seed: int) -> tuple[int, int]:
    """Raw threefry key data of a seed from -2**63 to 2**64 - 1: its high and low 32 bits."""
    bits = seed & (2**64 - 1)
    return bits >> 32, bits & (2**32 - 1)


def _is_number(value: object, limit: float) -> bool:
    """Whether it is an int or float, not NaN, of at most this size."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= limit


def _is_token_id(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _are_token_ids(values: Collection[object]) -> bool:
    if set(map(type, values)) == {int}:  # ten times as fast, and there may be many
        return min(cast(Collection[int], values)) >= 0
    return all(map(_is_token_id, values))


def _require(name: str, holds: bool, what: str) -> None:
    if not holds:
        raise InvalidRequestError(f"{name} must be {what}", param=name)


def _in_range(name: str, value: float, low: float, high: float | None) -> None:
    if value < low or (high is not None and value > high):
        limit = f"at least {low}" if high is None else f"between {low} and {high}"
        raise InvalidRequestError(f"{name} must be {limit}, got {value}", param=name)


NOTHING_CHOSEN = SamplingParams(max_tokens=0, prompt_logprobs=0, temperature=0.0, ignore_eos=True)
"""Of requests that choose no token."""
