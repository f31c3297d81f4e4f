"""Weights that are compared with what was loaded, all of them once."""

from jaxserve.errors import EngineDeadError
from jaxserve.models.binding import Params
from jaxserve.weights.recheck import BlockSums, WeightGuard


def found_by_guard(params: Params, sums: BlockSums) -> EngineDeadError | None:
    """What a guard has to say of parameters, after it has seen every device's block of them."""
    guard = WeightGuard(params, sums, 1.0)
    for _ in guard._blocks:
        guard.check_next()
    return guard.error
