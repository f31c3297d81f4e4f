"""From the packed array of a step to its StepResult: the only device-to-host copy of a step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import jax
import numpy as np

from jaxserve.executor.packed_logprobs import unpack_logprobs
from jaxserve.executor.readers import Reader
from jaxserve.models.config import DecoderConfig
from jaxserve.sampling.options import MASKED, NUM_LOGPROBS, NUM_PROCESSED, RowOptions
from jaxserve.step.plan import Ints, Plan, Reading, StepResult


@dataclass(frozen=True, slots=True)
class ResultLayout:
    """What the words of a result are."""

    config: DecoderConfig
    options: RowOptions
    readers: tuple[Reader, ...]


class LocalHandle:
    """A step running on this process's devices.

    Attributes:
        collected: whether its result was asked for.

    Args:
        choose: starts the second half of the step, with masks if rows are masked; returns what it packs.
        read: what readers read, by their names.
        width: N, the packed rows of each row.
        far: whether the devices have memory of their own, from which a copy to the host is to be on its way early.
    """

    def __init__(
        self,
        plan: Plan,
        choose: Callable[[Ints | None], jax.Array],
        read: Mapping[str, jax.Array],
        layout: ResultLayout,
        width: int,
        *,
        far: bool,
    ) -> None:
        self._plan = plan
        self._choose = choose
        self._packed: jax.Array | None = None
        self._read = read
        self._layout = layout
        self._width = width
        self._far = far
        self.collected = False
        if far:
            for array in read.values():
                array.copy_to_host_async()
        if not layout.options.column(plan.sampling, MASKED)[plan.samples].any():
            self.choose(None)

    def choose(self, masks: Ints | None) -> None:
        assert self._packed is None, "tokens are chosen once"
        self._packed = self._choose(masks)
        if self._far:
            self._packed.copy_to_host_async()

    def result(self) -> StepResult:
        assert self._packed is not None, "a step with masked rows needs its masks first"
        self.collected = True
        plan, options, width = self._plan, self._layout.options, self._width
        packed = np.asarray(self._packed)[: plan.num_rows * width]
        asked = [options.column(plan.sampling, option) >= 0 for option in (NUM_LOGPROBS, NUM_PROCESSED)]
        wanted = bool((plan.samples & (asked[0] | asked[1])).any())
        logprobs = unpack_logprobs(packed[:, 2:], self._layout.config) if wanted else None
        return StepResult(plan.step, packed[:, 0].reshape(-1, width), packed[::width, 1], logprobs, self._readings())

    def _readings(self) -> tuple[Reading, ...]:
        if not self._read:
            return ()
        readers = {reader.name: reader for reader in self._layout.readers}
        words = {name: np.asarray(array) for name, array in self._read.items()}
        starts = dict.fromkeys(words, 0)
        readings = []
        for readout in self._plan.readouts:
            name, start = readout.reader, starts[readout.reader]
            starts[name] = end = start + (1 if readers[name].sums else len(readout.values))
            reading = readers[name].unpack(words[name][start:end], self._layout.config)
            readings.append(replace(reading, num_tokens=len(readout.values)))
        return tuple(readings)
