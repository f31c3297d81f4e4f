"""The dataclasses. A field's metadata holds its help text; `flags` turns fields into command-line flags."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, get_type_hints

from jaxserve.config.check import check_types, require_at_least, take_several
from jaxserve.config.home import expand_paths
from jaxserve.config.kernels import AUTO, Kernels, parse_kernels
from jaxserve.config.kv_events import KVEventsConfig, parse_kv_events
from jaxserve.config.lora import LoraConfig
from jaxserve.config.speculative import SpeculationConfig
from jaxserve.errors import ConfigError

MAX_MINUTES = 525_600  # a year
ITL_TARGET_MS = 50.0
CPU_ITL_TARGET_MS = 400.0  # what a prompt of some hundred tokens takes on a few cores: it waits for few steps
ServiceClassName = Literal["interactive_paid", "interactive_free", "batch"]
DType = Literal["auto", "bfloat16", "float16", "float32"]
Quantization = Literal["none", "int8", "w8a8", "int4", "fp8"]
KvCacheDType = Literal["auto", "bfloat16", "float16", "float32", "fp8", "fp8_e4m3", "int8"]


def setting(default: Any, help: str, **extra: Any) -> Any:
    """A dataclass field with its help text."""
    return field(default=default, metadata={"help": help, **extra})


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Which model, and how its numbers are held."""

    model: str = setting(
        "pico", "checkpoint directory in Hugging Face format, or 'pico' for the bundled model", positional=True, named=True
    )
    served_model_name: tuple[str, ...] = setting(
        (), "names clients may ask for, of which answers carry the first; the directory's name by default"
    )
    tokenizer: str | None = setting(None, "directory or file of the tokenizer; the checkpoint's own by default")
    dtype: DType = setting(
        "auto", "dtype of weights and activations, and of the KV cache unless that has its own; 'auto' takes the checkpoint's"
    )
    quantization: Quantization = setting(
        "none",
        "what matrices are rounded to while they are loaded: 'int8' with a scale an output; 'w8a8', in which activations are"
        " rounded too, a token at a time; 'int4' with a scale for 128 inputs of an output; 'fp8' (E4M3) with a scale an output,"
        " activations a token at a time, too",
    )
    max_model_len: int | None = setting(None, "longest prompt plus output in tokens; the model's own limit by default")
    load_format: Literal["auto", "safetensors", "orbax", "dummy"] = setting(
        "auto", "what the weights are in; 'auto': what the directory has; 'dummy': seeded random weights for config.json"
    )
    verify_weights: bool = setting(
        False, "compare every tensor, and the files of the chat template, with the checksums in the checkpoint's manifest"
    )
    require_quality: float | None = setting(
        None,
        "percent of perplexity that a quantized checkpoint may have lost, as its manifest says; others are refused, and those of"
        " which nobody knows it",
    )
    recheck_weights_minutes: float = setting(
        0.0, "minutes in which all weights are read back from the devices once and compared with what was loaded; 0 for never"
    )
    seed: int = setting(0, "seed of dummy weights and of requests without a seed")
    logprobs_mode: Literal["raw_logprobs", "processed_logprobs"] = setting(
        "raw_logprobs",
        "which log-probabilities requests get that do not say: the model's own, or those that tokens were drawn by, after"
        " penalties, masks, temperature and truncation",
    )
    runner: Literal["auto", "generate", "pooling"] = setting(
        "auto", "whether the model generates text or pools its hidden states; 'auto': as the checkpoint is made"
    )
    convert: Literal["auto", "none", "embed", "classify"] = setting(
        "auto",
        "what is made of hidden states: 'embed': embeddings, of any model, and beside its text if it generates; 'classify': what"
        " its head says; 'auto': of a model that pools the latter if it has one, of others nothing",
    )
    hf_overrides: str | None = setting(
        None,
        "JSON object with fields that replace config.json's, such as"
        """ '{"architectures": ["Qwen3ForSequenceClassification"], "classifier_from_token": ["no", "yes"]}'""",
    )
    enable_return_routed_experts: bool = setting(
        False,
        "keep of each token which experts it visited, for a trainer that replays them: LLM returns them, servers do not",
        flag=False,
    )
    chat_template: str | None = setting(None, "file with a Jinja chat template that replaces the checkpoint's own")
    parse_special_tokens_in_content: bool = setting(
        False,
        "recognize special tokens such as <|end|> that users, tools and documents spell out in chats; by default they are text",
    )
    tool_call_parser: str = setting(
        "auto", "how the model writes tool calls: 'auto' for what its files show, 'hf', 'none', or a name that vLLM's users know"
    )
    reasoning_parser: str = setting("auto", "how the model writes its thinking; as --tool-call-parser")
    response_template: str | None = setting(
        None, "JSON file with a response_template that replaces the checkpoint's own (docs/tools_and_reasoning.md)"
    )
    generation_config: Literal["auto", "none"] = setting(
        "auto", "whether the checkpoint's generation_config.json says how to sample for requests that do not"
    )

    def __post_init__(self) -> None:
        take_several(self, "served_model_name")
        if isinstance(self.hf_overrides, Mapping):
            object.__setattr__(self, "hf_overrides", json.dumps(dict(self.hf_overrides)))
        check_types(self)
        expand_paths(self, "model", "tokenizer", "chat_template", "response_template")
        self.parse_hf_overrides()
        if not all(self.served_model_name) or len(set(self.served_model_name)) != len(self.served_model_name):
            raise ConfigError(
                f"served_model_name must be names that differ, got {', '.join(map(repr, self.served_model_name))}",
                param="served_model_name",
            )
        if self.max_model_len is not None:
            require_at_least("max_model_len", self.max_model_len, 2)
        if not 0.0 <= self.recheck_weights_minutes <= MAX_MINUTES:
            raise ConfigError(
                f"recheck_weights_minutes must be between 0 and {MAX_MINUTES}, got {self.recheck_weights_minutes}",
                param="recheck_weights_minutes",
            )
        if self.require_quality is not None and not 0.0 <= self.require_quality < math.inf:
            raise ConfigError(
                f"require_quality must be at least 0 and finite, got {self.require_quality}", param="require_quality"
            )
        for name, usual in (("verify_weights", False), ("require_quality", None), ("recheck_weights_minutes", 0.0)):
            if getattr(self, name) != usual and self.load_format == "dummy":
                raise ConfigError(f"{name} needs a checkpoint, and load_format is 'dummy'", param=name)

    def parse_hf_overrides(self) -> dict[str, Any]:
        """The fields that replace config.json's."""
        try:
            given = json.loads(self.hf_overrides or "{}")
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"hf_overrides: not JSON: {error}", param="hf_overrides") from error
        if not isinstance(given, dict):
            raise ConfigError("hf_overrides must be a JSON object", param="hf_overrides")
        return given


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheConfig:
    """The paged KV cache."""

    kv_cache_dtype: KvCacheDType = setting(
        "auto",
        "what keys and values are kept in: 'auto' is the model's dtype; 'fp8' (E4M3, also 'fp8_e4m3') and 'int8' are 8 bits,"
        " with a scale for each token and KV head",
    )
    page_size: int = setting(16, "tokens a page")
    num_pages: int | None = setting(None, "pages in the KV cache, one of them the null page; from memory by default")
    kv_cache_memory_gib: float | None = setting(None, "memory for the KV cache in GiB; what is left on a GPU, or enough on a CPU")
    gpu_memory_fraction: float = setting(0.9, "share of GPU memory that weights, workspace and KV cache may take")
    swap_space: float = setting(
        0.0, "host memory in GiB, for each device, that pages of preempted requests may go to instead of being computed again"
    )
    state_snapshots: int | None = setting(
        None,
        "states of recurrent layers that are kept of prompts' beginnings, for those that begin alike; max_num_seqs and a "
        "quarter by default",
    )
    state_snapshot_interval: int = setting(
        256, "tokens from one kept state of a sequence to the next, about; rounded up to whole pages"
    )
    prefix_caching: bool = setting(True, "share full pages of equal prompt prefixes between requests")
    warm_prompts: str | None = setting(None, "file of prompts, a JSON object a line, that are in the prefix cache from the start")
    kv_events_config: str | None = setting(
        None, "JSON object that says where what the prefix cache holds is published, as vLLM's (docs/kv_events.md)"
    )

    def __post_init__(self) -> None:
        check_types(self)
        expand_paths(self, "warm_prompts")
        require_at_least("page_size", self.page_size, 1)
        require_at_least("state_snapshots", 0 if self.state_snapshots is None else self.state_snapshots, 0)
        require_at_least("state_snapshot_interval", self.state_snapshot_interval, 1)
        if self.num_pages is not None:
            require_at_least("num_pages", self.num_pages, 2)
        memory = self.kv_cache_memory_gib
        if memory is not None and not 0.0 < memory < math.inf:
            raise ConfigError(f"kv_cache_memory_gib must be above 0 and finite, got {memory}", param="kv_cache_memory_gib")
        if not 0.0 <= self.swap_space < math.inf:
            raise ConfigError(f"swap_space must be at least 0 and finite, got {self.swap_space}", param="swap_space")
        if not 0.0 < self.gpu_memory_fraction <= 1.0:
            raise ConfigError(
                f"gpu_memory_fraction must be in (0, 1], got {self.gpu_memory_fraction}", param="gpu_memory_fraction"
            )
        if self.kv_events is not None and not self.prefix_caching:
            raise ConfigError("kv_events_config needs prefix_caching: nothing is found without", param="kv_events_config")

    @property
    def kv_events(self) -> KVEventsConfig | None:
        return parse_kv_events(self.kv_events_config)


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """How requests share a step."""

    max_num_seqs: int = setting(32, "sequences in one step")
    max_num_batched_tokens: int = setting(512, "tokens in one step, prompts and decodes together")
    long_prefill_token_threshold: int = setting(0, "tokens of one prompt in one step at most; 0 for no limit of its own")
    max_waiting: int = setting(1024, "sequences in the waiting queue, preempted ones included; more are refused")
    low_watermark: float = setting(0.01, "share of the pages that stays free when a sequence is admitted")
    high_watermark: float = setting(
        0.02, "share of the pages that is free after a preemption, so that another does not follow at once"
    )
    growth_reserve: float = setting(
        1.0, "share of the growth expected of outputs that admission keeps pages for; 0 admits whatever prompts leave room"
    )
    max_waiting_tokens: int = setting(2_000_000, "prompt tokens in the waiting queue; more are refused")
    max_logprob_values: int = setting(
        524_288, "log-probabilities in the answer to one request; one output as long as the context may always have all of its"
    )
    max_pooling_bytes: int = setting(
        100_000_000, "estimated bytes of the embeddings, scores or token vectors in one response; larger requests are refused"
    )
    itl_target_ms: float | None = setting(
        None,
        "time between tokens that interactive requests are promised, milliseconds; 0: no promise; by default 50, on CPUs 400",
    )
    ttft_target_ms: float = setting(
        1000.0,
        "time to first token that interactive requests are refused for, in an overload, rather than miss it, milliseconds; "
        "0: they wait for as long as their queue_timeout",
    )
    aging_s: float = setting(10.0, "seconds after which a waiting request counts as one class higher than it is")
    prefill_price: float = setting(1.0, "token-work of a prompt token, for fairness between tenants")
    decode_price: float = setting(2.0, "token-work of an output token")
    default_class: ServiceClassName = setting("interactive_paid", "class of requests that name none")
    policies: str | None = setting(None, "JSON file of what classes and tenants may take; no limits by default")
    tenant_keys: str | None = setting(None, "the server's keys, whose weights of tenants join the policies", flag=False)
    overlap: bool = setting(True, "plan and submit the next step while the last one runs")
    whole_prompts: bool = setting(False, "compute a prompt in one step, as bidirectional models must", flag=False)

    def __post_init__(self) -> None:
        check_types(self)
        expand_paths(self, "policies")
        require_at_least("max_num_seqs", self.max_num_seqs, 1)
        require_at_least("max_num_batched_tokens", self.max_num_batched_tokens, self.max_num_seqs)
        require_at_least("long_prefill_token_threshold", self.long_prefill_token_threshold, 0)
        require_at_least("max_waiting", self.max_waiting, 1)
        require_at_least("max_waiting_tokens", self.max_waiting_tokens, 1)
        require_at_least("max_logprob_values", self.max_logprob_values, 1)
        require_at_least("max_pooling_bytes", self.max_pooling_bytes, 1)
        for name in ("growth_reserve", "itl_target_ms", "ttft_target_ms", "aging_s", "prefill_price", "decode_price"):
            value = getattr(self, name)
            if value is not None and not 0.0 <= value < math.inf:
                raise ConfigError(f"{name} must be at least 0 and finite, got {value}", param=name)
        if not 0.0 <= self.low_watermark <= self.high_watermark < 1.0:
            raise ConfigError(
                "watermarks must satisfy 0 <= low_watermark <= high_watermark < 1, "
                f"got low_watermark {self.low_watermark} and high_watermark {self.high_watermark}",
                param="low_watermark",
            )

    @property
    def itl_target(self) -> float:
        """Seconds between tokens that are promised; 0 for no promise."""
        return (ITL_TARGET_MS if self.itl_target_ms is None else self.itl_target_ms) / 1000

    @property
    def ttft_target(self) -> float:
        """Seconds to the first token that are aimed at in an overload; 0 for no aim."""
        return self.ttft_target_ms / 1000

    def on_cpu(self) -> SchedulerConfig:
        return replace(self, itl_target_ms=CPU_ITL_TARGET_MS) if self.itl_target_ms is None else self


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelConfig:
    """The device mesh."""

    tensor_parallel_size: int = setting(1, "devices that share every layer")
    expert_parallel_size: int | None = setting(
        None,
        "groups of those devices that share the experts of a layer, whole ones each; within a group every expert is divided; "
        "by default 1, on Hopper the fewest that leave widths its grouped matmul takes",
    )

    def __post_init__(self) -> None:
        check_types(self)
        devices, groups = self.tensor_parallel_size, self.expert_parallel_size
        require_at_least("tensor_parallel_size", devices, 1)
        if groups is None:
            return
        require_at_least("expert_parallel_size", groups, 1)
        if devices % groups:
            fitting = ", ".join(str(size) for size in range(1, devices + 1) if devices % size == 0)
            raise ConfigError(
                f"expert_parallel_size {groups} does not divide tensor_parallel_size {devices}; sizes that fit: {fitting}",
                param="expert_parallel_size",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileConfig:
    """Ahead-of-time compilation."""

    compilation_cache_dir: str | None = setting(
        None, "directory that keeps compiled programs for the next start; ~/.cache/jaxserve by default, 'none' for none"
    )
    before_ready: Literal["auto", "first", "all", "fewest"] = setting(
        "auto",
        "step shapes compiled before serving: 'first': a few that hold every plan, the others behind; 'all'; 'fewest': two that"
        " hold every plan, and no others, for a quick start and slower small steps; 'auto': 'first' on GPUs",
    )
    programs: str | None = setting(
        None, "directory of programs that jaxserve.compile saved: loaded, not compiled; they may run any code, so trust it"
    )
    autotune_results: str | None = setting(
        None,
        "directory of what XLA measured of kernels on a GPU: taken when programs are compiled, and added to; made if missing",
    )
    late_compiles: Literal["log", "raise"] = setting("log", "what becomes of a step that compiles something after all")

    def __post_init__(self) -> None:
        check_types(self)
        expand_paths(self, "compilation_cache_dir", "programs", "autotune_results")


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelConfig:
    """Implementations of the operations, by layer: 'auto', a name, or names with layers such as 'xla@0-3,mosaic_gpu@4-31'."""

    attention_kernel: str = setting(AUTO, "of attention over pages; 'auto' takes what suits device, shapes and dtypes")
    kv_write_kernel: str = setting(AUTO, "of writing keys and values into pages; 'auto' likewise")
    grouped_matmul_kernel: str = setting(AUTO, "of the matrix products of experts; 'auto' likewise")
    deterministic: bool = setting(
        False,
        "a token's logits depend on its own sequence alone, bit by bit: not on other rows of the step, on chunks, on prefix hits"
        " or on padding (docs/deterministic.md); refused where that is not known to hold",
    )

    def __post_init__(self) -> None:
        check_types(self)
        self.parse()

    def parse(self) -> Kernels:
        return Kernels(
            attention=parse_kernels(self.attention_kernel, "attention_kernel"),
            kv_write=parse_kernels(self.kv_write_kernel, "kv_write_kernel"),
            grouped_matmul=parse_kernels(self.grouped_matmul_kernel, "grouped_matmul_kernel"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordConfig:
    """The recording of the last steps, which is written to a file if the engine dies."""

    record_steps: int = setting(256, "steps that a crash dump holds; 0 for no dumps")
    dump_dir: str | None = setting(
        None, "directory of crash dumps, which hold prompts and outputs; ~/.cache/jaxserve/dumps by default"
    )

    def __post_init__(self) -> None:
        check_types(self)
        expand_paths(self, "dump_dir")
        require_at_least("record_steps", self.record_steps, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Everything an engine needs to start."""

    model: ModelConfig = field(default_factory=ModelConfig)
    cache: CacheConfig = field(default_factory=CacheConfig)
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    parallel: ParallelConfig = field(default_factory=ParallelConfig)
    compile: CompileConfig = field(default_factory=CompileConfig)
    kernels: KernelConfig = field(default_factory=KernelConfig)
    record: RecordConfig = field(default_factory=RecordConfig)
    speculation: SpeculationConfig = field(default_factory=SpeculationConfig)
    lora: LoraConfig = field(default_factory=LoraConfig)

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> EngineConfig:
        """Give every setting to the part that has the field. Raises ConfigError for a name that no part has."""
        parts = get_type_hints(cls)
        owners = {item.name: part for part, kind in parts.items() for item in fields(kind)}
        chosen: dict[str, dict[str, Any]] = {part: {} for part in parts}
        for name, value in settings.items():
            if name not in owners:
                raise ConfigError(f"unknown setting {name!r}; known are {', '.join(sorted(owners))}", param=name)
            chosen[owners[name]][name] = value
        return cls(**{part: kind(**chosen[part]) for part, kind in parts.items()})
