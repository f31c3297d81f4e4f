"""The engine's settings of jax: complete for the installed jax, independent of the caller's, and given back."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src import config as jax_config
from jax.experimental.xla_metadata import set_xla_metadata
from jax.sharding import AxisType

from jaxserve.jax_settings import CONTEXTS, KEYED, PINNED, UNPINNED, caller_settings, engine_settings, pin_thread
from tests.support.other_settings import other_values, process_settings

SET_BY_JAX_ALONE = {  # part of the key of traces
    *("user_context", "layout_tracing_mode", "axis_env_state", "pallas_fuser_disable_nested_fuse"),
}


def here() -> dict[str, object]:
    """What this thread has of each pinned setting, and what jax keys traces by."""
    values = jax.config.values
    return {name: values[name] for name in PINNED if name in values} | {"trace context": jax_config.trace_context()}


def test_every_setting_of_the_installed_jax_is_listed() -> None:
    traced = set(jax_config.trace_context_names())
    unknown = (set(jax_config.config_states) | traced) - {*PINNED, *CONTEXTS, *UNPINNED}
    assert not unknown, "new settings of jax: pin them, or say in UNPINNED why results do not depend on them"
    assert not {*PINNED, *CONTEXTS} & set(UNPINNED)
    assert traced & set(UNPINNED) <= SET_BY_JAX_ALONE, "what changes traces must be pinned"
    assert set(KEYED) <= set(jax.config.values)


def test_pinned_values_take_precedence_over_the_process() -> None:
    with engine_settings():
        expected = here()
    wrong = []
    for name, value in other_values().items():
        with process_settings({name: value}):
            assert here()[name] != expected[name], f"{name}: the test must set another value"
            with engine_settings():
                if here() != expected:
                    wrong.append(name)
    assert not wrong


def test_contexts_of_the_caller_end_at_the_engine() -> None:
    with engine_settings():
        expected = here()
    mesh = jax.make_mesh((1,), ("x",), axis_types=(AxisType.Explicit,))
    for context in (jax.set_mesh(mesh), jax.enable_x64(True), set_xla_metadata(name="value"), jax.transfer_guard("disallow")):
        with context:
            before = here()
            with engine_settings():
                assert here() == expected
            assert here() == before != expected


def test_transfers_and_types_are_the_engines_and_then_the_callers() -> None:
    with jax.transfer_guard("disallow_explicit"), jax.enable_x64(True):
        with engine_settings():
            made = jnp.arange(3) + np.ones(3, np.int32)
            assert (made.dtype, made.tolist()) == (jnp.int32, [1, 2, 3])
        with pytest.raises(jax.errors.JaxRuntimeError, match="Disallowed host-to-device transfer"):
            jax.device_put(np.ones(3))


def test_settings_are_given_back_after_an_error() -> None:
    before = here()
    with pytest.raises(ZeroDivisionError), engine_settings():
        raise ZeroDivisionError
    assert here() == before


def test_callbacks_have_the_settings_of_the_caller() -> None:
    def x64() -> bool:
        return bool(jax.config.values["jax_enable_x64"])

    callback = caller_settings()(x64)
    with jax.enable_x64(True):
        with engine_settings(), engine_settings():
            assert (x64(), callback(), x64()) == (False, True, False)
            with caller_settings(), engine_settings():
                assert not x64()
        assert callback()


def test_a_pinned_thread_stays_pinned() -> None:
    def x64() -> tuple[bool, bool]:
        with caller_settings():
            outside = jnp.arange(1).dtype == jnp.int64
        with engine_settings():
            pass
        return outside, jnp.arange(1).dtype == jnp.int64

    with process_settings({"jax_enable_x64": True}), ThreadPoolExecutor(1, initializer=pin_thread) as pool:
        assert pool.submit(x64).result() == (True, False)
