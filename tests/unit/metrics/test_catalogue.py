from pathlib import Path

from prometheus_client.metrics_core import Metric as Family

from jaxserve.metrics.catalogue import CATALOGUE, Kind
from jaxserve.metrics.exposition import Exposition, Reading
from jaxserve.metrics.instruments import Instruments
from jaxserve.metrics.requests import TIERS, context_tier
from jaxserve.metrics.steps import StepRecorder
from jaxserve.metrics.turn import ExecutorCounts, SchedulerCounts, Turn
from jaxserve.metrics.vllm_names import CACHE_CONFIG_INFO, VLLM_METRICS

# Dashboards written for vLLM look for these.
EXPECTED = {
    "num_requests_running",
    "num_requests_waiting",
    "kv_cache_usage_perc",
    "prefix_cache_queries",
    "prefix_cache_hits",
    "prompt_tokens",
    "generation_tokens",
    "time_to_first_token_seconds",
    "inter_token_latency_seconds",
    "e2e_request_latency_seconds",
    "request_queue_time_seconds",
    "request_prefill_time_seconds",
    "request_decode_time_seconds",
    "request_success",
    "num_preemptions",
}


def test_the_names_that_dashboards_expect_are_there():
    names = [metric.name for metric in CATALOGUE]
    assert set(names) >= EXPECTED
    assert len(names) == len(set(names))


def test_every_metric_is_well_formed():
    for metric in CATALOGUE:
        Family(metric.full_name, metric.help, metric.kind.value)  # refuses a name that is none
        assert not metric.name.endswith("_total"), "the text adds it"
        assert metric.help.endswith(".")
        assert bool(metric.buckets) == (metric.kind is Kind.HISTOGRAM)
        assert list(metric.buckets) == sorted(set(metric.buckets))
        assert len(metric.series) == (3 if metric.kind is Kind.HISTOGRAM else 1)


def test_the_text_has_every_asked_metric_under_the_names_that_the_catalogue_gives():
    asked = [metric for metric in CATALOGUE if metric.at_scrape]
    readings = [Reading(metric, tuple("abc"[: len(metric.labels)]), 2.5) for metric in asked]
    text = Exposition(Instruments()).text(readings).decode()
    for metric in asked:
        labels = ",".join(f'{name}="{value}"' for name, value in zip(metric.labels, "abc", strict=False))
        assert f"# HELP {metric.series[0]} {metric.help}\n# TYPE {metric.series[0]} {metric.kind}\n" in text
        assert f"{metric.series[0]}{{{labels}}} 2.5\n" in text
    assert "_created" not in text


def test_what_gateways_read_has_vllms_name_besides():
    ours = [Reading(metric, ("pico",), 0.25) for metric in CATALOGUE if metric.at_scrape]
    info = Reading(CACHE_CONFIG_INFO, ("pico", "16", "1024"), 1.0)
    text = Exposition(Instruments()).text([*ours, info]).decode()
    shown = [line for line in text.splitlines() if line.startswith("vllm:")]
    assert shown == [
        'vllm:num_requests_running{model_name="pico"} 0.25',
        'vllm:num_requests_waiting{model_name="pico"} 0.25',
        'vllm:kv_cache_usage_perc{model_name="pico"} 0.25',
        'vllm:prefix_cache_queries_total{model_name="pico"} 0.25',
        'vllm:prefix_cache_hits_total{model_name="pico"} 0.25',
        'vllm:num_preemptions_total{model_name="pico"} 0.25',
        'vllm:cache_config_info{block_size="16",model_name="pico",num_gpu_blocks="1024"} 1.0',
    ]


def test_what_became_of_drafts_has_vllms_name_besides_without_the_method():
    """Two engines of one model, whose tokens are guessed by others."""
    instruments = Instruments()
    counts = SchedulerCounts(
        spec_decode_num_drafts=6, spec_decode_num_draft_tokens=30, spec_decode_num_accepted_tokens=12, accepted_at=(6, 4)
    )
    for method in ("ngram", "eagle3"):
        StepRecorder(instruments, "pico", ExecutorCounts, method=method).turned(Turn(0.0, idle=True, counts=counts))
    lines = Exposition(instruments).text([]).decode().splitlines()
    assert [line for line in lines if line.startswith("vllm:")] == [
        'vllm:spec_decode_num_drafts_total{model_name="pico"} 12.0',
        'vllm:spec_decode_num_draft_tokens_total{model_name="pico"} 60.0',
        'vllm:spec_decode_num_accepted_tokens_total{model_name="pico"} 24.0',
        'vllm:spec_decode_num_accepted_tokens_per_pos_total{model_name="pico",position="0"} 12.0',
        'vllm:spec_decode_num_accepted_tokens_per_pos_total{model_name="pico",position="1"} 8.0',
    ]
    assert "# TYPE vllm:spec_decode_num_drafts_total counter" in lines
    assert 'jaxserve:spec_decode_num_draft_tokens_total{method="eagle3",model_name="pico"} 30.0' in lines


def test_tiers_are_up_to_their_bounds():
    assert [context_tier(tokens) for tokens in (1, 1024, 1025, 4096, 16384, 65536, 65537, 10**7)] == [
        "1k",
        "1k",
        "4k",
        "4k",
        "16k",
        "64k",
        "over_64k",
        "over_64k",
    ]
    assert context_tier(10**9) == TIERS[-1]


def test_the_documentation_lists_every_metric():
    page = (Path(__file__).resolve().parents[3] / "docs" / "metrics.md").read_text()
    for metric in (*CATALOGUE, *VLLM_METRICS):
        name = metric.full_name.removeprefix("jaxserve:")
        assert f"| `{name}` | {metric.kind} | {', '.join(metric.labels)} | {metric.help} |\n" in page
