"""jax's settings while the engine traces, compiles, runs or copies: fixed values, whatever the caller's process has set.

jax keeps a setting as a process-wide value (environment variable, `jax.config.update`) and a value of each thread, which takes
precedence. The engine sets the latter: the caller's settings stay as they are, and changing them later changes nothing here.
jax has no public list of its settings, so this module alone uses `jax._src`.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
from jax._src import config as _config
from jax._src import mesh as _mesh

PINNED: Mapping[str, Any] = MappingProxyType(
    {
        # Types and promotion.
        "jax_enable_x64": False,
        "jax_explicit_x64_dtypes": "warn",
        "jax_numpy_dtype_promotion": "strict",
        "jax_numpy_rank_promotion": "raise",
        "jax_allow_f16_reductions": True,
        # Matmul precision, random bits, and the form of some operations.
        "jax_default_matmul_precision": None,
        "jax_default_prng_impl": "threefry2x32",
        "jax_enable_custom_prng": False,
        "jax_legacy_prng_key": "allow",
        "jax_random_seed_offset": 0,
        "jax_threefry_partitionable": True,
        "jax_threefry_gpu_kernel_lowering": False,
        "jax_high_dynamic_range_gumbel": False,
        "jax_softmax_custom_jvp": False,
        "jax_use_hlo_logistic_lowering": None,
        "jax_ragged_dot_use_ragged_dot_instruction": True,
        "jax_ragged_dot_use_gpu_pallas_triton_lowering": False,
        # Tracing and execution.
        "jax_disable_jit": False,
        "jax_no_tracing": False,
        "jax_no_execution": False,
        "jax_default_device": None,
        "jax_scan3": False,
        "jax_remat3": False,
        "jax_custom_jvp3": False,
        "jax_custom_vjp3": False,
        "jax_remat_barrier_no_cotangents": False,
        "jax_use_direct_linearize": True,
        "jax_use_simplified_jaxpr_constants": False,
        "jax_embedded_constants_max_bytes": 32,
        "eager_constant_folding": False,
        "jax_mutable_array_checks": True,
        "jax_refs_to_pins": False,
        "jax_hlo_source_file_canonicalization_regex": None,
        # Sharding.
        "jax_use_shardy_partitioner": True,
        "jax_use_rgv3": True,
        "jax_use_cpp_shard_args": False,
        "jax_remove_size_one_mesh_axis_from_type": False,
        "jax_raise_on_ppermute_sort_diff": True,
        "jax_disallow_mesh_context_manager": False,
        "jax_disable_vmap_shmap_error": False,
        "jax_auto_pcast": True,
        "check_vma": False,
        # The compiler.
        "jax_optimization_level": "UNKNOWN",
        "jax_memory_fitting_level": "O2",
        "jax_exec_time_optimization_effort": 0.0,
        "jax_memory_fitting_effort": 0.0,
        "jax_compiler_enable_remat_pass": True,
        "jax_enable_pgle": False,
        "jax_pgle_profiling_runs": 3,
        "jax_xla_profile_version": 0,
        "jax_compilation_cache_expect_pgle": False,
        "jax_remove_custom_partitioning_ptr_from_cache_key": False,
        "jax_raise_persistent_cache_errors": False,
        # Pallas.
        "jax_use_emit_pipeline_primitive": False,
        "jax_mosaic_allow_hlo": False,
        "jax_pallas_use_mosaic_gpu": True,
        "jax_pallas_poison_buffers": False,
        "jax_pallas_enable_debug_checks": False,
        "jax_pallas_auto_assign_collective_ids": "no",
        "jax_pallas_auto_assign_collective_ids_limit": 25,
        # Checks for the caller's own code, which would stop or slow down the engine.
        "jax_enable_checks": False,
        "jax_debug_nans": False,
        "jax_debug_infs": False,
        "jax_debug_key_reuse": False,
        "jax_check_tracer_leaks": False,
        "jax_check_static_indices": False,
        "jax_error_checking_behavior_nan": "ignore",
        "jax_error_checking_behavior_divide": "ignore",
        "jax_error_checking_behavior_oob": "ignore",
        "jax_transfer_guard_host_to_device": "allow",
        "jax_transfer_guard_device_to_device": "allow",
        "jax_transfer_guard_device_to_host": "allow",
        "jax_array_garbage_collection_guard": "allow",
    }
)
"""The value of each setting in the engine's threads. A name that the installed jax does not have is ignored."""

CONTEXTS = (
    "mesh_context_manager",  # `with mesh:`
    "abstract_mesh_context_manager",  # jax.set_mesh, jax.sharding.use_abstract_mesh
    "device_context",  # jax.set_mesh
    "compute_on_context_manager",
    "xla_metadata_context_manager",
    "pallas_tpu_interpret_mode_context_manager",
)
"""Contexts of jax that have no setting: a thread's are unset, so that the engine runs outside of the caller's.

Names that the installed jax does not have are ignored."""

_LOGS = "changes logs and messages only"
_CACHE = "changes where and when compiled programs are kept only"
_DEVICES = "is read once, when jax starts its devices"
_UNUSED = "concerns operations that the engine does not have"
_ONE_PROCESS = "concerns programs of several processes"

