"""Every metric moves when what it measures happens, and requests are conserved."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import grpc.aio
import pytest

from jaxserve.metrics.catalogue import CATALOGUE, Kind, Metric
from jaxserve.metrics.process import ProcessRecorder
from jaxserve.metrics.servers import ServerRecorder
from jaxserve.proto import inference_pb2 as pb
from jaxserve.proto.inference_pb2_grpc import InferenceStub
from tests.integration.metrics.conftest import Watched

Values = dict[tuple[str, tuple[str, ...]], float]
LONG = {"prompt": "to be or not to be", "ignore_eos": True, "max_tokens": 100, "temperature": 0.0}

# Metrics that other tests cause: tests/unit/metrics/test_steps.py, test_experts.py, tests/system/chaos and others.
CAUSED_BY_EXECUTORS = {
    "late_compiles",
    "bucket_misses",
    "expert_tokens",
    "weight_checks",
    "swapped_out_pages",
    "swapped_in_pages",
}
CAUSED_BY_LOAD = {"step_budget_raises", "queue_estimate_misses", "overloads"}
CAUSED_BY_GRAMMARS = {"masked_rows", "mask_seconds", "forced_tokens"}
CAUSED_BY_SPECULATION = {metric.name for metric in CATALOGUE if metric.name.startswith("spec_decode")}
CAUSED_BY_OTHERS = {
    "adapter_loads",
    "adapter_device_bytes",
    "adapter_host_bytes",
    "process_restarts",
    "engine_hangs",
    "usage_tokens_lost",
    "tokenizer_fallbacks",
    "batches",
    "batch_requests",
}
CAUSED_BY_OTHERS |= {metric.name for metric in CATALOGUE if metric.name.startswith("fleet_")}
# Of a live engine these are above 0 only while something runs.
WHILE_RUNNING = {"num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "requests_active", "active_streams"}


def total(seen: Values, metric: Metric) -> float:
    name = metric.name + {Kind.COUNTER: "_total", Kind.GAUGE: "", Kind.HISTOGRAM: "_count"}[metric.kind]
    return sum(value for (found, _), value in seen.items() if found == name)


def conserved(seen: Values) -> bool:
    def count(what: str) -> float:
        return sum(value for (name, _), value in seen.items() if name == f"requests_{what}")

    ended = count("finished_total") + count("aborted_total") + count("rejected_total")
    return count("received_total") == ended + count("active")


async def run_everything(watched: Watched) -> list[Values]:
    """Requests of every fate, more of them than pages hold, and what was shown meanwhile."""
    seen: list[Values] = []

    async def leaves() -> None:
        asking = asyncio.create_task(watched.http.post("/v1/completions", json={**LONG, "max_tokens": 180}))
        while not any(count for (name, _), count in (await watched.metrics()).items() if name == "requests_active"):
            assert not asking.done()
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)

    async def watches() -> None:
        while True:
            seen.append(await watched.metrics())
            await asyncio.sleep(0.02)

    watching = asyncio.create_task(watches())
    bodies: list[dict[str, object]] = [{**LONG, "stream": number % 2 == 0} for number in range(6)]
    bodies += [{"prompt": "x" * 500}, {**LONG, "logit_bias": {"99999": 1}}, {**LONG, "queue_timeout": 0.001}]
    await asyncio.gather(*(watched.http.post("/v1/completions", json=body) for body in bodies))
    await leaves()
    async with grpc.aio.insecure_channel(watched.grpc) as channel:
        stopping = pb.Stopping(max_tokens=4, ignore_eos=True)
        assert [event async for event in InferenceStub(channel).Generate(pb.GenerateRequest(text="to be or", stopping=stopping))]
        with pytest.raises(grpc.aio.AioRpcError):
            await InferenceStub(channel).Generate(pb.GenerateRequest(text="x" * 500)).read()
    repeated = await watched.http.post("/v1/completions", json={**LONG, "max_tokens": 3})
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)
    assert repeated.status_code == 200
    return seen


async def until_quiet(watched: Watched) -> Values:
    async with asyncio.timeout(20):
        while watched.engine.stats().active:
            await asyncio.sleep(0.01)
    return await watched.metrics()


def moved(seen: Iterable[Values]) -> set[str]:
    shown = list(seen)
    return {metric.name for metric in CATALOGUE if any(total(one, metric) > 0 for one in shown)}


async def test_every_metric_moves_and_requests_are_conserved(watched: Watched) -> None:
    before = await watched.metrics()
    during = await run_everything(watched)
    after = await until_quiet(watched)

    assert all(conserved(seen) for seen in (before, *during, after))
    by_engine = (
        {metric.name for metric in CATALOGUE}
        - CAUSED_BY_SPECULATION
        - CAUSED_BY_EXECUTORS
        - CAUSED_BY_LOAD
        - CAUSED_BY_GRAMMARS
        - CAUSED_BY_OTHERS
    )
    assert by_engine - moved([*during, after]) == set()
    assert {metric.name for metric in CATALOGUE if metric.name in WHILE_RUNNING and total(after, metric) > 0} == set()
    assert moved([before]) <= {"engine_up", "compiled_programs", "process_resident_memory_bytes", "http_requests"}

    stats = watched.engine.stats()
    model = ("tiny",)
    assert after["requests_received_total", model] == stats.received
    assert after["requests_finished_total", model] == stats.finished
    assert after["num_preemptions_total", model] == stats.preemptions
    assert sum(value for (name, _), value in after.items() if name == "requests_aborted_total") == stats.aborted
    assert sum(value for (name, _), value in after.items() if name == "requests_rejected_total") == stats.rejected
    reasons = {labels[1] for (name, labels) in after if name == "requests_rejected_total"}
    assert {"context_length_exceeded", "invalid_request"} <= reasons
    assert ("requests_aborted_total", ("tiny", "client_gone")) in after
    assert after["http_requests_total", ("POST", "/v1/completions", "200")] >= 6
    assert after["http_requests_total", ("POST", "/v1/completions", "400")] == 2
    assert after["http_requests_total", ("POST", "/v1/completions", "499")] == 1
    assert after["grpc_requests_total", ("/jaxserve.v1.Inference/Generate", "OK")] == 1
    assert after["grpc_requests_total", ("/jaxserve.v1.Inference/Generate", "INVALID_ARGUMENT")] == 1


async def test_what_takes_other_causes_moves_too(watched: Watched) -> None:
    ProcessRecorder(watched.instruments, "engine", restarts=2)
    servers = ServerRecorder(watched.instruments)
    servers.tokenizer_fell_back()
    servers.usage_tokens_lost(7)
    seen = await watched.metrics()
    assert seen["process_restarts_total", ("engine",)] == 1
    assert seen["tokenizer_fallbacks_total", ()] == 1
    assert seen["usage_tokens_lost_total", ()] == 7


async def test_tokens_that_clients_got_are_those_that_metrics_count(watched: Watched) -> None:
    before = await until_quiet(watched)
    replies = await asyncio.gather(
        *(watched.http.post("/v1/completions", json={**LONG, "max_tokens": count, "n": 2}) for count in (3, 9))
    )
    got = sum(reply.json()["usage"]["completion_tokens"] for reply in replies)
    after = await until_quiet(watched)

    def grew(name: str) -> float:
        labels = ("1k", "tiny", "interactive_paid")
        return after[name, labels] - before[name, labels]

    assert got == 24 == grew("generation_tokens_total") == grew("request_generation_tokens_sum")
    assert grew("inter_token_latency_seconds_count") == 20
    assert grew("request_decode_time_seconds_count") == 4
    assert grew("time_to_first_token_seconds_count") == grew("e2e_request_latency_seconds_count") == 2
    assert grew("e2e_request_latency_seconds_sum") == pytest.approx(
        grew("request_queue_time_seconds_sum")
        + grew("request_prefill_time_seconds_sum")
        + (grew("e2e_request_latency_seconds_sum") - grew("time_to_first_token_seconds_sum"))
    )


async def test_paths_that_nobody_serves_are_one_route(watched: Watched) -> None:
    for path in ("/a", "/b/c", "/v1/models/tiny", "/v1/models/other"):
        await watched.http.get(path)
    await watched.http.request("PROPFIND", "/a")
    seen = await watched.metrics()
    routes = {labels for (name, labels) in seen if name == "http_requests_total"}
    assert {
        ("GET", "unmatched", "404"),
        ("GET", "/v1/models/{name:path}", "200"),
        ("GET", "/v1/models/{name:path}", "404"),
    } <= routes
    assert {route for _, route, _ in routes} <= {
        "unmatched",
        "/metrics",
        "/v1/completions",
        "/v1/models/{name:path}",
    }
    assert any(method == "other" for method, _, _ in routes)
