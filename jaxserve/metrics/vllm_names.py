"""The metrics that gateways, and those who watch speculation, read of every engine, under vLLM's names, beside ours.

Gateway API Inference Extension, llm-d and KServe look for these by default:
https://github.com/kubernetes-sigs/gateway-api-inference-extension/tree/main/docs/proposals/003-model-server-protocol
"""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

from jaxserve.metrics import catalogue
from jaxserve.metrics.catalogue import Kind, Metric

PREFIX = "vllm:"
METHOD = "method"  # of ours, which theirs do not have

THEIRS = MappingProxyType(
    {
        ours: replace(ours, prefix=PREFIX, labels=tuple(label for label in ours.labels if label != METHOD))
        for ours in (
            catalogue.NUM_REQUESTS_RUNNING,
            catalogue.NUM_REQUESTS_WAITING,
            catalogue.KV_CACHE_USAGE,
            catalogue.PREFIX_CACHE_QUERIES,
            catalogue.PREFIX_CACHE_HITS,
            catalogue.NUM_PREEMPTIONS,
            catalogue.SPEC_DRAFTS,
            catalogue.SPEC_DRAFT_TOKENS,
            catalogue.SPEC_ACCEPTED_TOKENS,
            catalogue.SPEC_ACCEPTED_PER_POS,
        )
    }
)
"""Of ours, those that have another name besides."""

OURS = MappingProxyType({theirs: ours for ours, theirs in THEIRS.items()})

CACHE_CONFIG_INFO = Metric(
    name="cache_config_info",
    kind=Kind.GAUGE,
    help="1, with the tokens of a KV page and the pages of all engines as labels.",
    labels=("model_name", "block_size", "num_gpu_blocks"),
    at_scrape=True,
    prefix=PREFIX,
)

LORA_REQUESTS_INFO = Metric(
    name="lora_requests_info",
    kind=Kind.GAUGE,
    help="The time, with the adapters' slots, and names of the adapters of requests that run, and that wait, as labels.",
    labels=("max_lora", "running_lora_adapters", "waiting_lora_adapters"),
    at_scrape=True,
    prefix=PREFIX,
)

VLLM_METRICS: tuple[Metric, ...] = (*THEIRS.values(), CACHE_CONFIG_INFO, LORA_REQUESTS_INFO)
