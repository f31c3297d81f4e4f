"""What the choice of a row's next token depends on. Each option is declared once, here; all that carries it follows from that.

The words of a row, int32[W], hold all of its options one after another. Slot tables, plans, packed batches, their padding,
recordings and the sampler share that layout: adding an option changes none of them (docs/add_a_sampling_option.md).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt

from jaxserve.sampling.params import MAX_STOP_TOKEN_IDS, PROCESSED_LOGPROBS, SamplingParams, key_of_seed

SUPPRESS_WIDTH = 24  # room for MAX_STOP_TOKEN_IDS and a model's end-of-sequence tokens
assert SUPPRESS_WIDTH > MAX_STOP_TOKEN_IDS

Words = npt.NDArray[np.int32]
Number = type[np.float32] | type[np.int32] | type[np.uint32]


@dataclass(frozen=True, slots=True)
class Need:
    """Work that a step does only where a row needs it.

    Attributes:
        only_random: whether only rows that draw can need it.
    """

    name: str
    only_random: bool = False


RANDOM = Need("random")
TRUNCATION = Need("truncation", only_random=True)
RULES = Need("rules", only_random=True)  # rarely asked for, and dear
PENALTIES = Need("penalties")
BIAS = Need("bias")
SUPPRESSION = Need("suppression")
MASKING = Need("masking")
LOGPROBS = Need("logprobs")
PROCESSED = Need("processed_logprobs")  # of the scores that tokens are drawn from


@dataclass(frozen=True, slots=True)
class RowSource:
    """What a sequence's options are taken from.

    Attributes:
        seed: its own, 64 bits.
        stop_token_ids: tokens that end it, the model's included.
        masked: whether a mask says at every step what it may choose (StepHandle.choose).
    """

    params: SamplingParams
    seed: int
    stop_token_ids: frozenset[int]
    masked: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class RowOption:
    """One option.

    Attributes:
        dtype: of its numbers: 32 bits.
        neutral: what asks for nothing; padding has it.
        value: what a sequence's slot holds: a number, or `count` numbers; shorter ones are padded with `neutral`.
        count: of its numbers.
        need: work for rows whose first number is not neutral.
        until_min_tokens: whether rows that have their `min_tokens` hold `neutral`.
    """

    name: str
    dtype: Number
    neutral: float
    value: Callable[[RowSource], Any]
    count: int = 1
    need: Need | None = None
    until_min_tokens: bool = False


def _num_logprobs(params: SamplingParams, *, processed: bool) -> int:
    """How many of this kind the row wants, besides the chosen token's; -1 for none at all."""
    asks = params.logprobs is not None and (params.logprobs_mode == PROCESSED_LOGPROBS) == processed
    return params.logprobs if params.logprobs is not None and asks else -1


TEMPERATURE = RowOption("temperature", np.float32, 0.0, lambda row: row.params.temperature, need=RANDOM)
TOP_K = RowOption("top_k", np.int32, 0, lambda row: max(row.params.top_k, 0), need=TRUNCATION)
TOP_P = RowOption("top_p", np.float32, 1.0, lambda row: row.params.top_p, need=TRUNCATION)
MIN_P = RowOption("min_p", np.float32, 0.0, lambda row: row.params.min_p, need=TRUNCATION)
TYPICAL_P = RowOption("typical_p", np.float32, 1.0, lambda row: row.params.typical_p, need=RULES)
TOP_N_SIGMA = RowOption("top_n_sigma", np.float32, 0.0, lambda row: max(row.params.top_n_sigma, 0.0), need=RULES)
PRESENCE = RowOption("presence", np.float32, 0.0, lambda row: row.params.presence_penalty, need=PENALTIES)
FREQUENCY = RowOption("frequency", np.float32, 0.0, lambda row: row.params.frequency_penalty, need=PENALTIES)
REPETITION = RowOption("repetition", np.float32, 1.0, lambda row: row.params.repetition_penalty, need=PENALTIES)
KEY = RowOption("key", np.uint32, 0, lambda row: key_of_seed(row.seed), count=2)
HAS_BIAS = RowOption("has_bias", np.int32, 0, lambda row: row.params.biased, need=BIAS)
NUM_LOGPROBS = RowOption("num_logprobs", np.int32, -1, lambda row: _num_logprobs(row.params, processed=False), need=LOGPROBS)
NUM_PROCESSED = RowOption("num_processed", np.int32, -1, lambda row: _num_logprobs(row.params, processed=True), need=PROCESSED)
SUPPRESS = RowOption(
    "suppress",
    np.int32,
    -1,
    lambda row: sorted(row.stop_token_ids),
    count=SUPPRESS_WIDTH,
    need=SUPPRESSION,
    until_min_tokens=True,
)
MASKED = RowOption("masked", np.int32, 0, lambda row: row.masked, need=MASKING)


