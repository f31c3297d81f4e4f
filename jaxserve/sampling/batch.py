"""SamplingBatch: what one step's rows ask of the sampler, as arrays of fixed shapes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from jaxserve.sampling.options import STANDARD, Need, RowOption, RowOptions


@jax.tree_util.register_dataclass
@dataclass(frozen=True, slots=True)
class SamplingBatch:
    """One entry a row. The flags say what any row needs, so that one compiled program serves every mix cheaply.

    Attributes:
        words: int32 [R, W], the rows' options.
        position: int32 [R], position in the sequence of the token being chosen.
        slot: int32 [R], the row's slot in `SamplerState`; rows that do not sample use the spare one.
        flags: bool scalars, whether any row needs each of the options' `needs`.
        options: what the words are.
        drafts: int32 [R, N], tokens that penalties count besides those of the state, negative ones are none; None if there are
            none at all.
    """

    words: jax.Array
    position: jax.Array
    slot: jax.Array
    flags: tuple[jax.Array, ...]
    options: RowOptions = field(default=STANDARD, metadata={"static": True})
    drafts: jax.Array | None = None

    def __getitem__(self, option: RowOption) -> jax.Array:
        """An option of all rows: [R], or [R, count] of one that has several numbers; of the option's dtype."""
        place = self.options.place(option)
        numbers = self.words[:, place.start if option.count == 1 else place]
        return numbers if option.dtype is np.int32 else as_dtype(numbers, option.dtype)

    def any(self, need: Need) -> jax.Array:
        """Bool scalar: whether any row needs this work."""
        return self.flags[self.options.needs.index(need)]


def as_dtype(words: Any, dtype: type[np.float32] | type[np.int32] | type[np.uint32]) -> Any:
    """Words, of numpy or of jax, as numbers of another type of their size."""
    return words.view(dtype) if isinstance(words, np.ndarray) else jax.lax.bitcast_convert_type(words, dtype)
