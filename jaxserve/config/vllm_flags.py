"""The flags of `vllm serve` that are not this server's own, and what is made of each. docs/configuration.md shows this table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

BARE = ""  # the value of a flag without one


@dataclass(frozen=True, slots=True)
class Theirs:
    """Flags of which the same is true.

    Attributes:
        names: the flags, without those of one letter where there is a longer one.
        ours: our flag that means the same; where it ends in "=", a value belongs to it.
        values: their words for values of ours.
        same: values with which they ask for what is so here anyway; BARE for the flag alone.
        why: how it is here, and what to use instead.
    """

    names: tuple[str, ...]
    ours: str = ""
    values: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    same: tuple[str, ...] = ()
    why: str = ""


def _ours(ours: str, *names: str, **values: str) -> Theirs:
    return Theirs(names, ours=ours, values=MappingProxyType(values))


def _same(why: str, *names: str, values: tuple[str, ...] = (BARE,)) -> Theirs:
    return Theirs(names, same=values, why=why)


def _refused(why: str, *names: str) -> Theirs:
    return Theirs(names, why=why)


VLLM_FLAGS = (
    # What means the same under another name, or with other words for values.
    _ours("--tensor-parallel-size=", "-tp"),
    _ours("--quantization=", "-q"),
    _ours("--gpu-memory-fraction=", "--gpu-memory-utilization"),
    _ours("--page-size=", "--block-size"),
    _ours("--num-pages=", "--num-gpu-blocks-override"),
    _ours("--prefix-caching", "--enable-prefix-caching"),
    _ours("--no-prefix-caching", "--no-enable-prefix-caching"),
    _ours("--overlap", "--async-scheduling"),
    _ours("--no-overlap", "--no-async-scheduling"),
    _ours("--frontends=", "--api-server-count", "-asc"),
    _ours("--drain-timeout=", "--shutdown-timeout"),
    _ours("--tls-cert=", "--ssl-certfile"),
    _ours("--tls-key=", "--ssl-keyfile"),
    _ours("--otlp-endpoint=", "--otlp-traces-endpoint"),
    _ours("--speculative-config=", "-sc"),
    _ours("--dtype=", "--dtype", half="float16", float="float32"),
    _ours("--generation-config=", "--generation-config", vllm="none"),
    _ours("--before-ready=fewest", "--enforce-eager"),
    _ours("--runner=", "--task", embed="pooling", embedding="pooling", classify="pooling", score="pooling", reward="pooling"),
    # What is so anyway.
    _same("a prompt is always computed in parts beside other requests' decodes", "--enable-chunked-prefill"),
    _same("code that comes with a checkpoint is never run", "--trust-remote-code"),
    _same(
        "the text of requests and of answers is never logged",
        "--disable-log-requests",
        "--no-enable-log-requests",
        "--no-enable-log-outputs",
    ),
    _same("statistics are not logged; they are at /metrics", "--disable-log-stats"),
    _same("usage always tells cached tokens", "--enable-prompt-tokens-details"),
    _same("answers always carry X-Request-Id", "--enable-request-id-headers"),
    _same("/load always tells the load", "--enable-server-load-tracking"),
    _same("every token is sent as it comes", "--stream-interval", values=("1",)),
    _same("the checkpoint says which tokenizer it is", "--tokenizer-mode", values=("auto", "hf")),
    _same("configurations are in Hugging Face's format", "--config-format", values=("auto", "hf")),
    _same("models are this server's own", "--model-impl", values=("auto", "vllm")),
    _same("a KV cache in 8 bits has a scale for each token and KV head, made as they come", "--calculate-kv-scales"),
    _same("20 log-probabilities a token at most", "--max-logprobs", values=("20",)),
    _same("jax chooses the devices: set JAX_PLATFORMS", "--device", values=("auto",)),
    _same("a preempted sequence is computed again if that is cheaper: --swap-space", "--preemption-mode", values=("recompute",)),
    _same("weights stay on the devices", "--cpu-offload-gb", values=("0",)),
    _same("layers are not divided among devices: --tensor-parallel-size", "--pipeline-parallel-size", "-pp", values=("1",)),
    _same("one engine a server: start several behind a balancer", "--data-parallel-size", "-dp", values=("1",)),
    _same("the model calls tools if it likes wherever a request brings some", "--enable-auto-tool-choice"),
    _same("thinking is always taken apart from the answer", "--enable-reasoning"),
    _same("a step is planned at a time", "--num-scheduler-steps", values=("1",)),
    _same("templates get the content as they ask for it", "--chat-template-content-format", values=("auto",)),
    _same("see --before-ready", "--no-enforce-eager"),
    _same("answers are the assistant's", "--response-role", values=("assistant",)),
    # What is not here.
    _refused(
        "XLA compiles steps for the shapes that --max-num-seqs and --max-num-batched-tokens say; see --before-ready",
        "--compilation-config",
        "-cc",
        "-O",
        "--optimization-level",
        "--cuda-graph-sizes",
        "--cudagraph-capture-sizes",
        "--max-cudagraph-capture-size",
        "--max-seq-len-to-capture",
    ),
    _refused("a prompt is always computed in parts; --max-num-batched-tokens bounds them", "--no-enable-chunked-prefill"),
    _refused(
        "parts of prompts are bounded by --long-prefill-token-threshold",
        "--max-num-partial-prefills",
        "--max-long-partial-prefills",
    ),
    _refused("say how much memory with --kv-cache-memory-gib, in GiB", "--kv-cache-memory-bytes", "--kv-cache-memory"),
    _refused("nothing is downloaded: give the directory of a checkpoint", "--download-dir", "--hf-token", "--ignore-patterns"),
    _refused(
        "nothing is downloaded: the directory of the checkpoint says which revision",
        "--revision",
        "--code-revision",
        "--tokenizer-revision",
    ),
    _refused("change config.json in the checkpoint's directory", "--hf-config-path", "--rope-scaling", "--rope-theta"),
    _refused("a server tokenizes", "--skip-tokenizer-init", "--tokens-only"),
    _refused("requests say how to sample, or generation_config.json does (--generation-config)", "--override-generation-config"),
    _refused("pages are hashed with keyed BLAKE2", "--prefix-caching-hash-algo"),
    _refused(
        "pages stay in device memory",
        "--kv-transfer-config",
        "--kv-offloading-size",
        "--kv-offloading-backend",
    ),
    _refused(
        "give the number of groups with --expert-parallel-size",
        "--enable-expert-parallel",
        "-ep",
        "--enable-eplb",
        "--eplb-config",
    ),
    _refused(
        "one process drives all devices of a machine",
        "--distributed-executor-backend",
        "--worker-cls",
        "--nnodes",
        "--node-rank",
        "--master-addr",
        "--headless",
    ),
    _refused(
        "one engine a server: start several behind a balancer",
        "--data-parallel-rank",
        "--data-parallel-size-local",
        "--data-parallel-address",
    ),
    _refused(
        "kernels are chosen by --attention-kernel and its like",
        "--attention-backend",
        "--disable-custom-all-reduce",
        "--disable-cascade-attn",
        "--disable-sliding-window",
    ),
    _refused("requests have service classes: --default-class and --policies", "--scheduling-policy", "--scheduler-cls"),
    _refused(
        "adapters have the dtype of the weights, and are divided over devices as these are",
        "--lora-dtype",
        "--fully-sharded-loras",
    ),
    _refused("adapters may change every projection that takes any, routed experts' with --lora-experts", "--lora-target-modules"),
    _refused("say it with --speculative-config", "--speculative-model", "--num-speculative-tokens"),
    _refused("describe the format in a file: --response-template", "--tool-parser-plugin", "--reasoning-parser-plugin"),
    _refused("tools are the client's to run", "--tool-server"),
    _refused("llguidance compiles every grammar", "--guided-decoding-backend", "--structured-outputs-config"),
    _refused("logits are changed by sampling parameters alone", "--logits-processors", "--logits-processor-pattern"),
    _refused(
        "prompts are text",
        "--limit-mm-per-prompt",
        "--mm-processor-kwargs",
        "--allowed-local-media-path",
        "--allowed-media-domains",
        "--mm-encoder-tp-mode",
    ),
    _refused("the files of the checkpoint say how it pools, and requests may", "--override-pooler-config", "--pooler-config"),
    _refused("gRPC is served beside HTTP, at --grpc-port", "--grpc"),
    _refused("listen at --host and --port", "--uds", "--root-path"),
    _refused(
        "there is one level for all of the log: --log-level",
        "--uvicorn-log-level",
        "--disable-uvicorn-access-log",
        "--log-config-file",
    ),
    _refused(
        "the text of requests and of answers is never logged; a line a request is, at --log-level info",
        "--enable-log-requests",
        "--enable-log-outputs",
        "--max-log-len",
    ),
    _refused("a head is bounded by --max-header-kib, in KiB", "--h11-max-incomplete-event-size", "--h11-max-header-count"),
    _refused("--tls-client-ca FILE asks every client for a certificate", "--ssl-ca-certs", "--ssl-cert-reqs"),
    _refused(
        "TLS is 1.2 or newer with the library's ciphers; a new certificate needs a restart",
        "--ssl-ciphers",
        "--enable-ssl-refresh",
    ),
    _refused("requests ask for it: stream_options.include_usage", "--enable-force-include-usage"),
    _refused("requests ask for it: return_tokens_as_token_ids", "--return-tokens-as-token-ids"),
    _refused("requests give them: chat_template_kwargs", "--default-chat-template-kwargs"),
    _refused("the template is the server's: --chat-template", "--trust-request-chat-template"),
    _refused("/docs is always there", "--disable-fastapi-docs", "--enable-offline-docs"),
    _refused("code is not loaded by name", "--middleware", "--logits-processor", "--io-processor-plugin"),
    _refused("the engine does not sleep", "--enable-sleep-mode"),
)
