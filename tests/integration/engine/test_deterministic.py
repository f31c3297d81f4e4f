"""--deterministic: log-probabilities are the same, bit by bit, however the work is scheduled; without it they are not."""

from typing import Any

import numpy as np
import pytest

from jaxserve.config.fields import DType, KernelConfig
from jaxserve.engine.preparation import model_directory
from jaxserve.sampling.params import SamplingParams
from pallas_kernels import native
from tests.golden.reading import read_golden
from tests.support.engine import build, run

COUNT, ROWS, TOKENS = 8, 8, 96
MODELS: dict[str, tuple[str, DType]] = {
    "pico-bfloat16": ("pico", "bfloat16"),
    "pico-float32": ("pico", "float32"),
    "mixture-bfloat16": ("qwen3-moe-some", "bfloat16"),
    "mixture-shared-float32": ("qwen2-moe-shared", "float32"),
    "caps-bfloat16": ("gemma2-caps", "bfloat16"),
}
SCHEDULES: dict[str, dict[str, Any]] = {
    "together": {},
    "without the prefix cache": {"prefix_caching": False},
    "no overlap": {"overlap": False},
    "chunks of 5": {"long_prefill_token_threshold": 5},
    "chunks of 16": {"long_prefill_token_threshold": 16},
    "few rows": {"max_num_seqs": 3, "max_num_batched_tokens": 7},
    "preempted": {"num_pages": 40, "growth_reserve": 0.0},
}


def made(name, deterministic):
    if (missing := native.missing()) is not None:
        pytest.skip(f"NOT CHECKED: native kernels: {missing}")
    model, dtype = MODELS[name]
    directory = model_directory(model) if model == "pico" else read_golden(model).directory
    kernels = KernelConfig(deterministic=deterministic)
    return build(directory, max_num_seqs=ROWS, max_num_batched_tokens=TOKENS, max_model_len=96, dtype=dtype, kernels=kernels)


@pytest.fixture(scope="module")
def prompts():
    """Every other one begins with the same tokens."""
    rng = np.random.default_rng(7)
    shared = rng.integers(3, 250, 40).tolist()
    return [shared * (number % 2) + rng.integers(3, 250, int(rng.integers(5, 35))).tolist() for number in range(COUNT)]


COMMON: dict[str, Any] = {"max_tokens": 16, "temperature": 0.7, "seed": 3, "ignore_eos": True, "logprobs": 5}
WANTED = [SamplingParams(**COMMON, prompt_logprobs=None if number % 2 else 1) for number in range(COUNT)]
"""Those without a shared prefix are scored, too: what is scored is computed."""


def read(built, prompts, wanted, **schedule):
    """Of every prompt its tokens, and log-probabilities as they lie in memory; and the scheduler."""
    found = run(built, prompts, wanted, **schedule)

    def joined(kind):
        rows = [[getattr(update, kind) for update in mine] for mine in found.updates]
        return [b"".join(packed.data for packed in mine if packed is not None) for mine in rows]

    return list(zip(found.tokens, joined("logprobs"), joined("prompt_logprobs"), strict=True)), found.scheduler


def alone(built, prompts):
    """Each alone in the engine, its prompt in one piece."""
    each = zip(prompts, WANTED, strict=True)
    return [read(built, [prompt], wanted, overlap=False, prefix_caching=False)[0][0] for prompt, wanted in each]


@pytest.mark.parametrize("name", MODELS)
def test_every_schedule_gives_the_same_bits(name, prompts):
    built = made(name, deterministic=True)
    expected = alone(built, prompts)
    hits, preemptions = dict[str, int](), dict[str, int]()
    for schedule, options in SCHEDULES.items():
        got, scheduler = read(built, prompts, WANTED, **options)
        assert got == expected, schedule
        hits[schedule], preemptions[schedule] = scheduler.cache.hit_tokens, scheduler.num_preemptions
    assert hits["few rows"] > 0, "half of the prompts begin with the same pages"
    assert preemptions["preempted"] > 0 or MODELS[name][0] != "pico"


def test_without_it_the_bits_depend_on_the_schedule(prompts):
    built = made("pico-bfloat16", deterministic=False)
    expected = alone(built, prompts)
    assert any(read(built, prompts, WANTED, **options)[0] != expected for options in SCHEDULES.values())
