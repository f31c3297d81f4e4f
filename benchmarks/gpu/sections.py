"""The sections in the order of what they decide, which is the order they run in: the first command's, then those of `--more`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from types import MappingProxyType
from typing import cast

from benchmarks.gpu.bare import do_without_msgspec
from benchmarks.gpu.tasks import Section


@dataclass(frozen=True, slots=True)
class Entry:
    """A section.

    Attributes:
        module: of this package.
        seconds: after which it begins nothing more.
        about: what it measures, for people.
        function: of the module: the section.
        later: whether it belongs to the second command.
        after: the section of the same run whose results it needs, if any.
        several: whether it is for several devices: a rehearsal has two CPU devices for it.
    """

    module: str
    seconds: float
    about: str
    function: str = "tasks"
    later: bool = False
    after: str = ""
    several: bool = False

    def load(self) -> Section:
        """Import it."""
        do_without_msgspec()
        return cast(Section, getattr(import_module(f"benchmarks.gpu.{self.module}"), self.function))


def _more(module: str, seconds: float, about: str, function: str = "more_tasks") -> Entry:
    return Entry(module, seconds, about, function, later=True)


SECTIONS: Mapping[str, Entry] = MappingProxyType(
    {
        "device": Entry("device", 10, "versions, GPU, driver"),
        "mosaic": Entry("mosaic", 20, "one call of a Mosaic kernel"),
        "parity": Entry("parity", 170, "every GPU kernel against its float64 reference, in bfloat16 and float8"),
        "racecheck": Entry("racecheck", 45, "the kernels' shared memory under NVIDIA's racecheck"),
        "bandwidth": Entry("bandwidth", 15, "what a copy, a reduction and a matrix product reach: the bounds of all else"),
        "decode": Entry("decode", 25, "decode attention as a share of the copy bandwidth"),
        "shapes": Entry("shapes", 25, "decode attention at TP=8, and with one long row among short ones"),
        "prefill": Entry("prefill", 30, "prefill attention beside cuDNN's"),
        "engine": Entry("serving", 130, "Llama-3-8B through the engine: step, roofline, host gap, TTFT, start"),
        "saved": Entry("saved", 35, "that engine from programs that its section has saved", after="engine"),
        "autotune": Entry("autotune", 40, "what measuring kernels costs and gains, on a few layers"),
        "autotune_taken": Entry("autotune", 25, "its results, taken by another process", "taken_tasks", after="autotune"),
        "families": _more("families", 190, "golden checkpoints of every family against transformers' tokens", "tasks"),
        "more_autotune": _more("autotune", 120, "what measuring kernels costs and gains, on the whole model"),
        "more_engine": _more("serving", 160, "the same with fewer and with more rows"),
        "server": _more("server", 150, "the same model behind HTTP, with clients that stream", "tasks"),
        "more_decode": _more("decode", 90, "decode attention by rows and context"),
        "more_shapes": _more("shapes", 50, "decode attention with pages of 64, and with drafts"),
        "more_prefill": _more("prefill", 60, "prefill attention of other lengths"),
        "flashinfer": _more("flashinfer_attention", 120, "FlashInfer's attention on the batches of the first command", "tasks"),
        "transformers": _more("generate", 70, "the same model in HF transformers' generate", "tasks"),
        "tiles": _more("tiles", 80, "the kernels with other tile sizes", "tasks"),
        "kv_write": _more("writes", 40, "writing keys and values into pages", "tasks"),
        "rounded": _more("rounded", 60, "products with matrices in int8 and int4 beside bfloat16", "tasks"),
        "more_parity": _more("parity", 170, "every GPU kernel in float16 and float32"),
        "parity_xla": _more("parity", 120, "the same of the implementations in XLA", "xla_tasks"),
        "all_reduce": Entry(
            "all_reduce", 60, "all-reduces by message size: NCCL's, and in symmetric memory", later=True, several=True
        ),
        "sharded": Entry("sharded", 200, "the engine on all GPUs, where there are several", later=True, several=True),
    }
)

FIRST = tuple(name for name, entry in SECTIONS.items() if not entry.later)
"""Of the first command."""
