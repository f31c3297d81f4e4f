"""A short run of the churn of adapters, which the benchmark makes ten thousand operations of."""

import asyncio

from benchmarks.adapter_churn import KINDS, churn


def test_nobody_gets_anothers_tokens_and_nothing_is_left(tmp_path):
    report = asyncio.run(churn(tmp_path, 400, seed=1))
    assert set(KINDS) <= set(report["done"])
    assert report["slot_loads"] > 30
    assert report["reads"] > 10