UNPINNED: Mapping[str, str] = MappingProxyType(
    {
        **dict.fromkeys(
            (
                "jax_captured_constants_warn_bytes",
                "jax_captured_constants_report_frames",
                "jax_debug_log_modules",
                "jax_distributed_debug",
                "jax_explain_cache_misses",
                "jax_include_full_tracebacks_in_locations",
                "jax_log_checkpoint_residuals",
                "jax_log_compiles",
                "jax_logging_level",
                "jax_pprint_use_color",
                "jax_send_traceback_to_runtime",
                "jax_source_url_schema",
                "jax_traceback_filtering",
                "jax_traceback_in_locations_limit",
            ),
            _LOGS,
        ),
        **dict.fromkeys(
            (
                "jax_compilation_cache_check_contents",
                "jax_compilation_cache_dir",
                "jax_compilation_cache_include_metadata_in_key",
                "jax_compilation_cache_max_size",
                "jax_enable_compilation_cache",
                "jax_persistent_cache_enable_xla_caches",
                "jax_persistent_cache_min_compile_time_secs",
                "jax_persistent_cache_min_entry_size_bytes",
            ),
            _CACHE,
        ),
        **dict.fromkeys(
            (
                "jax_cpu_collectives_implementation",
                "jax_cpu_get_global_topology_timeout_minutes",
                "jax_cpu_get_local_topology_timeout_minutes",
                "jax_num_cpu_devices",
                "jax_pjrt_client_create_options",
                "jax_platforms",
            ),
            _DEVICES,
        ),
        **dict.fromkeys(
            (
                "jax2tf_associative_scan_reductions",
                "jax2tf_default_native_serialization",
                "jax_bcoo_cusparse_lowering",
                "jax_debug_leaked_clients_on_clear_backends",
                "jax_disable_bwd_checks",
                "jax_experimental_unsafe_xla_runtime_errors",
                "jax_export_calling_convention_version",
                "jax_export_deserialize_expired_versions",
                "jax_export_ignore_forward_compatibility",
                "jax_pgle_aggregation_percentile",
                "jax_serialization_version",
                "jax_use_magma",
            ),
            _UNUSED,
        ),
        **dict.fromkeys(
            (
                "jax_distributed_verify_secure_credentials",
                "jax_enable_preemption_service",
                "jax_enable_recoverability",
                "jax_mtls_ca_file",
                "jax_mtls_cert_file",
                "jax_mtls_key_file",
                "jax_mtls_peer_uri_prefix",
                "jax_share_binary_between_hosts",
                "jax_share_binary_between_hosts_timeout_ms",
                "jax_thread_guard",
            ),
            _ONE_PROCESS,
        ),
        "jax_transfer_guard": "sets the three transfer guards, which are pinned",
        "user_context": "belongs to the caller's own functions: the engine's ones do not read it",
        "layout_tracing_mode": "is set by jax itself while it traces",
        "axis_env_state": "is set by jax itself while it traces",
        "pallas_fuser_disable_nested_fuse": "is set by jax itself while it traces, once its fuser is imported",
    }
)
"""Settings and contexts that stay as the caller has them, and why results do not depend on them."""

REFUSED: Mapping[str, tuple[Any, str]] = MappingProxyType(
    {
        "jax_array_garbage_collection_guard": (
            "fatal",
            "a garbage collection in any thread may free arrays of the engine and would end the process; unset it or use 'log'",
        ),
    }
)
"""Values of the whole process that the engine cannot run under, and why."""

KEYED = ("jax_disable_most_optimizations",)
"""Settings that change programs and belong to the whole process: part of the key of kept programs."""


class _Pin(NamedTuple):
    """One setting: jax's holder of it, our value, and what jax calls when a thread's value changes."""

    holder: Any
    value: Any
    changed: Any


class _Thread(threading.local):
    """The values that a thread had before it got the engine's; None where it has its own."""

    before: list[Any] | None = None


def _pins() -> Iterator[_Pin]:
    states = _config.config_states
    for name, value in PINNED.items():
        if (state := states.get(name)) is not None:
            parse = state._parser
            yield _Pin(state, value if parse is None else parse(value), state._update_thread_local_hook)
    for name in CONTEXTS:
        if (holder := getattr(_config, name, None) or getattr(_mesh, name, None)) is not None:
            yield _Pin(holder, _UNSET, None)


_UNSET = _config.config_ext.unset
_PINS = tuple(_pins())
_HERE = _Thread()


@contextmanager
def engine_settings() -> Iterator[None]:
    """Give this thread the engine's settings of jax meanwhile; also a decorator. May be nested.

    Functions of the caller's must not run inside, other than in `caller_settings`.
    """
    if _HERE.before is not None:
        yield
        return
    try:
        _pin()
        yield
    finally:
        _unpin()


@contextmanager
def caller_settings() -> Iterator[None]:
    """Give this thread back the settings that it had before `engine_settings`: for callbacks; also a decorator."""
    if _HERE.before is None:
        yield
        return
    _unpin()
    try:
        yield
    finally:
        _pin()


def pin_thread() -> None:
    """Give this thread the engine's settings of jax until it ends: for threads of a pool that is the engine's alone."""
    if _HERE.before is None:
        _pin()


def refusal() -> str | None:
    """Why the engine cannot run in this process, by the setting's name; None if it can."""
    for name, (value, why) in REFUSED.items():
        state = _config.config_states.get(name)
        if state is not None and state.get_global() == value:
            return f"{name}={value} is not supported: {why}"
    return None


def keyed_settings() -> dict[str, object]:
    """The value of each of KEYED."""
    values = jax.config.values
    return {name: values.get(name) for name in KEYED}


def _pin() -> None:
    _HERE.before = before = []
    for holder, value, changed in _PINS:
        before.append(holder.get_local())  # first: an interrupt may come after each line
        holder.set_local(value)
        if changed is not None:
            changed(value)


def _unpin() -> None:
    for (holder, _, changed), value in zip(_PINS, _HERE.before or (), strict=False):
        holder.set_local(value)
        if changed is not None:
            changed(None if value is _UNSET else value)
    _HERE.before = None
