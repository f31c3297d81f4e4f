"""What guesses in an engine of a configuration."""

from __future__ import annotations

from collections.abc import Callable

from jaxserve.clock import Clock
from jaxserve.config.fields import SchedulerConfig
from jaxserve.config.speculative import SpeculativeConfig
from jaxserve.speculation.device import DeviceGuesses
from jaxserve.speculation.drafter import Drafter
from jaxserve.speculation.ngram import NgramDrafter
from jaxserve.speculation.speculation import Speculation, SpeculationCounts
from jaxserve.speculation.suffix import Bounds, SuffixDrafter

MAX_KEPT_TOKENS = 1_000_000  # of earlier answers: about 0.25 GiB if no two passages are alike


def make_drafter(config: SpeculativeConfig) -> Drafter:
    """Of a method that runs no model."""
    if config.method == "ngram":
        return NgramDrafter(config.prompt_lookup_min, config.prompt_lookup_max)
    bounds = Bounds(
        config.suffix_decoding_max_tree_depth,
        config.suffix_decoding_max_spec_factor,
        config.suffix_decoding_min_token_prob,
    )
    return SuffixDrafter(bounds, config.suffix_decoding_max_cached_requests, MAX_KEPT_TOKENS)


def make_speculation(
    asked: SpeculativeConfig | None,
    scheduler: SchedulerConfig,
    clock: Clock,
    *,
    drafter: Callable[[SpeculativeConfig], Drafter] = make_drafter,
) -> Speculation | DeviceGuesses | None:
    """What decides about drafts; None for nobody.

    Args:
        asked: who guesses.
        scheduler: of the steps that drafts are in.
        clock: tells how long guessing takes.
        drafter: makes the drafter of a method that runs no model.
    """
    if asked is None:
        return None
    rows, tokens = scheduler.max_num_seqs, scheduler.max_num_batched_tokens
    if asked.runs_model:
        guesses = DeviceGuesses(asked.num_speculative_tokens, max_rows=rows, max_tokens=tokens)
        guesses.counts = SpeculationCounts(method=asked.method)
        return guesses
    speculation = Speculation(
        drafter(asked),
        asked.num_speculative_tokens,
        clock,
        max_rows=rows,
        max_tokens=tokens,
        least_chance=min(scheduler.prefill_price / scheduler.decode_price, 1.0) if scheduler.decode_price else 1.0,
    )
    speculation.counts = SpeculationCounts(method=asked.method)
    return speculation
