"""What running sequences hold and are expected to need, in arrays by slot: looked at in every step that admits."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from jaxserve.scheduler.estimates import LATE
from jaxserve.scheduler.plan import Ints

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]


class Footprint:
    """Tokens of running sequences, now and later.

    Args:
        num_slots: sequences that can run at once.
    """

    def __init__(self, num_slots: int) -> None:
        self._runs = np.zeros(num_slots, np.bool_)
        self._batch = np.zeros(num_slots, np.bool_)
        self._tokens = np.zeros(num_slots, np.int64)
        self._prompt = np.zeros(num_slots, np.int64)
        self._expected = np.zeros(num_slots, np.float64)
        self._limit = np.zeros(num_slots, np.int64)
        self._latest: tuple[Ints, Ints] | None = None  # slots and lengths of the latest step, not in the arrays yet

    def start(self, slot: int, *, tokens: int, prompt: int, expected: float, limit: int, batch: bool) -> None:
        """A sequence starts: tokens it has, those of its prompt, outputs expected, tokens at which it ends, its class."""
        self._settle()
        self._runs[slot] = True
        self._batch[slot] = batch
        self._tokens[slot] = tokens
        self._prompt[slot] = prompt
        self._expected[slot] = expected
        self._limit[slot] = limit

    def set_batch(self, slot: int, *, batch: bool) -> None:
        """The slot's sequence is of another class from now on."""
        self._batch[slot] = batch

    def is_batch(self, slot: int) -> bool:
        """Whether the slot's sequence counts as batch."""
        return bool(self._batch[slot])

    def stop(self, slot: int) -> None:
        """The slot's sequence stops."""
        self._runs[slot] = False

    def grew(self, slots: Ints, lengths: Ints) -> None:
        """The slots' sequences have `lengths` tokens in the cache; those of a prompt that is not computed yet count already.

        `slots` is the same object for the same slots, and neither array is written to any more.
        """
        if self._latest is not None and self._latest[0] is not slots:
            self._settle()
        self._latest = slots, lengths

    def needs(self) -> tuple[Floats, Floats, Bools]:
        """Of each running sequence: tokens it has, tokens still expected (as OutputLengths.remaining), whether it is batch."""
        self._settle()
        runs = self._runs
        tokens, prompt = self._tokens[runs], self._prompt[runs]
        output = tokens - prompt
        total = prompt + np.maximum(self._expected[runs], LATE * output)
        growth = np.maximum(np.minimum(total, self._limit[runs]) - tokens, 0.0)
        return tokens.astype(np.float64), growth, self._batch[runs]

    def _settle(self) -> None:
        """Write the latest step's lengths down: steps of the same rows follow one another, and few are asked about."""
        if self._latest is not None:
            slots, lengths = self._latest
            self._tokens[slots] = np.maximum(self._tokens[slots], lengths)
            self._latest = None
