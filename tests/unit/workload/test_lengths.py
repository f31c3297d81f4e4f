"""Lengths that nobody gave fit the server's context; those that somebody gave stay."""

from typing import Any

import pytest

from jaxserve.workload.lengths import LENGTHS, cut_to_context
from jaxserve.workload.settings import WorkloadConfig


@pytest.mark.parametrize(
    ("given", "context", "lengths"),
    [
        ({}, 8192, (512, 128)),
        ({}, 256, (128, 32)),
        ({}, 4, (2, 1)),
        ({"prefixes": 1, "prefix_tokens": 56}, 256, (100, 25)),
        ({"prompt_tokens": 200}, 256, (200, 56)),
        ({"output_tokens": 250}, 256, (6, 250)),
        ({"output_tokens": 16}, 8192, (512, 16)),
        ({"prompt_tokens": 512, "output_tokens": 128}, 256, (512, 128)),
    ],
)
def test_free_lengths_are_cut(given: dict[str, Any], context: int, lengths: tuple[int, int]) -> None:
    free = [name for name in LENGTHS if name not in given]
    cut = cut_to_context(WorkloadConfig(**given), free, context)
    assert (cut.prompt_tokens, cut.output_tokens) == lengths


def test_a_trace_says_its_own_lengths() -> None:
    workload = WorkloadConfig(trace="trace.jsonl")
    assert cut_to_context(workload, LENGTHS, 16) == workload
