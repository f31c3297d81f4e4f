"""Checkpoints that each format's own library wrote (`tests/golden/make_formats.py`), through the engine, however it schedules.

The reference is a dense attention in float32 over the weights as that library reads them. Where an engine rounds activations, on
several devices in FP8, so does the reference.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import save_file

from jaxserve.clock import RealClock
from jaxserve.config.fields import EngineConfig
from jaxserve.config.windows import most_pages
from jaxserve.engine.build import BuiltEngine, build_engine
from jaxserve.executor.local import LocalExecutor
from jaxserve.models.binding import Params, param_products
from jaxserve.models.checkpoint import read_hf_config
from jaxserve.models.registry import decoder_config, weight_rules
from jaxserve.sampling.params import MAX_LOGPROBS, SamplingParams
from jaxserve.weights.checkpoint import whole
from jaxserve.weights.load import load_params
from jaxserve.weights.safetensors import SafetensorsCheckpoint
from pallas_kernels import native
from pallas_kernels.matmul import Layout, Matrix
from pallas_kernels.quantization import FP8, W8A8
from sharding import make_mesh
from tests.golden.reading import DATA, Forward, forward, load, logits_of, read_golden
from tests.support.engine import Run, run, silent
from tests.support.schemes import RoundedRows, RoundedTokens
from tests.support.tiers import tiered

FORMATS = Path(__file__).parents[2] / "data" / "formats"
NAMES = sorted(path.name for path in FORMATS.iterdir())
DIVIDED = ("compressed-tensors-fp8", "fp8-blocks", "gptq-ordered", "modelopt-nvfp4")  # scales by output, block, and group
LENGTH = 12
GREEDY = SamplingParams(temperature=0.0, max_tokens=LENGTH, ignore_eos=True, logprobs=MAX_LOGPROBS)
TOLERANCE = 1e-3
ROUNDED = {FP8: RoundedRows(), W8A8: RoundedTokens()}
"""What rounds rows as a scheme does."""


def prompts() -> list[list[int]]:
    """Longer and shorter than a chunk; two begin alike."""
    rng = np.random.default_rng(0)
    drawn: list[list[int]] = [rng.integers(3, 97, size).tolist() for size in (41, 3, 17, 1, 29)]
    return [*drawn, drawn[0][:24] + drawn[2]]


def plain(directory: Path, folder: Path, devices: int) -> Params:
    """The parameters of the weights as the library reads them: on one device, in the shapes that they have on several."""
    config = decoder_config(read_hf_config(directory))
    names = {source.name for rule in weight_rules(config) for source in rule.sources}
    with np.load(directory / "expected.npz") as expected, SafetensorsCheckpoint(directory) as stored:
        read = dict(expected)
        kept = {name: stored.read(name, whole(stored.shapes[name])) for name in names - read.keys()}
    save_file({name: np.ascontiguousarray(array) for name, array in (kept | read).items()}, folder / "model.safetensors")
    loaded: Params = jax.tree.map(
        lambda leaf: jnp.asarray(np.asarray(leaf)), load_params(folder, config, make_mesh(devices), "float32")
    )
    return loaded


def engine(directory: Path, devices: int, **more: Any) -> BuiltEngine:
    settings = {"model": str(directory), "dtype": "float32", "max_model_len": 64, "page_size": 8, "late_compiles": "raise"}
    limits = {"max_num_seqs": 4, "before_ready": "fewest", "max_num_batched_tokens": 4, "tensor_parallel_size": devices}
    config = EngineConfig.from_settings({**settings, **limits, **more})
    return build_engine(config, strict_length=True, clock=RealClock(), progress=silent)


def rounding(directory: Path, built: BuiltEngine, params: Params) -> tuple[Params, bool]:
    """The same parameters, whose products round rows where the engine's do; and whether any does."""
    assert isinstance(built.core.executor, LocalExecutor)
    products, found = param_products(decoder_config(read_hf_config(directory))), []

    def one(keys: Any, leaf: Any, numbers: jax.Array) -> Any:
        scheme = ROUNDED.get(type(leaf.scheme)) if isinstance(leaf, Matrix) else None
        if scheme is None:
            return numbers
        found.append(keys)
        return Matrix(numbers, None, Layout(products[tuple(key.key for key in keys)].inputs), scheme)

    held = built.core.executor.weights.tree
    rounded: Params = jax.tree.map_with_path(one, held, params, is_leaf=lambda leaf: isinstance(leaf, Matrix))
    return rounded, bool(found)


