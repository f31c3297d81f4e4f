"""The drafter that a configuration asks for."""

from __future__ import annotations

from jaxserve.config.speculative import SpeculativeConfig
from jaxserve.speculation.drafter import Drafter
from jaxserve.speculation.ngram import NgramDrafter
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