class RowOptions:
    """Options and their places in the words of a row.

    Attributes:
        size: W.
        neutral: int32[W], of a row that asks for nothing.
        needs: what rows can need, in the order of the flags of a batch.
    """

    def __init__(self, options: Sequence[RowOption]) -> None:
        self.options = tuple(options)
        ends = list(accumulate(option.count for option in options))
        self._places = {option: slice(end - option.count, end) for option, end in zip(options, ends, strict=True)}
        self._by_name = {option.name: option for option in options}
        self.size = ends[-1]
        self.neutral: Words = np.zeros(self.size, np.int32)
        for option, place in self._places.items():
            self.neutral[place] = np.full(option.count, option.neutral, option.dtype).view(np.int32)
        self.neutral.flags.writeable = False
        self.needs = tuple(dict.fromkeys(option.need for option in options if option.need is not None))
        firsts = {need: [place.start for option, place in self._places.items() if option.need is need] for need in self.needs}
        self._columns = [(np.array(columns), need.only_random) for need, columns in firsts.items()]
        self._temporary = [place for option, place in self._places.items() if option.until_min_tokens]

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the options, in the order of their words."""
        return tuple(self._by_name)

    def words(self, source: RowSource) -> Words:
        """The words int32[W] of a sequence. Raises ValueError for more numbers than an option has room for."""
        words = self.neutral.copy()
        for option, place in self._places.items():
            given = np.array(option.value(source), option.dtype).reshape(-1)
            if len(given) > option.count:
                raise ValueError(f"{option.name} has {len(given)} numbers, and room for {option.count}")
            words[place.start : place.start + len(given)] = given.view(np.int32)
        return words

    def end_temporary(self, words: Words, rows: npt.NDArray[np.bool_]) -> None:
        """Make neutral, in words [R,W], what rows [R] with their `min_tokens` do not have any more."""
        for place in self._temporary:
            words[rows, place] = self.neutral[place]

    def column(self, words: Words, option: RowOption | str) -> Any:
        """An option's numbers in numpy's words [R,W]: [R], or [R,count] of an option that has several."""
        option = self._by_name[option] if isinstance(option, str) else option
        place = self._places[option]
        return words[:, place.start if option.count == 1 else place].view(option.dtype)

    def place(self, option: RowOption) -> slice:
        """Where in the words it is."""
        return self._places[option]

    def needed(self, words: Words, samples: npt.NDArray[np.bool_]) -> frozenset[Need]:
        """What any row of words [R,W] that samples needs."""
        return frozenset(need for need, flag in zip(self.needs, self.flags(words, samples), strict=True) if flag)

    def flags(self, words: Words, samples: npt.NDArray[np.bool_]) -> list[bool]:
        """Whether any row of words [R,W] that samples needs the work, for each of `needs`."""
        asked = (words != self.neutral) & samples[:, None]
        random = asked[:, self._places[TEMPERATURE].start]
        drawn = asked[random].any(axis=0) if random.any() else np.zeros(self.size, np.bool_)
        any_row = asked.any(axis=0)
        return [bool((drawn if only_random else any_row)[columns].any()) for columns, only_random in self._columns]


STANDARD = RowOptions(
    (
        TEMPERATURE,
        TOP_K,
        TOP_P,
        MIN_P,
        TYPICAL_P,
        TOP_N_SIGMA,
        PRESENCE,
        FREQUENCY,
        REPETITION,
        KEY,
        HAS_BIAS,
        NUM_LOGPROBS,
        SUPPRESS,
        MASKED,
        NUM_PROCESSED,
    )
)
