"""Every metric there is: name, kind, labels, buckets and help. Nothing is recorded or shown that is not here.

Names and meanings follow vLLM's where it has the metric (https://docs.vllm.ai/en/latest/usage/metrics.html), with the prefix
`jaxserve:`. Times are in seconds. Labels: `model_name`; `service_class`; `context_tier`, of the prompt's length (see `tiers`);
`method`, who guesses tokens ("none": nobody).
Tenants are no label: there may be any number of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

PREFIX = "jaxserve:"

MODEL = ("model_name",)
REQUEST = ("model_name", "service_class", "context_tier")
GUESSES = ("model_name", "method")


class Kind(StrEnum):
    """How a metric's values add up."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One metric.

    Attributes:
        name: without `prefix`, and for a counter without the `_total` that it is shown with.
        help: what it says, for people.
        buckets: upper bounds of a histogram's buckets; the last, infinite one goes without saying.
        at_scrape: whether its value is asked for when somebody looks, where others are recorded when something happens.
    """

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = MODEL
    buckets: tuple[float, ...] = ()
    at_scrape: bool = False
    prefix: str = PREFIX

    @property
    def full_name(self) -> str:
        return self.prefix + self.name

    @property
    def series(self) -> tuple[str, ...]:
        """The names that its values have in the Prometheus text."""
        if self.kind is Kind.COUNTER:
            return (f"{self.full_name}_total",)
        if self.kind is Kind.GAUGE:
            return (self.full_name,)
        return (f"{self.full_name}_bucket", f"{self.full_name}_sum", f"{self.full_name}_count")


def _counter(name: str, help: str, labels: tuple[str, ...] = MODEL, *, at_scrape: bool = False) -> Metric:
    return Metric(name=name, kind=Kind.COUNTER, help=help, labels=labels, at_scrape=at_scrape)


def _gauge(name: str, help: str, labels: tuple[str, ...] = MODEL, *, at_scrape: bool = True) -> Metric:
    return Metric(name=name, kind=Kind.GAUGE, help=help, labels=labels, at_scrape=at_scrape)


def _histogram(name: str, help: str, buckets: tuple[float, ...], labels: tuple[str, ...] = REQUEST) -> Metric:
    return Metric(name=name, kind=Kind.HISTOGRAM, help=help, labels=labels, buckets=buckets)


_FINE = (0.0005, 0.001, 0.002, 0.003, 0.005, 0.0075)  # of what takes a small model, or an idle queue, less than 10 ms
_LATENCY = (*_FINE, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0)
_LONG = (0.01, 0.05, 0.1, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0)
_TOKEN = (*_FINE, 0.01, 0.015, 0.02, 0.025, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.5, 5.0)
_PHASE = (1e-5, 3e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 2e-2, 5e-2, 0.1, 0.2, 0.5, 1.0, 5.0)
_POWERS_OF_TWO = tuple(float(2**power) for power in range(18))

# Requests, recorded by the front end that has them: received == finished + aborted + rejected + active.
REQUESTS_RECEIVED = _counter("requests_received", "Requests that reached the engine client.")
REQUESTS_FINISHED = _counter("requests_finished", "Requests whose every sequence ended by itself.")
REQUESTS_ABORTED = _counter("requests_aborted", "Requests that began and were cut off, by reason.", (*MODEL, "reason"))
REQUESTS_REJECTED = _counter("requests_rejected", "Requests that never began, by reason (error code).", (*MODEL, "reason"))
REQUESTS_ACTIVE = _gauge("requests_active", "Requests received and not ended: what is left of the four others.")
REQUEST_SUCCESS = _counter("request_success", "Sequences that ended, by reason.", (*REQUEST, "finished_reason"))
REQUESTS_WITHIN_SLO = _counter("requests_within_slo", "Finished requests whose first and other tokens came in time.", REQUEST)
PROMPT_TOKENS = _counter("prompt_tokens", "Prompt tokens of requests that began.", REQUEST)
GENERATION_TOKENS = _counter("generation_tokens", "Output tokens.", REQUEST)
GOODPUT_TOKENS = _counter("goodput_tokens", "Output tokens of finished requests within the service level objective.", REQUEST)
TIME_TO_FIRST_TOKEN = _histogram("time_to_first_token_seconds", "From arrival to the first token.", _LATENCY)
INTER_TOKEN_LATENCY = _histogram("inter_token_latency_seconds", "Between two tokens of a sequence.", _TOKEN)
E2E_LATENCY = _histogram("e2e_request_latency_seconds", "From arrival to the end of a finished request.", _LONG)
QUEUE_TIME = _histogram("request_queue_time_seconds", "From arrival to the first step.", (*_FINE, *_LONG))
PREFILL_TIME = _histogram("request_prefill_time_seconds", "From the first step to the first token.", (*_FINE, *_LONG))
DECODE_TIME = _histogram("request_decode_time_seconds", "From the first token to the last, of a finished request.", _LONG)
REQUEST_PROMPT_TOKENS = _histogram("request_prompt_tokens", "Prompt tokens of a request that began.", _POWERS_OF_TWO)
REQUEST_GENERATION_TOKENS = _histogram("request_generation_tokens", "Output tokens of a sequence that ended.", _POWERS_OF_TWO)

# The engine's load and what its scheduler and cache counted since its start, asked for at each scrape.
NUM_REQUESTS_RUNNING = _gauge("num_requests_running", "Sequences that hold pages.")
NUM_REQUESTS_WAITING = _gauge("num_requests_waiting", "Sequences in the queue, preempted ones included.")
KV_CACHE_USAGE = _gauge("kv_cache_usage_perc", "Share of the KV pages that sequences hold, 0 to 1.")
PREFIX_CACHE_QUERIES = _counter("prefix_cache_queries", "Prompt tokens looked up in the prefix cache.", at_scrape=True)
PREFIX_CACHE_HITS = _counter("prefix_cache_hits", "Prompt tokens found in the prefix cache.", at_scrape=True)
NUM_PREEMPTIONS = _counter("num_preemptions", "Times that a sequence gave its pages back.", at_scrape=True)
RECOMPUTED_TOKENS = _counter("recomputed_tokens", "Computed tokens lost by preemptions.", at_scrape=True)
ENGINE_UP = _gauge("engine_up", "1 while the engine is alive and takes requests, else 0.")

# Steps, recorded by the engine.
STEP_SECONDS = _histogram("step_seconds", "From a step's launch, or the end of the one before, to its result.", _PHASE, MODEL)
STEP_PHASE_SECONDS = _histogram(
    "step_phase_seconds", "Phases of a turn of the engine: plan, launch, wait, apply, emit.", _PHASE, (*MODEL, "phase")
)
BATCH_ROWS = _histogram("batch_rows", "Rows (sequences) of a step.", _POWERS_OF_TWO[:14], MODEL)
BATCH_TOKENS = _histogram("batch_tokens", "Tokens of a step.", _POWERS_OF_TWO, MODEL)
PADDING_TOKENS = _counter("padding_tokens", "Tokens that steps computed for nothing, to fill their buckets.")
SWAPPED_OUT_PAGES = _counter("swapped_out_pages", "KV pages of preempted sequences that were moved to host memory.")
SWAPPED_IN_PAGES = _counter("swapped_in_pages", "KV pages that were moved back from host memory.")
STEP_BUDGET_RAISES = _counter(
    "step_budget_raises", "Times that steps grew beyond what was learned to fit, because they were shorter than they may be."
)
QUEUE_ESTIMATE_MISSES = _counter(
    "queue_estimate_misses", "Requests that waited more than twice as long as was expected when they came, or less than half."
)
OVERLOADS = _counter("overloads", "Times that requests began to come faster than they were started, so that some were refused.")
MASKED_ROWS = _counter("masked_rows", "Rows of steps whose choice a grammar bounds.")
MASK_SECONDS = _counter("mask_seconds", "Time that the engine's thread waited for their masks.")
FORCED_TOKENS = _counter("forced_tokens", "Output tokens that were not chosen, because a grammar left one alone.")
ADAPTER_LOADS = _counter("adapter_loads", "Adapters that came into a slot on the devices.")
ADAPTER_DEVICE_BYTES = _gauge("adapter_device_bytes", "Memory that the slots of adapters take on each device.")
ADAPTER_HOST_BYTES = _gauge("adapter_host_bytes", "Memory of the host that adapters are kept in.")
SPEC_DRAFTS = _counter("spec_decode_num_drafts", "Rows of steps that verified tokens guessed before.", GUESSES)
SPEC_DRAFT_TOKENS = _counter(
    "spec_decode_num_draft_tokens", "Guessed tokens that were verified; what was not accepted was wasted.", GUESSES
)
SPEC_ACCEPTED_TOKENS = _counter("spec_decode_num_accepted_tokens", "Guessed tokens that were what the model chose.", GUESSES)
SPEC_ACCEPTED_PER_POS = _counter(
    "spec_decode_num_accepted_tokens_per_pos", "The same by their position in a row's guess, from 0.", (*GUESSES, "position")
)
SPEC_SECONDS = _counter(
    "spec_decode_seconds", "Time that the engine's thread took to guess tokens, and to decide how many.", GUESSES
)
EXPERT_TOKENS = _counter("expert_tokens", "Tokens that visited an expert, in layers that have them.", (*MODEL, "layer", "expert"))
COMPILED_PROGRAMS = _counter("compiled_programs", "Programs compiled or loaded, which steps may use.")
LATE_COMPILES = _counter("late_compiles", "Programs that steps compiled after the engine was ready; there should be none.")
BUCKET_MISSES = _counter("bucket_misses", "Steps padded to a larger bucket because theirs was not compiled yet.")
WEIGHT_CHECKS = _counter("weight_checks", "Blocks of weights that were read back from a device and are what was loaded.")

# The servers, recorded by each front end.
HTTP_REQUESTS = _counter("http_requests", "HTTP answers, by route and status.", ("method", "route", "status"))
GRPC_REQUESTS = _counter("grpc_requests", "gRPC answers, by method and status.", ("method", "status"))
ACTIVE_STREAMS = _gauge("active_streams", "Exchanges that stream now, by surface (http, grpc).", ("surface",), at_scrape=False)
USAGE_TOKENS_LOST = _counter("usage_tokens_lost", "Delivered tokens that the usage log does not have.", ())
TOKENIZER_FALLBACKS = _counter("tokenizer_fallbacks", "Calls that no tokenizer process answered, so that a front end did.", ())

# A fleet of engines, recorded by each front end that has one.
FLEET_REPLICAS = _gauge(
    "fleet_replicas", "Engines that front ends may send requests to, added up over front ends.", at_scrape=False
)
FLEET_RESUMED = _counter("fleet_resumed", "Requests that went on in another engine because theirs was lost, hung or left.")
FLEET_REROUTED = _counter("fleet_rerouted", "Requests that went to another engine because one refused them.")
FLEET_LOST = _counter("fleet_lost", "Engines that were lost while they took requests.")
FLEET_HUNG = _counter("fleet_hung", "Times that an engine stood still, so that its requests went on elsewhere.")
FLEET_IMBALANCE = _gauge("fleet_imbalance", "Sequences of the engine that has most, over the mean of all that take requests.")
FLEET_QUARANTINED = _counter("fleet_quarantined", "Times that an engine got nothing new for a while because it was slow.")

# Batches, recorded by the worker that runs them.
BATCHES = _gauge("batches", "Batches that are stored, by status.", ("status",), at_scrape=False)
BATCH_REQUESTS = _counter("batch_requests", "Requests of batches that are done, by fate (completed, failed).", ("fate",))

# Processes.
PROCESS_RESTARTS = _counter(
    "process_restarts", "Starts of a process after the first, by role (engine, frontend, batches).", ("role",)
)
ENGINE_HANGS = _counter("engine_hangs", "Engines that were killed because their loop stood still.", ())
PROCESS_MEMORY = _gauge(
    "process_resident_memory_bytes", "Resident memory of live processes, by role; on Linux.", ("role",), at_scrape=False
)

CATALOGUE: tuple[Metric, ...] = tuple(value for value in tuple(globals().values()) if isinstance(value, Metric))
