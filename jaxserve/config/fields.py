"""The dataclasses. A field's metadata holds its help text; `flags` turns fields into command-line flags."""

from __future__ import annotations

import ipaddress
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, get_type_hints
from urllib.parse import urlsplit

from jaxserve.config.check import check_types, take_several
from jaxserve.config.kernels import AUTO, Kernels, parse_kernels
from jaxserve.config.web_pages import parse_hosts, parse_origins
from jaxserve.errors import ConfigError

MAX_MESSAGE_MIB = 1024  # protobuf takes less than 2 GiB
MAX_MINUTES = 525_600  # a year
ITL_TARGET_MS = 50.0
CPU_ITL_TARGET_MS = 400.0  # what a prompt of some hundred tokens takes on a few cores: it waits for few steps
MAX_KEEPALIVE = 86_400  # seconds; gRPC counts milliseconds in 32 bits
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
    chat_template: str | None = setting(None, "file with a Jinja chat template that replaces the checkpoint's own")
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
        check_types(self)
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
    prefix_caching: bool = setting(True, "share full pages of equal prompt prefixes between requests")
    warm_prompts: str | None = setting(None, "file of prompts, a JSON object a line, that are in the prefix cache from the start")

    def __post_init__(self) -> None:
        check_types(self)
        require_at_least("page_size", self.page_size, 1)
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

    def __post_init__(self) -> None:
        check_types(self)
        require_at_least("max_num_seqs", self.max_num_seqs, 1)
        require_at_least("max_num_batched_tokens", self.max_num_batched_tokens, self.max_num_seqs)
        require_at_least("long_prefill_token_threshold", self.long_prefill_token_threshold, 0)
        require_at_least("max_waiting", self.max_waiting, 1)
        require_at_least("max_waiting_tokens", self.max_waiting_tokens, 1)
        require_at_least("max_logprob_values", self.max_logprob_values, 1)
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
    before_ready: Literal["auto", "first", "all"] = setting(
        "auto", "steps compiled before serving: a few that hold every plan, the others behind, or all; 'auto': few on GPUs"
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


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelConfig:
    """Implementations of the operations, by layer: 'auto', a name, or names with layers such as 'xla@0-3,mosaic_gpu@4-31'."""

    attention_kernel: str = setting(AUTO, "of attention over pages; 'auto' takes what suits device, shapes and dtypes")
    kv_write_kernel: str = setting(AUTO, "of writing keys and values into pages; 'auto' likewise")
    grouped_matmul_kernel: str = setting(AUTO, "of the matrix products of experts; 'auto' likewise")

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


_MAX_DAYS = 36_500
_AT_LEAST_ONE = (
    "max_header_kib",
    "max_connections",
    "max_unread_tokens",
    "max_unread_kib",
    "max_file_mib",
    "max_tenant_mib",
    "max_tenant_batches",
    "max_batch_lines",
)
_STREAM_TIMES = (
    "http_keepalive",
    "receive_timeout",
    "body_timeout",
    "upload_timeout",
    "sse_keepalive",
    "unread_timeout",
    "token_timeout",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """Where and how the servers listen."""

    host: str = setting("127.0.0.1", "address to listen on")
    port: int = setting(8000, "HTTP port; 0 picks a free one")
    grpc_port: int = setting(8001, "gRPC port; 0 picks a free one")
    tls_cert: str | None = setting(
        None, "PEM file of the certificate, and of those between it and its authority; plain text by default"
    )
    tls_key: str | None = setting(None, "PEM file of the certificate's private key, without a password")
    tls_client_ca: str | None = setting(
        None, "PEM file of authorities that sign clients' certificates; clients need none by default"
    )
    grpc_max_message_mib: int = setting(16, "largest gRPC request in MiB")
    grpc_keepalive: float = setting(60.0, "seconds without traffic after which a gRPC client is asked whether it lives")
    keys: str | None = setting(None, "TOML file of API keys and of what their tenants may take; without, anybody is let in")
    api_key_hashes: tuple[str, ...] = setting((), "SHA-256 of keys that one tenant has, in place of a file of keys", flag=False)
    allow_unauthenticated: bool = setting(False, "listen without API keys where other machines can reach the server")
    allowed_hosts: str = setting(
        "",
        "names, with commas between them, that requests may call the server by, besides localhost and --host; '*' for any, "
        "which is so by default with API keys or where other machines can reach it",
    )
    allowed_origins: str = setting(
        "", "origins of web pages, with commas between them, that may send requests and read answers (CORS); '*' for any"
    )
    usage_log: str | None = setting(None, "file to which each delivered batch of tokens is appended as a line of JSON, for bills")
    ignore_unsupported: str = setting(
        "", "fields, with commas between them, that are dropped from requests instead of refused, such as tools; answers say so"
    )
    max_body_bytes: int = setting(4 * 2**20, "longest body of an HTTP request other than an upload")
    max_bodies_mib: int = setting(
        512, "MiB of request bodies that a front end holds at once; a tenant takes a quarter of it at most"
    )
    state_dir: str | None = setting(
        None, "directory of files and batches, made if need be; without, /v1/files and /v1/batches are not served"
    )
    max_file_mib: int = setting(512, "largest file in MiB that can be uploaded")
    file_days: float = setting(30.0, "days after which a file is removed, unless it was asked for less or more")
    max_tenant_mib: int = setting(10_240, "MiB of files that a tenant may have stored; outputs of batches count")
    max_tenant_batches: int = setting(100, "batches of a tenant that have not ended, at most")
    max_batch_lines: int = setting(50_000, "requests in a batch, at most")
    max_header_kib: int = setting(64, "longest head of an HTTP request in KiB: request line and headers")
    max_connections: int = setting(10_000, "HTTP connections a front end; more are told to come back")
    http_keepalive: float = setting(75.0, "seconds that an HTTP connection may be idle between requests")
    receive_timeout: float = setting(20.0, "seconds in which a request's head, or body, may be behind 500 bytes a second")
    body_timeout: float = setting(300.0, "seconds after which a request's body must have come, other than an upload's")
    upload_timeout: float = setting(3600.0, "seconds after which an upload must have come")
    sse_keepalive: float = setting(10.0, "seconds of silence after which a stream is sent a comment, and begun if need be")
    max_unread_tokens: int = setting(4096, "tokens that wait for a client that reads slowly, at most")
    max_unread_kib: int = setting(4096, "memory in KiB that they take, at most")
    unread_timeout: float = setting(60.0, "seconds without progress after which a client that does not read is given up")
    token_timeout: float = setting(600.0, "seconds without a token after which a stream ends; the batch class may wait for ever")
    frontends: int = setting(1, "front-end processes, each with HTTP and gRPC on the same ports")
    tokenizer_processes: int = setting(0, "processes a front end that tokenize and render; 0 for threads of its own")
    max_engine_restarts: int = setting(5, "starts in a row of engines that end within a minute, before the server gives up")
    drain_timeout: float = setting(30.0, "seconds that running requests get to finish after SIGTERM")
    log_level: Literal["debug", "info", "warning", "error"] = setting("info", "least severe message to log")
    log_format: Literal["text", "json"] = setting("text", "how messages are written: for people, or an object a line")
    otlp_endpoint: str | None = setting(
        None, "OTLP/gRPC address of an OpenTelemetry collector, such as http://localhost:4317; no spans by default"
    )
    slo_ttft_ms: float = setting(1000.0, "time to the first token that counts as in time for goodput, milliseconds")
    slo_itl_ms: float = setting(50.0, "mean time between tokens that counts as in time for goodput, milliseconds")
    ready_timeout: float = setting(10.0, "seconds without a turn of the engine's loop after which /ready fails")
    engine_hang_timeout: float = setting(
        120.0, "seconds without a turn after which the engine is killed and started again; 0 for never"
    )

    def __post_init__(self) -> None:
        take_several(self, "api_key_hashes")
        check_types(self)
        for name in ("port", "grpc_port"):
            if not 0 <= getattr(self, name) <= 65535:
                raise ConfigError(f"{name} must be between 0 and 65535, got {getattr(self, name)}", param=name)
        require_at_least("frontends", self.frontends, 1)
        require_at_least("tokenizer_processes", self.tokenizer_processes, 0)
        require_at_least("max_engine_restarts", self.max_engine_restarts, 0)
        for name in ("drain_timeout", "engine_hang_timeout"):
            require_at_least(name, getattr(self, name), 0)
            if getattr(self, name) == math.inf:
                raise ConfigError(f"{name} must be finite, got inf", param=name)
        require_at_least("max_body_bytes", self.max_body_bytes, 1)
        require_at_least("max_bodies_mib", self.max_bodies_mib, self.max_body_bytes / 2**20)  # one must fit
        for name in _AT_LEAST_ONE:
            require_at_least(name, getattr(self, name), 1)
        for name in ("slo_ttft_ms", "slo_itl_ms", "ready_timeout", *_STREAM_TIMES):
            if not 0.0 < getattr(self, name) < math.inf:
                raise ConfigError(f"{name} must be above 0 and finite, got {getattr(self, name)}", param=name)
        if not 0.0 < self.file_days <= _MAX_DAYS:
            raise ConfigError(f"file_days must be above 0 and at most {_MAX_DAYS}, got {self.file_days}", param="file_days")
        if self.keys is not None and self.api_key_hashes:
            raise ConfigError(
                "keys and api_key (or JAXSERVE_API_KEY) exclude each other: `jaxserve keys` adds a key to the file",
                param="api_key",
            )
        parse_hosts(self.allowed_hosts)
        parse_origins(self.allowed_origins)
        if not self.has_keys and not self.allow_unauthenticated and not is_loopback(self.host):
            raise ConfigError(
                f"host {self.host!r} can be reached by other machines, and there are no API keys: give --keys or --api-key, "
                "or --allow-unauthenticated to let anybody in",
                param="allow_unauthenticated",
            )
        if self.otlp_endpoint is not None and not _is_http_url(self.otlp_endpoint):
            raise ConfigError(
                f"otlp_endpoint must be a URL such as http://localhost:4317, got {self.otlp_endpoint!r}", param="otlp_endpoint"
            )
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ConfigError("tls_cert and tls_key go together", param="tls_key" if self.tls_key is None else "tls_cert")
        if self.tls_client_ca is not None and self.tls_cert is None:
            raise ConfigError("tls_client_ca needs tls_cert and tls_key", param="tls_client_ca")
        if not 1 <= self.grpc_max_message_mib <= MAX_MESSAGE_MIB:
            raise ConfigError(
                f"grpc_max_message_mib must be between 1 and {MAX_MESSAGE_MIB}, got {self.grpc_max_message_mib}",
                param="grpc_max_message_mib",
            )
        if not 1.0 <= self.grpc_keepalive <= MAX_KEEPALIVE:
            raise ConfigError(
                f"grpc_keepalive must be between 1 and {MAX_KEEPALIVE} seconds, got {self.grpc_keepalive}", param="grpc_keepalive"
            )

    @property
    def has_keys(self) -> bool:
        """Whether who sends requests needs an API key."""
        return self.keys is not None or bool(self.api_key_hashes)


def is_loopback(host: str) -> bool:
    """Whether only programs of this machine can reach what listens on an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:  # a name
        return host == "localhost"


def _is_http_url(text: str) -> bool:
    try:
        url = urlsplit(text)
        return url.scheme in ("http", "https") and bool(url.hostname) and url.port != 0
    except ValueError:  # no host or port that could be one
        return False


def require_at_least(name: str, value: float, low: float) -> None:
    """Raise ConfigError naming the field unless value >= low."""
    if not value >= low:  # a NaN is not
        raise ConfigError(f"{name} must be at least {low}, got {value}", param=name)
