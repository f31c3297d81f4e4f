"""The tables of a study: what they hold and where they end."""

from itertools import pairwise

import pytest

from jaxserve.planner.study import PlanConfig, study


def config(context: int | None = None, hardware: str = "h100") -> PlanConfig:
    return PlanConfig(model="llama-3-70b", hardware=hardware, tp=8, weights="fp8", context=context)


def test_the_decode_table_ends_where_the_cache_is_full() -> None:
    rows = study(config()).decode
    assert [row.step.tokens for row in rows] == [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 847]
    assert all(row.step.context == 2048 for row in rows)


def test_a_full_cache_at_a_power_of_two_has_one_row() -> None:
    assert [row.step.tokens for row in study(config(context=6752)).decode][-2:] == [128, 256]


def test_a_row_agrees_with_its_step() -> None:
    row = study(config()).decode[7]
    assert row.tokens_per_s == 128 / row.step.total_s
    assert row.tokens_per_s_request == pytest.approx(1 / row.step.total_s)
    assert row.usd_per_m_tokens == pytest.approx(20 / 3600 / row.tokens_per_s * 1e6)


def test_throughput_grows_with_the_batch_and_price_falls() -> None:
    rows = study(config()).decode
    assert all(later.tokens_per_s > row.tokens_per_s for row, later in pairwise(rows))
    assert all(later.usd_per_m_tokens < row.usd_per_m_tokens for row, later in pairwise(rows))


def test_the_prompt_has_its_row_in_the_prefill_table() -> None:
    prompts = [step.tokens for step in study(config()).prefill]
    assert 1792 in prompts
    assert prompts == sorted(set(prompts))


def test_contexts_beyond_the_model_are_marked() -> None:
    rows = study(config()).contexts
    assert [row.context for row in rows if not row.beyond_model] == [2048, 4096, 8192]
    assert [row.requests for row in rows] == [847, 423, 211, 105, 52, 26, 13]


def test_attention_intensity_is_queries_a_kv_head() -> None:
    assert study(config()).attention_intensity == 64 / 8


def test_more_memory_serves_more() -> None:
    assert study(config(hardware="h200")).ledger.kv_tokens > 1.9 * study(config()).ledger.kv_tokens
