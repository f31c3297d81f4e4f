"""Where a GPU's memory goes: weights, reserve, KV cache; and how many tokens and requests the KV cache holds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Literal

from jaxserve.config.lora import LoraShape
from jaxserve.config.windows import group_layers
from jaxserve.errors import ConfigError
from jaxserve.models.config import Heads
from jaxserve.planner.adapters import adapter_bytes_device
from jaxserve.planner.catalogue import Hardware
from jaxserve.planner.shape import ModelShape, Part

WeightFormat = Literal["bf16", "fp8", "int8", "w8a8", "int4", "w4a16", "mxfp4"]
KvFormat = Literal["bf16", "fp8", "int8"]

GIB = 2**30
# Bits a weight: as estimates count them, and as stored. W4A16 has a 16-bit scale for every 128 weights; MXFP4's 8-bit scale for
# every 32 is always counted. FP8, INT8, W8A8 and INT4 are what `--quantization` makes: float32 scales are counted one by one.
WEIGHT_BITS: Mapping[str, tuple[float, float]] = MappingProxyType(
    {
        "bf16": (16.0, 16.0),
        "fp8": (8.0, 8.0),
        "int8": (8.0, 8.0),
        "w8a8": (8.0, 8.0),
        "int4": (4.0, 4.0),
        "w4a16": (4.0, 4.125),
        "mxfp4": (4.25, 4.25),
    }
)
INT8 = ("int8", "w8a8")
SCALE_BITS = 32  # of what `--quantization` makes
LARGEST_GROUP, SMALLEST_GROUP = 128, 32  # inputs that share a scale in INT4: the most that divide a matrix's, of powers of two
KV_BYTES: Mapping[str, int] = MappingProxyType({"bf16": 2, "fp8": 1, "int8": 1})
KV_SCALE_BYTES: Mapping[str, int] = MappingProxyType({"bf16": 0, "fp8": 2, "int8": 2})  # of each key and value of a KV head
WORKSPACE = 1.5  # GiB a GPU: CUDA context, cuBLAS and NCCL buffers (design studies)
ACTIVATIONS = 2.0  # GiB a GPU: peak of a prefill chunk (design studies)
ACTIVATION_BYTES = 2  # bfloat16
PAGE_SIZE = 16  # tokens; a request takes whole pages


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """A model on `tp` GPUs: one replica.

    Attributes:
        tp: devices that share every layer.
        weights, kv_dtype: formats of weights and of the KV cache.
        draft: the draft model or head on the same devices, whose keys and values are in the same pages; None for none.
        adapters: slots of adapters; None for none.
    """

    shape: ModelShape
    hardware: Hardware
    tp: int
    weights: WeightFormat
    kv_dtype: KvFormat
    draft: Layout | None = None
    adapters: LoraShape | None = None

    def rounded(self, part: Part) -> float:
        """How many weights of a part take the weight format."""
        return self._rounded(part, _whole)[0]

    def scales(self, part: Part) -> float:
        """How many scales those have, if they are counted one by one."""
        return self._rounded(part, _whole)[1]

    def part_bytes(self, part: Part) -> float:
        """Bytes of a part of the weights, all devices' copies counted once."""
        return self._bytes(part, _whole)

    def part_bytes_device(self, part: Part) -> float:
        """Bytes of a part of the weights on one device."""
        return self._bytes(part, lambda part: part.on_device(self.tp))

    def _bytes(self, part: Part, count: Callable[[Part], float]) -> float:
        rounded, scales = self._rounded(part, count)
        return (rounded * WEIGHT_BITS[self.weights][1] + (count(part) - rounded) * part.bits + scales * SCALE_BITS) / 8

    def _rounded(self, part: Part, count: Callable[[Part], float]) -> tuple[float, float]:
        """How many weights take the format, and how many scales they have."""
        if self.weights == "int4":
            share = count(part) / part.count
            grouped = [(number * share, group) for number, inputs in part.matrices if (group := _group(inputs)) is not None]
            return sum(number for number, _ in grouped), sum(number / group for number, group in grouped)
        if not (part.scales if self.weights in INT8 else part.quantized):
            return 0, 0
        return count(part), sum(map(count, part.scales)) if self.weights in (*INT8, "fp8") else 0

    @property
    def weight_bytes(self) -> float:
        """Bytes of the weights as a checkpoint holds them."""
        return sum(self.part_bytes(part) for part in self.shape.parts)

    @property
    def weight_bytes_device(self) -> float:
        """Bytes of the weights on one device."""
        return sum(self.part_bytes_device(part) for part in self.shape.parts)

    def kv_layer_bytes(self, tp: int | None = None) -> int:
        """KV bytes of a token in one layer, scales included: in all, or on one of `tp` devices with the copies it must hold."""
        numbers = self.shape.kv_values(tp) * KV_BYTES[self.kv_dtype]
        return numbers + self.shape.kv_vectors(tp) * KV_SCALE_BYTES[self.kv_dtype]

    def read_bytes(self, heads: Heads) -> int:
        """KV bytes of a token that a layer with such heads reads on one device, scales included."""
        scales = 0 if self.shape.heads else self.shape.kv_vectors(self.tp) * KV_SCALE_BYTES[self.kv_dtype]
        return self.shape.read_values(heads, self.tp) * KV_BYTES[self.kv_dtype] + scales

    @property
    def kv_token_bytes(self) -> int:
        """KV bytes of a token that every layer still sees, over the whole replica; copies not counted."""
        return len(self.shape.cache_windows) * self.kv_layer_bytes()

    @property
    def kv_number_bytes(self) -> int:
        """Of them, without the scales: what the design studies count."""
        return len(self.shape.cache_windows) * self.shape.kv_values() * KV_BYTES[self.kv_dtype]

    @property
    def kv_token_bytes_device(self) -> int:
        """KV bytes of a token on one device, with the copies it must hold."""
        return len(self.shape.cache_windows) * self.kv_layer_bytes(self.tp)

    @property
    def held_token_bytes(self) -> int:
        """Bytes that pages hold of a token that every layer still sees, those of a draft included, over the whole replica."""
        return self.kv_token_bytes + (0 if self.draft is None else self._groups * self.draft.kv_token_bytes)

    @property
    def held_token_bytes_device(self) -> int:
        """The same on one device, with the copies it must hold."""
        return self.kv_token_bytes_device + (0 if self.draft is None else self._groups * self.draft.kv_token_bytes_device)

    @property
    def state_bytes_device(self) -> int:
        """Bytes of a request's recurrent states on one device."""
        return self.shape.state_bytes(ACTIVATION_BYTES, self.tp)

    def kv_bytes_device(self, context: int) -> int:
        """KV bytes that a request of `context` tokens takes on one device, in whole pages; a windowed layer holds its window.

        With its recurrent states, if it has some, and a snapshot of them.
        """
        tokens = -(-context // PAGE_SIZE) * PAGE_SIZE
        own = self.shape.held(tokens) * self.kv_layer_bytes(self.tp) + 2 * self.state_bytes_device
        if self.draft is None:
            return own
        windows = group_layers(self.shape.cache_windows).windows
        return own + sum(min(tokens, window or tokens) for window in windows) * self.draft.kv_token_bytes_device

    @property
    def _groups(self) -> int:
        """Groups of layers: a page is of one of them, and has room for a draft's keys and values whichever it is."""
        return len(group_layers(self.shape.cache_windows).windows)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryBudget:
    """Memory of one GPU, and what its KV cache holds.

    Attributes:
        unit: of the sizes: "GiB", or "GB" where round figures are added as they come.
        hbm: capacity.
        weights, draft, adapters, workspace, activations, margin: taken or reserved; draft are the weights of a draft model
            or head, adapters their slots.
        kv: what is left.
        kv_tokens: tokens of KV that a replica holds (every device has its share of each token).
    """

    unit: str
    hbm: float
    weights: float
    draft: float
    adapters: float
    workspace: float
    activations: float
    margin: float
    kv: float
    kv_tokens: int


def _whole(part: Part) -> float:
    return part.count


def _group(inputs: int) -> int | None:
    """Inputs that share a scale in INT4; None for a matrix that stays as it is."""
    group = LARGEST_GROUP
    while inputs % group and group > SMALLEST_GROUP:
        group //= 2
    return None if inputs % group else group


def check_layout(layout: Layout) -> None:
    """Raise ConfigError, with the numbers that conflict, unless the heads split evenly over the devices: a draft's, too."""
    if layout.draft is not None:
        check_layout(layout.draft)
    heads, tp = layout.shape.num_heads, layout.tp
    if heads % tp:
        raise ConfigError(f"tp {tp} does not divide the {heads} heads of {layout.shape.name}", param="tp")
    if layout.shape.latent is not None:
        return
    for kv_heads in dict.fromkeys(heads.kv_heads for heads in layout.shape.layer_heads):
        if kv_heads % tp and tp % kv_heads:
            raise ConfigError(
                f"tp {tp} neither divides nor is a multiple of the {kv_heads} KV heads of {layout.shape.name}", param="tp"
            )
    if layout.kv_dtype != "bf16" and len({(each.kv_heads, each.head_dim) for each in layout.shape.layer_heads}) > 1:
        raise ConfigError(
            f"kv_dtype {layout.kv_dtype}: layers of {layout.shape.name} have different KV heads, whose cache cannot be quantized",
            param="kv_dtype",
        )


def ledger(layout: Layout) -> MemoryBudget:
    """Weights counted one by one, capacity as the driver reports it.

    Raises ConfigError: the weights leave no room; says how much is short and which tp would do.
    """
    hbm, weights, beside = layout.hardware.hbm_mib / 1024, layout.weight_bytes_device / GIB, _bytes_beside(layout) / GIB
    kv = hbm - weights - beside - reserve(layout.hardware)
    if kv * GIB < PAGE_SIZE * layout.held_token_bytes_device:
        raise ConfigError(_too_big(layout, hbm, weights + beside), param="tp")
    tokens = int(kv * GIB / layout.held_token_bytes_device)
    return _ledger("GiB", layout, hbm, weights, tokens)


def round_ledger(layout: Layout) -> MemoryBudget | None:
    """The estimate with round figures: the size in the model's name, capacity as sold. None for a model without such a name,
    and where nothing would be left.

    It divides GB by KiB as if they were GiB, as the design studies do. That is nearly right: HBM is made in GiB.
    """
    if layout.shape.nominal_billions is None:
        return None
    hbm, weights = layout.hardware.hbm_gb, layout.shape.nominal_billions * WEIGHT_BITS[layout.weights][0] / 8 / layout.tp
    beside = _bytes_beside(layout) / 1e9
    tokens = int((hbm - weights - beside - reserve(layout.hardware)) * GIB / layout.held_token_bytes_device)
    return _ledger("GB", layout, hbm, weights, tokens) if tokens > 0 else None


def reserve(hardware: Hardware) -> float:
    """Memory that neither weights nor KV may have."""
    return WORKSPACE + ACTIVATIONS + hardware.margin_gb


def concurrency(layout: Layout, memory: MemoryBudget, context: int) -> int:
    """Requests of `context` tokens each that the KV cache of a replica holds."""
    return int(memory.kv * GIB // layout.kv_bytes_device(context))


def _draft_bytes(layout: Layout) -> float:
    """Bytes of a draft's weights on one device."""
    return 0.0 if layout.draft is None else layout.draft.weight_bytes_device


def _adapter_bytes(layout: Layout) -> int:
    return 0 if layout.adapters is None else adapter_bytes_device(layout.shape, layout.tp, layout.adapters)


def _bytes_beside(layout: Layout) -> float:
    """Bytes that one device holds beside the model: a draft's weights, and adapters."""
    return _draft_bytes(layout) + _adapter_bytes(layout)


def _ledger(unit: Literal["GiB", "GB"], layout: Layout, hbm: float, weights: float, kv_tokens: int) -> MemoryBudget:
    size = GIB if unit == "GiB" else 1e9
    draft, adapters = _draft_bytes(layout) / size, _adapter_bytes(layout) / size
    return MemoryBudget(
        unit=unit,
        hbm=hbm,
        weights=weights,
        draft=draft,
        adapters=adapters,
        workspace=WORKSPACE,
        activations=ACTIVATIONS,
        margin=layout.hardware.margin_gb,
        kv=hbm - weights - draft - adapters - reserve(layout.hardware),
        kv_tokens=kv_tokens,
    )


def _too_big(layout: Layout, hbm: float, weights: float) -> str:
    short = weights + reserve(layout.hardware) - hbm
    name = layout.shape.name if layout.draft is None else f"{layout.shape.name} with the draft {layout.draft.shape.name}"
    text = (
        f"{name} in {layout.weights} leaves no room for KV on {layout.hardware.name} at tp {layout.tp}: "
        f"{weights:.2f} GiB of weights and {reserve(layout.hardware):.2f} GiB of reserve on each GPU, {hbm:.2f} GiB of HBM, "
    )
    text += f"{short * GIB / 1e9:.2f} GB short" if short > 0 else "not a page left"
    fitting = next((tp for tp in range(layout.tp + 1, layout.shape.num_heads + 1) if _fits(layout, tp)), None)
    return text + (f"; tp {fitting} would fit" if fitting else "; no tp would fit")


def _fits(layout: Layout, tp: int) -> bool:
    wider = replace(layout, tp=tp, draft=layout.draft and replace(layout.draft, tp=tp))
    try:
        check_layout(wider)
    except ConfigError:
        return False
    left = layout.hardware.hbm_mib / 1024 - reserve(layout.hardware) - (wider.weight_bytes_device + _bytes_beside(wider)) / GIB
    return left * GIB >= PAGE_SIZE * wider.held_token_bytes_device
