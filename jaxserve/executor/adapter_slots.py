"""Adapters of an executor: those in the host's memory, and the slots on the devices that plans put them into."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
import numpy.typing as npt

from jaxserve.executor.flat_params import FlatParams
from jaxserve.executor.zeros import untouched_zeros
from jaxserve.models.adapted import Loras
from jaxserve.step.plan import AdapterLoad

Numbers = npt.NDArray[Any]


class AdapterSlots:
    """What steps with adapters run with. `keep` and `forget` may be called from any thread, the rest from the engine's.

    Attributes:
        flat: the arrays of all slots.

    Args:
        shapes: of these.
        put: the program that puts an adapter into a slot (`lora.put_adapter`).
    """

    def __init__(self, shapes: Loras, put: Any) -> None:
        self._put = put
        self._held: dict[str, Numbers] = {}
        self.flat = FlatParams.of(jax.tree.map(untouched_zeros, dict(shapes)))

    def keep(self, key: str, numbers: Numbers) -> None:
        """Have an adapter ready for its slot."""
        self._held[key] = numbers

    def forget(self, key: str) -> None:
        """Let go of an adapter that no plan to come will ask for."""
        self._held.pop(key, None)

    def load(self, loads: Sequence[AdapterLoad]) -> None:
        """Put adapters into their slots, behind the steps that were submitted. Raises ValueError for one that is not kept."""
        for slot, key in loads:
            numbers = self._held.get(key)
            if numbers is None:
                raise ValueError(f"adapter {key} is not in the host's memory")
            self.flat = self._put(self.flat, np.array(slot, np.int32), numbers)