def check(reference: Forward, asked: list[list[int]], answered: Run, rounds: bool) -> None:
    """Every token is the likeliest, and the log-probabilities beside it are the reference's.

    Where rows are rounded, a number that is half way between two may go either way, as sums of another order have it: that is
    allowed for at a quarter of the tokens.
    """
    near, apart = [], 0.2 if rounds else TOLERANCE
    for prompt, tokens, updates in zip(asked, answered.tokens, answered.updates, strict=True):
        assert len(tokens) == LENGTH
        logits = logits_of(reference, prompt + tokens)[len(prompt) - 1 : -1].astype(np.float64)
        scores = logits - np.logaddexp.reduce(logits, axis=-1, keepdims=True)
        rows = [update.logprobs.rows for update in updates if update.logprobs is not None]
        ids, got = (np.concatenate([getattr(row, name) for row in rows]) for name in ("top_ids", "top"))
        near += (np.abs(got - np.take_along_axis(scores, ids, axis=-1)).max(axis=-1) < TOLERANCE).tolist()
        assert (scores[np.arange(LENGTH), tokens] >= scores.max(axis=-1) - apart).all()
    assert np.mean(near) >= (0.75 if rounds else 1.0)


def check_engine(built: BuiltEngine, reference: Forward, rounds: bool) -> None:
    asked = prompts()
    mixed = run(built, asked, GREEDY, num_pages=11, growth_reserve=0.0)  # in chunks beside decodes, some computed again
    assert mixed.preemptions
    check(reference, asked, mixed, rounds)
    twice = [*asked, *asked[::-1]]
    again = run(built, twice, GREEDY)
    assert again.scheduler.cache.hit_tokens > 0
    check(reference, twice, again, rounds)


FORMATS_ON = [*((name, 1) for name in NAMES if name not in DIVIDED), *((name, 2) for name in DIVIDED)]


@pytest.mark.parametrize(("name", "devices"), FORMATS_ON)
def test_numbers_are_those_that_the_library_reads(tmp_path, name, devices):
    directory = FORMATS / name
    loaded = load_params(directory, decoder_config(read_hf_config(directory)), make_mesh(devices), "float32")
    wanted = plain(directory, tmp_path, devices)
    got = jax.tree.map(plain_numbers, loaded, is_leaf=lambda leaf: isinstance(leaf, Matrix))
    jax.tree.map(partial(np.testing.assert_allclose, atol=1e-6, rtol=1e-5), got, wanted)


def plain_numbers(leaf: Any) -> np.ndarray:
    return np.asarray(jax.jit(Matrix.plain)(leaf) if isinstance(leaf, Matrix) else leaf)


# Words of integers in groups and float8 on one device, float8 in blocks and float4 on two: what is multiplied in another way. On
# two devices test_fp8.py has a factor for every output.
KINDS = {("awq", 1), ("modelopt-fp8", 1), ("fp8-blocks", 2), ("modelopt-nvfp4", 2)}


@pytest.mark.parametrize(("name", "devices"), tiered(FORMATS_ON, KINDS))
def test_tokens_and_log_probabilities(tmp_path, name, devices):
    directory, built = FORMATS / name, engine(FORMATS / name, devices)
    params, rounds = rounding(directory, built, plain(directory, tmp_path, devices))
    assert rounds == (devices > 1 and name == "compressed-tensors-fp8")  # which asks for it, unlike fp8-blocks
    check_engine(built, forward(decoder_config(read_hf_config(directory)), params), rounds)


@pytest.mark.skipif(native.missing() is not None, reason=f"NOT CHECKED: native kernels: {native.missing()}")
def test_int8_with_rounded_activations():
    built, (config, params) = engine(DATA / "qwen2-int8", 1, quantization="w8a8"), load(DATA / "qwen2-int8")
    rounded, rounds = rounding(DATA / "qwen2-int8", built, params)
    assert rounds
    check_engine(built, forward(config, rounded), rounds)


QUANTIZED = ["gpt-oss-mxfp4", "deepseek-v3-fp8", "llama-w4a16"]


# Experts in blocks and latents; tests/golden/test_golden.py divides integers in groups.
@pytest.mark.parametrize("name", tiered(QUANTIZED, {"gpt-oss-mxfp4", "deepseek-v3-fp8"}))
def test_two_devices_have_the_tokens_of_transformers(name):
    golden = read_golden(name)
    built = engine(DATA / name, 2, max_model_len=80)
    asked, wanted = golden.prompts[5::2], [tokens[:LENGTH] for tokens in golden.greedy[5::2]]
    windows = built.core.executor.capabilities().windows
    num_pages = 1 + sum(most_pages(window, 80, 8, 4) for window in windows)  # of one of the four rows, if it were that long
    mixed = run(built, asked[:5], GREEDY, num_pages=num_pages, growth_reserve=0.0)
    assert mixed.preemptions
    assert mixed.tokens == wanted[:5]
    again = run(built, [*asked[:5], *asked[:5]], GREEDY)
    assert again.scheduler.cache.hit_tokens > 0
    assert again.tokens == wanted[:5] * 2
