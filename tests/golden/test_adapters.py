"""Adapters that PEFT saved give what PEFT's own unmerged forward computed, all of a model and the model itself in one batch."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxserve.adapters.request import LoRARequest
from jaxserve.llm import LLM
from jaxserve.sampling.params import SamplingParams
from jaxserve.types import Prompt
from tests.golden.adapter_cases import ADAPTER_CASES
from tests.golden.reading import DATA, read_golden
from tests.support.tiers import tiered

ADAPTERS = Path(__file__).parent / "adapters"
BASES = sorted({case.base for case in ADAPTER_CASES})
CORE = ("llama-biases", "phi3-short", "deepseek-v3-groups", "gpt-oss-window", "qwen3-next-experts")  # each kind of layer
DEVICES: dict[str, dict[str, Any]] = {
    "llama-biases": {"tensor_parallel_size": 2},
    "mixtral-full": {"tensor_parallel_size": 2},
    "gpt-oss-window": {"tensor_parallel_size": 2, "expert_parallel_size": 2},
}
TOLERANCE = 1e-3  # of a log-probability: float32 sums in another order
GREEDY = SamplingParams(temperature=0.0, max_tokens=16, logprobs=0, ignore_eos=True)
PAGE = 16
SMALL: dict[str, Any] = {
    "max_num_seqs": 4,
    "before_ready": "fewest",
    "max_num_batched_tokens": 4,
    "max_model_len": 128,
    "num_pages": 24,
    "dtype": "float32",
    "max_loras": 2,
    "max_cpu_loras": 2,
}


def expected(base: str) -> list[tuple[LoRARequest | None, dict[str, Any]]]:
    """Prompts of the model as it is and of its adapters, in turns: adapters, prompts and outputs."""
    golden = read_golden(base)
    plain = [
        (None, {"prompt": prompt, "tokens": tokens[: GREEDY.max_tokens], "logprobs": None})
        for prompt, tokens in zip(golden.prompts, golden.greedy, strict=True)
        if 16 <= len(prompt) <= 60
    ][:3]
    adapted = []
    for case in (case for case in ADAPTER_CASES if case.base == base):
        directory = ADAPTERS / case.path
        found = json.loads((directory / "expected.json").read_text())
        adapted.append([(LoRARequest(case.name, 1, directory), one) for one in found])
    return [one for turn in itertools.zip_longest(plain, *adapted) for one in turn if one is not None]


@pytest.mark.parametrize("base", tiered(BASES, CORE))
def test_adapters_give_what_peft_computes(base: str) -> None:
    settings = DEVICES.get(base, {})
    llm = LLM(str(DATA / base), enable_lora=True, lora_experts=True, max_lora_rank=8, **settings, **SMALL)
    cases = expected(base)
    check(llm, cases)  # few pages, chunks of prompts, fewer slots than adapters: rows are preempted and adapters evicted
    for case in cases[-2:]:  # one of them is long
        check(llm, [case])
        assert check(llm, [case]) or len(case[1]["prompt"]) < PAGE
    assert check(llm, [(cases[0][0], cases[-1][1] | {"tokens": None})]) == 0, "a prefix of another adapter"


def check(llm: LLM, cases: list[tuple[LoRARequest | None, dict[str, Any]]]) -> int:
    """The outputs are those that were expected; returns how many tokens were cached."""
    prompts: list[Prompt] = [{"prompt_token_ids": one["prompt"]} for _, one in cases]
    outputs = llm.generate(prompts, GREEDY, lora_request=[adapter for adapter, _ in cases])
    for output, (adapter, one) in zip(outputs, cases, strict=True):
        (choice,) = output.outputs
        if one["tokens"] is not None:
            assert list(choice.token_ids) == one["tokens"], adapter
        if one["tokens"] is not None and one["logprobs"] is not None:
            assert choice.logprobs is not None
            given = [position[token].logprob for position, token in zip(choice.logprobs, choice.token_ids, strict=True)]
            np.testing.assert_allclose(given, one["logprobs"], atol=TOLERANCE, rtol=0)
    return sum(output.num_cached_tokens for output in outputs)
