"""The sections in the order of their weight, which is the order they run in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from types import MappingProxyType
from typing import cast

from benchmarks.gpu.tasks import Section


@dataclass(frozen=True, slots=True)
class Entry:
    """A section.

    Attributes:
        module: of this package.
        seconds: after which it begins nothing more.
        about: what it measures, for people.
        function: of the module: the section.
    """

    module: str
    seconds: float
    about: str
    function: str = "tasks"

    def load(self) -> Section:
        """Import it."""
        return cast(Section, getattr(import_module(f"benchmarks.gpu.{self.module}"), self.function))


SECTIONS: Mapping[str, Entry] = MappingProxyType(
    {
        "device": Entry("device", 20, "versions, GPU, driver"),
        "bandwidth": Entry("bandwidth", 30, "what a copy, a reduction and a matrix product reach: the bounds of all else"),
        "parity": Entry("parity", 90, "every GPU kernel against its float64 reference"),
        "decode": Entry("decode", 110, "decode attention as a share of the copy bandwidth"),
        "engine": Entry("engine", 230, "Llama-3-8B through the engine: step, roofline, host gap, TTFT, start"),
        "prefill": Entry("prefill", 60, "prefill attention beside cuDNN's"),
        "transformers": Entry("generate", 70, "the same model in HF transformers' generate"),
        "tiles": Entry("tiles", 80, "the kernels with other tile sizes"),
        "kv_write": Entry("writes", 40, "writing keys and values into pages"),
        "parity_xla": Entry("parity", 60, "the same of the implementations in XLA", "xla_tasks"),
        "sharded": Entry("sharded", 200, "the engine on all GPUs, where there are several"),
    }
)
