"""Another value for every setting of jax that the engine pins, and a process that has it meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jax

from jaxserve.jax_settings import PINNED

_CHOSEN: dict[str, Any] = {
    "jax_array_garbage_collection_guard": "log",
    "jax_default_device": "gpu",  # which is not here
    "jax_default_matmul_precision": "bfloat16",
    "jax_default_prng_impl": "rbg",
    "jax_error_checking_behavior_divide": "raise",
    "jax_error_checking_behavior_nan": "raise",
    "jax_error_checking_behavior_oob": "raise",
    "jax_explicit_x64_dtypes": "error",
    "jax_hlo_source_file_canonicalization_regex": ".*",
    "jax_legacy_prng_key": "error",
    "jax_memory_fitting_level": "O0",
    "jax_numpy_dtype_promotion": "standard",
    "jax_numpy_rank_promotion": "warn",
    "jax_optimization_level": "O0",
    "jax_pallas_auto_assign_collective_ids": "override",
    "jax_transfer_guard_device_to_device": "disallow_explicit",
    "jax_transfer_guard_device_to_host": "disallow_explicit",
    "jax_transfer_guard_host_to_device": "disallow_explicit",
    "jax_use_hlo_logistic_lowering": True,
}


def other_values() -> dict[str, Any]:
    """By name, of those that the installed jax has: flags turned, numbers one larger."""
    values = jax.config.values
    return {name: _other(name, pinned) for name, pinned in PINNED.items() if name in values}


def _other(name: str, pinned: Any) -> Any:
    if name in _CHOSEN:
        return _CHOSEN[name]
    return not pinned if isinstance(pinned, bool) else pinned + 1


@contextmanager
def process_settings(settings: dict[str, Any]) -> Iterator[None]:
    """Set them as a program does with `jax.config.update`, for all threads."""
    before = {name: jax.config.values[name] for name in settings}
    try:
        for name, value in settings.items():
            jax.config.update(name, value)
        yield
    finally:
        for name, value in before.items():
            jax.config.update(name, value)
