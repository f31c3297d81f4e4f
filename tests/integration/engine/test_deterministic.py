"""--deterministic: log-probabilities are the same, bit by bit, however the work is scheduled; without it they are not."""

from typing import Any

import numpy as np
import pytest

from jaxserve.config.fields import KernelConfig
from jaxserve.engine.preparation import model_directory
from jaxserve.llm import LLM
from jaxserve.sampling.params import SamplingParams
from jaxserve.speculation.costs import DraftCosts
from pallas_kernels import native
from tests.golden.reading import read_golden
from tests.support.engine import build, run
from tests.support.tiers import tiered

COUNT, ROWS, TOKENS = 8, 8, 96
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "pico-bfloat16": ("pico", {"dtype": "bfloat16"}),
    "pico-float32": ("pico", {"dtype": "float32"}),
    "mixture-int4": ("qwen3-moe-some", {"dtype": "bfloat16", "quantization": "int4"}),
    "mixture-int8": ("qwen3-moe-some", {"dtype": "bfloat16", "quantization": "int8", "kv_cache_dtype": "int8"}),
    "mixture-shared-float32": ("qwen2-moe-shared", {"dtype": "float32"}),
    "delta-net-bfloat16": ("qwen3-next-kinds", {"dtype": "bfloat16"}),
    "state-space-float32": ("nemotron-h-dense", {"dtype": "float32"}),
    "convolutions-int8": ("lfm2-conv", {"dtype": "bfloat16", "quantization": "int8"}),
    "caps-w8a8": ("gemma2-caps", {"dtype": "bfloat16", "quantization": "w8a8", "kv_cache_dtype": "fp8"}),
}
# Every kind of product (bfloat16, int4, int8, w8a8) and of cache once, and recurrent states.
CORE = {"pico-bfloat16", "mixture-int4", "mixture-int8", "delta-net-bfloat16", "caps-w8a8"}
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
    model, settings = MODELS[name]
    directory = model_directory(model) if model == "pico" else read_golden(model).directory
    sizes: dict[str, Any] = {"max_num_seqs": ROWS, "max_num_batched_tokens": TOKENS, "max_model_len": 96}
    return build(directory, **sizes, **settings, kernels=KernelConfig(deterministic=deterministic))


@pytest.fixture(scope="module")
def pico():
    return made("pico-bfloat16", deterministic=True)


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


@pytest.mark.parametrize("name", tiered(MODELS, CORE))
def test_every_schedule_gives_the_same_bits(name, prompts, pico):
    built = pico if name == "pico-bfloat16" else made(name, deterministic=True)
    expected = alone(built, prompts)
    hits, preemptions = dict[str, int](), dict[str, int]()
    for schedule, options in SCHEDULES.items():
        got, scheduler = read(built, prompts, WANTED, **options)
        assert got == expected, schedule
        hits[schedule], preemptions[schedule] = scheduler.cache.hit_tokens, scheduler.num_preemptions
    assert hits["few rows"] > 0, "half of the prompts begin with the same pages"
    assert preemptions["preempted"] > 0 or MODELS[name][0] != "pico"


def test_without_it_the_bits_depend_on_the_schedule(prompts, pico):
    built = made("pico-bfloat16", deterministic=False)
    assert built.intake.rules.namespace.root() != pico.intake.rules.namespace.root(), "neither takes the other's pages"
    expected = alone(built, prompts)
    assert any(read(built, prompts, WANTED, **options)[0] != expected for options in SCHEDULES.values())


def test_an_answer_that_is_scored_has_the_bits_that_it_was_sampled_with(prompts, pico):
    sampled, _ = read(pico, prompts, [SamplingParams(**COMMON)] * COUNT)
    answers = [prompt + tokens for prompt, (tokens, _, _) in zip(prompts, sampled, strict=True)]
    scored, _ = read(pico, answers, [SamplingParams(max_tokens=1, prompt_logprobs=5)] * COUNT, long_prefill_token_threshold=11)
    for (_, of_sampled, _), (_, _, of_scored) in zip(sampled, scored, strict=True):
        assert of_scored[-len(of_sampled) :] == of_sampled


def test_drafts_and_another_engines_shapes_change_no_bit(pico, monkeypatch):
    """With guesses a row of a step has several tokens, and logits of each."""
    monkeypatch.setattr(DraftCosts, "seconds", lambda costs, rows, tokens: 0.0)
    prompts = [[7 + number, 80, 81, 82] * 6 for number in range(4)]
    wanted = SamplingParams(max_tokens=30, temperature=0.0, ignore_eos=True, logprobs=0)
    asked = {"method": "ngram", "num_speculative_tokens": 3}
    sizes: dict[str, Any] = {"max_num_seqs": 2, "max_num_batched_tokens": 32, "max_model_len": 96, "before_ready": "fewest"}
    engine = LLM("pico", dtype="bfloat16", deterministic=True, speculative_config=asked, **sizes)
    outputs = [output.outputs[0] for output in engine.generate([{"prompt_token_ids": one} for one in prompts], wanted)]
    found = run(pico, prompts, wanted)
    for output, tokens, updates in zip(outputs, found.tokens, found.updates, strict=True):
        assert list(output.token_ids) == tokens
        expected = [float(update.logprobs.rows.chosen[0]) for update in updates if update.logprobs is not None]
        assert output.logprobs is not None
        assert [each[token].logprob for each, token in zip(output.logprobs, tokens, strict=True)] == expected
    assert engine._built.core.scheduler.counts().spec_decode_num_accepted_tokens > 10
