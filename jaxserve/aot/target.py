"""GPUs by name, as XLA's compiler wants them described; and the CPUs of this machine."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import jax
from jax.experimental import topologies

from jaxserve.config.resolve import DeviceFacts
from jaxserve.errors import ConfigError
from jaxserve.executor.memory import device_facts

CUDA = "13.0.0"  # of driver and runtime: what jax's CUDA 13 plugin needs. Without one XLA leaves collectives out of CUDA graphs.
CUDNN = (9, 12, 0)  # likewise
CUB = "3.1.2"  # what the plugin was built with, as a GPU says it: XLA then sorts by CUB, which no CUDA graph can hold
CPU = "cpu"  # as a target
TENSOR_UNITS_PER_CORE = 4
_NAMED = re.compile(r"(?P<name>[a-z0-9]+)(:(?P<count>[1-9][0-9]*))?")
# XLA's numbers of the types that tensor cores multiply, and their rates in units of the bfloat16 rate.
_MATRIX_RATES = {10: 1.0, 11: 0.5, 16: 1.0}  # float16, float32 (as TF32), bfloat16
_FP8_RATES = {19: 2.0, 20: 2.0}  # float8_e5m2, float8_e4m3fn


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """Figures of one GPU; targets.toml says what they are and where they are from."""

    name: str
    memory_bytes: int
    bandwidth: int
    core_count: int
    fpus_per_core: int
    clock_ghz: float
    tensor_clock_ghz: float
    tensor_fma_per_core: int
    tensor_fp8: bool
    l2_bytes: int
    shared_memory_per_core: int
    shared_memory_per_block: int
    compute_capability: tuple[int, int]
    accelerated: bool
    nvlinks: int

    def description(self) -> str:
        """The text form of XLA's GpuTargetConfigProto."""
        major, minor = self.compute_capability
        extension = "ACCELERATED_FEATURES" if self.accelerated else "NONE"
        cudnn = " ".join(f"{name}: {number}" for name, number in zip(("major", "minor", "patch"), CUDNN, strict=True))
        device = (
            *_LIMITS,
            f"shared_memory_per_core: {self.shared_memory_per_core}",
            f"shared_memory_per_block_optin: {self.shared_memory_per_block}",
            f"core_count: {self.core_count}",
            f"fpus_per_core: {self.fpus_per_core}",
            f"memory_bandwidth: {self.bandwidth}",
            f"l2_cache_size: {self.l2_bytes}",
            f"clock_rate_ghz: {self.clock_ghz}",
            # XLA counts a donated cache twice and plans with 80 % of this: it would call every well-used GPU full. What fits is
            # the ledger's business.
            f"device_memory_size: {self.memory_bytes * 2}",
            f"cuda_compute_capability {{ major: {major} minor: {minor} feature_extension: {extension} }}",
            f"matrix_unit_description {{ {self._matrix_rates()} }}",
            f"device_interconnect_info {{ active_links: {self.nvlinks} }}",
            f'name: "{self.name}"',
            *(f'{version}: "{CUDA}"' for version in ("driver_version", "runtime_version", "compile_time_toolkit_version")),
            f'cub_version: "{CUB}"',
        )
        body = "\n".join(f"  {line}" for line in device)
        return (
            f"gpu_device_info {{\n{body}\n}}\n"
            f'platform_name: "CUDA"\ndnn_version_info {{ {cudnn} }}\ndevice_description_str: "{self.name}"\n'
        )

    def _matrix_rates(self) -> str:
        base = self.tensor_fma_per_core // TENSOR_UNITS_PER_CORE
        rates = _MATRIX_RATES | (_FP8_RATES if self.tensor_fp8 else {})
        return " ".join(
            f"rate_infos {{ key: {key} value {{ clock_rate_ghz: {self.tensor_clock_ghz} "
            f"units_per_core: {TENSOR_UNITS_PER_CORE} ops_per_clock: {round(base * rate)} }} }}"
            for key, rate in sorted(rates.items())
        )


# The same for every compute capability from 8.0 to 10.0 (CUDA C++ Programming Guide, "Compute Capabilities").
_LIMITS = (
    "threads_per_block_limit: 1024",
    "threads_per_warp: 32",
    "threads_per_core_limit: 2048",
    "shared_memory_per_block: 49152",
    "block_dim_limit_x: 2147483647",
    "block_dim_limit_y: 65535",
    "block_dim_limit_z: 65535",
    "thread_dim_limit_x: 1024",
    "thread_dim_limit_y: 1024",
    "thread_dim_limit_z: 64",
    "registers_per_core_limit: 65536",
    "registers_per_block_limit: 65536",
)


@dataclass(frozen=True, slots=True)
class Target:
    """Devices of one kind in one machine.

    Attributes:
        key: the GPU's name in targets.toml, or CPU.
        gpu: its figures; None for CPUs.
        count: how many; GPUs are linked by NVLink.
    """

    key: str
    gpu: Gpu | None
    count: int

    @classmethod
    def parse(cls, text: str) -> Target:
        """Read "h100:8" or "h100" (one GPU), or "cpu". Raises ConfigError, listing the known GPUs, for anything else."""
        known = gpu_names()
        match = _NAMED.fullmatch(text)
        if match is not None and match["name"] == CPU:
            return cls(CPU, None, int(match["count"] or 1))
        if match is None or match["name"] not in known:
            raise ConfigError(
                f"target must be a GPU and how many, such as h100:8, got {text!r}; known GPUs are {', '.join(known)}; "
                "or cpu, for this machine's own",
                param="target",
            )
        table = _table()[match["name"]]
        capability = tuple(table.pop("compute_capability"))
        return cls(match["name"], Gpu(compute_capability=capability, **table), int(match["count"] or 1))

    @property
    def name(self) -> str:
        return "this machine's CPU" if self.gpu is None else self.gpu.name

    def facts(self, devices: Sequence[jax.Device], fraction: float) -> DeviceFacts:
        """What an engine on some of its devices would be told, if it may take that fraction of a GPU's memory."""
        if self.gpu is None:
            return device_facts(devices[0], len(devices))
        return DeviceFacts("gpu", len(devices), int(self.gpu.memory_bytes * fraction), slow_bfloat16_scatter=False)

    def devices(self) -> Sequence[jax.Device]:
        """Devices to compile for; a GPU's cannot run anything.

        Raises ConfigError: jax's CUDA plugin is not installed, or there are fewer CPU devices.
        """
        if self.gpu is None:
            return self._cpus()
        try:
            topology = topologies.get_topology_desc(
                platform="cuda", topology_name="", target_config=self.gpu.description(), topology=f"1x1x{self.count}"
            )
        except (RuntimeError, NotImplementedError) as error:  # which one depends on jax's release
            raise ConfigError(
                "compiling for a GPU needs jax's CUDA plugin (jax-cuda13-plugin of the same version as jax, Python >= 3.12); "
                f"no driver and no GPU is needed: {error}",
                param="target",
            ) from error
        devices: Sequence[jax.Device] = topology.devices
        return devices

    def _cpus(self) -> Sequence[jax.Device]:
        devices = jax.devices("cpu")
        if len(devices) < self.count:
            raise ConfigError(
                f"target: there are {len(devices)} CPU devices, not {self.count} "
                f"(XLA_FLAGS=--xla_force_host_platform_device_count={self.count} makes as many)",
                param="target",
            )
        return devices[: self.count]


def gpu_names() -> tuple[str, ...]:
    return tuple(_table())


def _table() -> dict[str, dict[str, Any]]:
    return tomllib.loads((files("jaxserve.aot") / "targets.toml").read_text(encoding="utf-8"))
