"""From a task's generation arguments, as lm-eval writes them, to sampling parameters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lm_eval.models.utils import handle_stop_sequences, normalize_gen_kwargs

from jaxserve.errors import InvalidRequestError
from jaxserve.sampling.params import MAX_STOP_STRINGS, NUMBERS, SamplingParams

SAMPLING = (*(name for name in NUMBERS if name != "temperature"), "seed")
NEUTRAL: Mapping[str, Any] = {"num_beams": 1, "num_return_sequences": 1, "use_cache": True}  # said to transformers by some tasks


@dataclass(frozen=True, slots=True)
class GenerationArguments:
    """How to generate an answer, and what ends it.

    Attributes:
        params: for the engine.
        max_tokens: output tokens at most.
        until: strings at the first of which the answer ends, end-of-sequence's among them; it has none of them.
    """

    params: SamplingParams
    max_tokens: int
    until: tuple[str, ...]


def generation(arguments: Mapping[str, Any], *, eos: str, max_gen_toks: int) -> GenerationArguments:
    """What a task's `generation_kwargs` mean.

    Args:
        arguments: `until`, `max_gen_toks`, `do_sample`, `temperature` and sampling parameters.
        eos: text of the end-of-sequence token.
        max_gen_toks: output tokens where the task names no number.

    Raises InvalidRequestError for an argument that means nothing here: it would have changed the answers.
    """
    given: dict[str, Any] = dict(normalize_gen_kwargs(dict(arguments), max_gen_toks))
    until: list[str] = [text for text in handle_stop_sequences(given.pop("until"), eos) if text]
    max_tokens, temperature = int(given.pop("max_gen_toks")), float(given.pop("temperature", 0.0))
    if not given.pop("do_sample"):
        temperature = 0.0
    chosen = {name: given.pop(name) for name in SAMPLING if name in given}
    for name, value in given.items():
        if name not in NEUTRAL or NEUTRAL[name] != value:
            raise InvalidRequestError(f"generation_kwargs has {name}={value!r}, which jaxserve does not know", param=name)
    # The engine ends at these; what it takes no more of only cuts the finished text.
    stops = tuple(text for text in until if text != eos)[:MAX_STOP_STRINGS]
    params = SamplingParams(max_tokens=max_tokens, temperature=temperature, stop=stops, **chosen)
    return GenerationArguments(params, max_tokens, tuple(until))
