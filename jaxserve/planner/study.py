"""One question answered in full: settings in, every figure out."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from jaxserve.config.check import check_types, require_at_least
from jaxserve.config.fields import setting
from jaxserve.config.lora import LoraConfig, LoraShape
from jaxserve.config.speculative import SpeculationConfig, SpeculativeConfig
from jaxserve.errors import ConfigError
from jaxserve.planner import catalogue, fleet, memory, roofline
from jaxserve.planner.draft import with_draft
from jaxserve.planner.memory import KvFormat, Layout, MemoryBudget, WeightFormat
from jaxserve.planner.roofline import Machine, Step
from jaxserve.planner.shape import ModelShape
from jaxserve.planner.speculation import SpeculationPlan, speculation_plan

CONTEXTS = (2048, 4096, 8192, 16384, 32768, 65536, 131072)  # tokens
PROMPTS = (512, 1024, 2048, 4096, 8192, 32768, 131072)  # tokens
GPUS_A_NODE = 8
BATCHES = tuple(2**power for power in range(13))


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanConfig:
    """What to plan for."""

    model: str = setting(
        "llama-3-8b", "a known shape, a checkpoint directory or a config.json; an unknown name lists them", positional=True
    )
    hardware: str = setting("h100", "GPU; an unknown name lists them")
    tp: int = setting(1, "GPUs that share every layer: one replica")
    replicas: int | None = setting(None, "replicas; as many as the load needs by default")
    weights: WeightFormat = setting("bf16", "format of the weights")  # noqa: RUF009 - makes a dataclass field
    kv_dtype: KvFormat = setting("bf16", "format of the KV cache")  # noqa: RUF009
    users: int | None = setting(None, "load: requests in flight at any time")
    requests_per_second: float | None = setting(None, "load: arrivals a second")
    prompt: int = setting(1792, "tokens of a prompt")
    output: int = setting(256, "tokens of an answer")
    context: int | None = setting(None, "tokens a request holds in the decode table; prompt + output by default")
    itl_ms: float = setting(50.0, "longest mean time between the tokens of a request, milliseconds")
    utilisation: float = setting(0.7, "share of the capacity to plan with")
    price: float | None = setting(None, "USD an hour for one GPU; the hardware table's by default")
    compute_efficiency: float = setting(0.6, "share of the peak FLOP/s that matrix products reach")
    memory_efficiency: float = setting(1.0, "share of the peak HBM bandwidth that reads reach")
    speculative_config: str | None = setting(
        None, "JSON object with vLLM's fields, as for jaxserve.serve: tells when it pays, and counts a draft's memory"
    )

    max_loras: int | None = setting(None, "adapters (LoRA) on the GPUs at a time, as for jaxserve.serve; none by default")
    max_lora_rank: int = setting(16, "largest rank of an adapter")
    lora_experts: bool = setting(False, "adapters may change routed experts, too")

    def __post_init__(self) -> None:
        check_types(self)
        self.adapters()
        for name in ("tp", "prompt", "output"):
            require_at_least(name, getattr(self, name), 1)
        for name in ("replicas", "users", "context"):
            if getattr(self, name) is not None:
                require_at_least(name, getattr(self, name), 1)
        for name in ("requests_per_second", "itl_ms", "price"):
            value = getattr(self, name)
            if value is not None and not 0.0 < value < math.inf:
                raise ConfigError(f"{name} must be above 0 and finite, got {value}", param=name)
        for name in ("utilisation", "compute_efficiency", "memory_efficiency"):
            if not 0.0 < getattr(self, name) <= 1.0:
                raise ConfigError(f"{name} must be in (0, 1], got {getattr(self, name)}", param=name)
        if self.users is not None and self.requests_per_second is not None:
            raise ConfigError("give users or requests_per_second, not both", param="users")
        self.speculation()

    def speculation(self) -> SpeculativeConfig | None:
        """Who guesses tokens; None for nobody."""
        return SpeculationConfig(speculative_config=self.speculative_config).parse()

    def adapters(self) -> LoraShape | None:
        """Slots of adapters; None for none."""
        if self.max_loras is None:
            if self.lora_experts:
                raise ConfigError("lora_experts needs max_loras", param="lora_experts")
            return LoraConfig(max_lora_rank=self.max_lora_rank).shape
        require_at_least("max_loras", self.max_loras, 1)
        slots, rank = self.max_loras, self.max_lora_rank
        return LoraConfig(
            enable_lora=True, max_loras=slots, max_cpu_loras=slots, max_lora_rank=rank, lora_experts=self.lora_experts
        ).shape

    @property
    def decode_context(self) -> int:
        """Tokens a request holds in the decode table."""
        return self.context or self.prompt + self.output


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextRow:
    """Requests of one length.

    Attributes:
        beyond_model: whether the model was made for less.
        kv_bytes_device: KV bytes of one request on one GPU.
        requests: how many a replica holds.
    """

    context: int
    beyond_model: bool
    kv_bytes_device: int
    requests: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeRow:
    """Decode at one batch size.

    Attributes:
        intensity: FLOP a byte of the whole step.
        tokens_per_s, tokens_per_s_request: output of the replica, and of one request.
        usd_per_m_tokens: USD a million output tokens at full load, prompts not counted.
    """

    step: Step
    intensity: float
    tokens_per_s: float
    tokens_per_s_request: float
    usd_per_m_tokens: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """Every figure of a plan. Sizes and rates are per GPU or per replica as their classes say.

    Attributes:
        layout, rates: model, hardware and formats; rates as reached.
        parameters, active_parameters: weights, and those that one token is multiplied with.
        weight_bytes, weight_bytes_device: in all, and on one GPU.
        kv_token_bytes, kv_token_bytes_device: per token over the replica, and on one GPU.
        ledger, round_ledger: memory of one GPU, counted and in round figures.
        contexts: concurrency by context length.
        balance: FLOP a byte at which compute and memory bandwidth take equally long, at the rates' peak.
        crossover_batch: decode batch from which products with weights are limited by compute, at the rates' peak.
        attention_intensity: FLOP a byte of attention in decode, the same at every batch.
        floor_s: seconds a decoded token at least.
        speculation: when it pays, if it was asked for; every other figure is without, but for the memory of a draft.
        notes: what a reader would otherwise get wrong.
    """

    config: PlanConfig
    layout: Layout
    rates: Machine
    parameters: int
    active_parameters: int
    weight_bytes: float
    weight_bytes_device: float
    kv_token_bytes: int
    kv_token_bytes_device: int
    ledger: MemoryBudget
    round_ledger: MemoryBudget | None
    contexts: tuple[ContextRow, ...]
    balance: float
    crossover_batch: int
    attention_intensity: float
    floor_s: float
    decode: tuple[DecodeRow, ...]
    prefill: tuple[Step, ...]
    load: fleet.Load
    replica: fleet.Replica
    fleet: fleet.Fleet
    speculation: SpeculationPlan | None
    notes: tuple[str, ...]


def study(config: PlanConfig) -> Study:
    """Answer a question.

    Raises:
        ConfigError: unknown names, and anything that cannot be, with the numbers that conflict.
        CheckpointError: a config.json that cannot be planned with.
    """
    gpu, shape = catalogue.hardware(config.hardware), catalogue.model(config.model)
    alone = Layout(shape=shape, hardware=gpu, tp=config.tp, weights=config.weights, kv_dtype=config.kv_dtype)
    layout = replace(with_draft(alone, config.speculation()), adapters=config.adapters())
    memory.check_layout(layout)
    _check_lengths(config, shape)
    room, load = memory.ledger(layout), _load(config, gpu.price_per_hour)
    peak, rates = roofline.machine(layout), roofline.machine(layout, config.compute_efficiency, config.memory_efficiency)
    one = fleet.replica(layout, room, rates, load)
    return Study(
        config=config,
        layout=layout,
        rates=rates,
        parameters=shape.num_parameters,
        active_parameters=shape.num_active,
        weight_bytes=layout.weight_bytes,
        weight_bytes_device=layout.weight_bytes_device,
        kv_token_bytes=layout.kv_token_bytes,
        kv_token_bytes_device=layout.kv_token_bytes_device,
        ledger=room,
        round_ledger=memory.round_ledger(layout),
        contexts=tuple(_context(layout, room, context) for context in CONTEXTS),
        balance=roofline.balance(peak),
        crossover_batch=roofline.crossover_batch(layout, peak),
        attention_intensity=roofline.attention_intensity(layout),
        floor_s=roofline.decode_floor_s(layout, peak),
        decode=_decode(layout, room, rates, config, load),
        prefill=tuple(roofline.prefill_step(layout, rates, prompt) for prompt in sorted({*PROMPTS, config.prompt})),
        load=load,
        replica=one,
        fleet=fleet.fleet(layout, one, load, config.replicas),
        speculation=speculation_plan(
            layout,
            config.speculation(),
            rates,
            (config.compute_efficiency, config.memory_efficiency),
            largest=max(memory.concurrency(layout, room, config.decode_context), 1),
            prompt=config.prompt,
            context=config.decode_context,
        ),
        notes=_notes(layout),
    )


def _load(config: PlanConfig, price: float) -> fleet.Load:
    return fleet.Load(
        prompt=config.prompt,
        output=config.output,
        users=config.users,
        requests_per_second=config.requests_per_second,
        itl_s=config.itl_ms / 1e3,
        utilisation=config.utilisation,
        price_per_hour=config.price or price,
    )


def _check_lengths(config: PlanConfig, shape: ModelShape) -> None:
    longest = shape.max_position_embeddings
    if config.prompt + config.output > longest:
        raise ConfigError(
            f"prompt {config.prompt} + output {config.output} tokens is more than the {longest} that {shape.name} was made for",
            param="prompt",
        )
    if config.decode_context > longest:
        raise ConfigError(
            f"context {config.context} is more than the {longest} tokens that {shape.name} was made for", param="context"
        )


def _context(layout: Layout, room: MemoryBudget, context: int) -> ContextRow:
    return ContextRow(
        context=context,
        beyond_model=context > layout.shape.max_position_embeddings,
        kv_bytes_device=layout.kv_bytes_device(context),
        requests=memory.concurrency(layout, room, context),
    )


def _decode(layout: Layout, room: MemoryBudget, rates: Machine, config: PlanConfig, load: fleet.Load) -> tuple[DecodeRow, ...]:
    most = memory.concurrency(layout, room, config.decode_context)
    if most < 1:
        context = config.decode_context
        raise ConfigError(f"a request of {context} tokens does not fit: the KV cache holds {room.kv_tokens:,}", param="context")
    batches = [batch for batch in BATCHES if batch < most] + [most]
    rows = []
    for batch in batches:
        step = roofline.decode_step(layout, rates, batch, config.decode_context)
        rows.append(
            DecodeRow(
                step=step,
                intensity=(step.linear_flops + step.attention_flops) / (step.weight_bytes + step.kv_bytes),
                tokens_per_s=batch / step.total_s,
                tokens_per_s_request=1 / step.total_s,
                usd_per_m_tokens=fleet.usd_per_m_tokens(layout.tp * load.price_per_hour, batch / step.total_s),
            )
        )
    return tuple(rows)


def _notes(layout: Layout) -> tuple[str, ...]:
    shape, notes = layout.shape, []
    if layout.weights == "fp8" and layout.hardware.fp8_tflops is None:
        notes.append(f"{layout.hardware.name} has no FP8 units: FP8 weights save memory and are multiplied in BF16.")
    if layout.tp > GPUS_A_NODE:
        notes.append(f"{layout.tp} GPUs are more than one node has: all-reduces are counted as if NVLink joined them all.")
    if any(shape.windows):
        notes.append("Windowed layers are counted with their window; an engine that keeps whole contexts needs the full rate.")
    if shape.latent and shape.latent.indexer:
        notes.append(
            "Sparse attention: a step is counted as if tokens attended to all; the bytes that the cache holds are exact."
        )
    if shape.latent:
        notes.append("Latent attention: the latent is shared by all heads, so every GPU of a replica holds all of it.")
    elif layout.tp > shape.num_kv_heads:
        notes.append(
            f"{shape.num_kv_heads} KV heads on {layout.tp} GPUs: each head is held {layout.tp // shape.num_kv_heads} times."
        )
    unrounded = sum(part.on_device(layout.tp) for part in shape.parts if part.quantized and not part.scales)
    if layout.weights == "fp8" and unrounded:
        notes.append(
            f"Counted as published: routed experts and absorbed projections in FP8. This engine holds them in 16 bits on GPUs, "
            f"{unrounded / 1e9:,.1f} GB more on each."
        )
    if shape.experts:
        notes.append("Experts are split over the GPUs as matrices are; a step reads those that its tokens are expected to visit.")
    return tuple(notes)
