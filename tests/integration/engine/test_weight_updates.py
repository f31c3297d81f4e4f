"""Weights from a program, and their updates between two steps, against fresh engines with the same weights."""

from __future__ import annotations

import gc
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxserve import LLM, RequestOutput, SamplingParams
from jaxserve.engine.events import WeightRange
from jaxserve.engine.pause import PauseMode
from jaxserve.errors import CheckpointError, ConfigError, InvalidRequestError
from jaxserve.executor.compile_guard import CompileGuard
from jaxserve.weights.live.convert import Converter
from jaxserve.weights.live.views import Permute, View
from tests.support.families import hf_config
from tests.support.live import on_devices, write_checkpoint
from tests.support.rollouts import PROMPTS, engine, from_disk, weights

GREEDY = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)


def tokens(llm: LLM) -> list[list[int]]:
    return [output.outputs[0].token_ids for output in llm.generate(PROMPTS, GREEDY)]


@pytest.fixture(scope="module")
def llm() -> LLM:
    return engine("qwen3", 1)


@pytest.fixture(scope="module")
def oracle(llm: LLM) -> dict[int, list[list[int]]]:
    """What fresh engines say, by the seed of their weights: that of the tests as well, before its first update."""
    assert llm.weight_version is None
    return {1: tokens(llm), 2: tokens(engine("qwen3", 2))}


@pytest.fixture
def first(oracle: dict[int, list[list[int]]], llm: LLM) -> LLM:
    """An engine with the weights of seed 1."""
    llm.update_weights(on_devices(weights("qwen3", 1)), "one", force=True)
    return llm


def test_from_params_says_what_loading_says(tmp_path, oracle):
    directory = write_checkpoint(tmp_path, hf_config("qwen3"), weights("qwen3", 1))
    assert tokens(from_disk(directory)) == oracle[1]
    assert oracle[1] != oracle[2]


def test_update_between_calls(first, oracle):
    assert tokens(first) == oracle[1]
    assert first.update_weights(on_devices(weights("qwen3", 2)), 7) == 7
    outputs = first.generate(PROMPTS, GREEDY)
    assert [output.outputs[0].token_ids for output in outputs] == oracle[2]
    assert all(output.num_cached_tokens == 0 for output in outputs)
    assert [output.outputs[0].weight_versions for output in outputs] == [[WeightRange(7, 0, 12)]] * 2
    assert first.update_weights(on_devices(weights("qwen3", 1))) == first.weight_version == 8


def test_the_given_arrays_stay_the_trainers(first, oracle):
    given = on_devices(weights("qwen3", 2))
    first.update_weights(given, "two", force=True)
    for array in given.values():
        array.delete()
    assert tokens(first) == oracle[2]


def mid_generation(llm: LLM, mode: PauseMode, lengths: list[int]) -> list[RequestOutput]:
    """Generate, and update to the weights of seed 2 as soon as the first request is done."""

    def update(output: RequestOutput) -> None:
        if output.request_id == "0":
            llm.update_weights(on_devices(weights("qwen3", 2)), "two", mode=mode, force=True)

    params = [SamplingParams(temperature=0.0, max_tokens=length, ignore_eos=True) for length in lengths]
    return llm.generate([PROMPTS[index % 2] for index in range(len(lengths))], params, on_output=update)


def test_abort_ends_what_runs(first, oracle):
    _, cut = mid_generation(first, "abort", [3, 12])
    output = cut.outputs[0]
    assert output.finish_reason == "abort"
    assert 0 < len(output.token_ids) < 12
    assert output.token_ids == oracle[1][1][: len(output.token_ids)]
    assert output.weight_versions == [WeightRange("one", 0, len(output.token_ids))]
    assert tokens(first) == oracle[2]


def test_wait_lets_what_runs_end_and_nothing_begin(first, oracle):
    outputs = [request.outputs[0] for request in mid_generation(first, "wait", [3, 12, 12, 12, 12, 12])]
    assert [output.finish_reason for output in outputs] == ["length"] * 6
    assert [output.token_ids for output in outputs[1:4]] == [oracle[1][1], oracle[1][0], oracle[1][1]]
    assert [output.token_ids for output in outputs[4:]] == [oracle[2][0], oracle[2][1]]
    versions = [output.weight_versions for output in outputs]
    assert versions == [[WeightRange("one", 0, 3)], *[[WeightRange("one", 0, 12)]] * 3, *[[WeightRange("two", 0, 12)]] * 2]


def test_keep_goes_on_with_the_new_weights_over_the_old_keys(first, oracle):
    _, kept = mid_generation(first, "keep", [3, 12])
    output = kept.outputs[0]
    assert output.weight_versions is not None
    old, new = output.weight_versions
    assert (old.version, old.start, new.version, new.end) == ("one", 0, "two", 12)
    assert 3 <= old.end == new.start < 12
    assert output.token_ids[: old.end] == oracle[1][1][: old.end]
    assert output.token_ids[old.end :] != oracle[1][1][old.end :]
    assert len(output.token_ids) == 12
    again = first.generate(PROMPTS, GREEDY)  # what it computed with both weights is nobody's prefix
    assert [request.outputs[0].token_ids for request in again] == oracle[2]
    assert [request.num_cached_tokens for request in again] == [0, 0]


def test_another_thread_updates_between_two_turns(first, oracle):
    with ThreadPoolExecutor(1) as pool:
        updates = []

        def update(output: RequestOutput) -> None:
            if output.request_id == "0":
                tree = on_devices(weights("qwen3", 2))
                updates.append(pool.submit(first.update_weights, tree, "two", mode="wait", force=True))

        short = SamplingParams(temperature=0.0, max_tokens=2)
        first.generate(PROMPTS, [short, GREEDY], on_output=update)
        assert updates[0].result() == "two"
    assert tokens(first) == oracle[2]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda tree: tree.pop("model.norm.weight"), r"1 missing: model.norm.weight \[32\]"),
        (lambda tree: tree.update(extra=tree["model.norm.weight"]), r"1 unexpected: extra \[32\]"),
        (
            lambda tree: tree.update({"model.norm.weight": jnp.zeros((2, 3))}),
            r"1 of the wrong shape: model.norm.weight is \[2, 3\], needs \[32\]",
        ),
        (lambda tree: tree.update({"model.norm.weight": jnp.zeros(32, jnp.int32)}), r"model.norm.weight \(int32\)"),
        (
            lambda tree: tree.update({"model.norm.weight": tree["model.norm.weight"].at[5].set(jnp.nan)}),
            r"model.norm.weight has 1 in 32, the first at \[5\]",
        ),
        (
            lambda tree: tree.update({"lm_head.weight": tree["lm_head.weight"].at[7, 3].set(-jnp.inf)}),
            r"lm_head.weight has 1 in 9632, the first at \[7, 3\]",
        ),
        (lambda tree: tree["model.norm.weight"].delete(), "1 deleted or donated: model.norm.weight"),
        (lambda tree: tree.update({"model.norm.weight": "text"}), "model.norm.weight is a str, not an array"),
    ],
)
def test_what_does_not_fit_leaves_the_old_weights(first, oracle, change, said):
    tree = on_devices(weights("qwen3", 2))
    change(tree)
    with pytest.raises(CheckpointError, match=said):
        first.update_weights(tree)
    assert first.weight_version == "one"
    assert tokens(first) == oracle[1]


def test_names_that_nobody_knows(first):
    with pytest.raises(CheckpointError, match="say with mapping") as raised:
        first.update_weights({"theta": jnp.zeros(3)})
    assert raised.value.param == "mapping"
    with pytest.raises(ConfigError, match="mapping must be"):
        first.update_weights({"theta": jnp.zeros(3)}, mapping="torch")
    with pytest.raises(ConfigError, match="from_params"):
        LLM(model=object())  # type: ignore[arg-type]  # what is wrong


def test_a_table_of_views(first, oracle):
    tree = weights("qwen3", 2)
    given = {f"net.{name}": np.ascontiguousarray(tensor.T) for name, tensor in tree.items()}
    table = {
        name: View(f"net.{name}", tensor.shape[::-1], (Permute(tuple(range(tensor.ndim))[::-1]),))
        for name, tensor in tree.items()
    }
    first.update_weights(on_devices(given), mapping=table)
    assert tokens(first) == oracle[2]


def test_versions_go_forward(first):
    tree = on_devices(weights("qwen3", 1))
    first.update_weights(tree, 1005)
    for version in (1005, 1004):
        with pytest.raises(InvalidRequestError, match=f"version {version} is not newer than 1005"):
            first.update_weights(tree, version)
    with pytest.raises(InvalidRequestError, match="integer or a name"):
        first.update_weights(tree, True)
    assert first.update_weights(tree, 3, force=True) == 3
    assert [first.update_weights(tree, "a"), first.update_weights(tree), first.update_weights(tree, "b")] == ["a", 1006, "b"]
    with pytest.raises(InvalidRequestError, match="version 'a' was served already"):
        first.update_weights(tree, "a")


def test_a_part_of_the_model(first, oracle):
    one, two = weights("qwen3", 1), weights("qwen3", 2)
    with pytest.raises(CheckpointError, match="missing"):
        first.update_weights(on_devices({"lm_head.weight": two["lm_head.weight"]}))
    name = "model.layers.0.self_attn.q_proj.weight"
    with pytest.raises(ConfigError, match=r"k_proj.* both are in the parameter layers.0.attention.qkv"):
        first.update_weights(on_devices({name: two[name]}), partial=True)
    first.update_weights(on_devices({name: two[name] for name in two if "layers" in name or "norm" in name}), partial=True)
    assert tokens(first) not in (oracle[1], oracle[2])
    first.update_weights(on_devices({name: two[name] for name in two if "norm" not in name}), partial=True)
    assert tokens(first) == oracle[2]
    assert one.keys() == two.keys()


def test_an_update_that_dies_half_way_serves_nothing(first, oracle, monkeypatch):
    made, calls = Converter.make, iter(range(100))

    def dies(self: Converter, *given: Any) -> Any:
        if next(calls) == 3:
            raise MemoryError("out of memory")
        return made(self, *given)

    monkeypatch.setattr(Converter, "make", dies)
    with pytest.raises(MemoryError):
        first.update_weights(on_devices(weights("qwen3", 2)), "two", force=True)
    refused = first.generate(PROMPTS, GREEDY)
    assert all("failed after 3 of" in str(output.error) for output in refused)
    with pytest.raises(InvalidRequestError, match="a part of the weights cannot be updated"):
        first.update_weights(on_devices({"lm_head.weight": weights("qwen3", 2)["lm_head.weight"]}), partial=True)
    first.update_weights(on_devices(weights("qwen3", 2)), "three", force=True)
    assert tokens(first) == oracle[2]


def test_an_update_that_dies_at_once_serves_the_old_weights(first, oracle, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(Converter, "make", lambda *given: 1 // 0)
        with pytest.raises(ZeroDivisionError):
            first.update_weights(on_devices(weights("qwen3", 2)), "two", force=True)
    assert tokens(first) == oracle[1]


def test_many_updates_leave_nothing_behind_and_compile_nothing(first, oracle):
    trees = {seed: on_devices(weights("qwen3", seed)) for seed in (1, 2)}
    short = SamplingParams(temperature=0.0, max_tokens=2, ignore_eos=True)
    live = []
    for number in range(6):  # two hundred beside streams: benchmarks/weight_soak.py
        seed = 1 + number % 2
        guard = CompileGuard(strict=number > 1)
        with guard.watch(f"update {number}"):
            first.update_weights(trees[seed], number, piece_bytes=1, force=True)
        outputs = first.generate(PROMPTS, short)
        assert [output.outputs[0].token_ids for output in outputs] == [said[:2] for said in oracle[seed]]
        assert [output.num_cached_tokens for output in outputs] == [0, 0]
        gc.collect()
        live.append(sum(array.nbytes for array in jax.live_arrays()))
    assert len(set(live[2:])) == 1


def test_from_disk(first, oracle, tmp_path):
    directory = write_checkpoint(tmp_path / "good", hf_config("qwen3"), weights("qwen3", 2))
    assert first.update_weights_from_disk(directory, "disk") == "disk"
    assert tokens(first) == oracle[2]
    fingerprint = first.report.model.fingerprint
    bad = weights("qwen3", 1)
    bad["model.norm.weight"][2] = np.nan
    with pytest.raises(CheckpointError, match=r"model.norm.weight has 1 in 32"):
        first.update_weights_from_disk(write_checkpoint(tmp_path / "bad", hf_config("qwen3"), bad))
    with pytest.raises(CheckpointError, match="no checkpoint directory"):
        first.update_weights_from_disk(tmp_path / "none")
    assert tokens(first) == oracle[2]
    assert first.report.model.fingerprint == fingerprint


def test_the_fingerprint_follows_the_weights(first):
    trees = {seed: on_devices(weights("qwen3", seed)) for seed in (1, 2)}
    names = []
    for seed in (1, 2, 1):
        first.update_weights(trees[seed])
        names.append(first.report.model.fingerprint)
    assert names[0] == names[2] != names[1]


def device_bytes() -> int:
    gc.collect()
    return sum(array.nbytes for array in jax.live_arrays())


@pytest.mark.parametrize("level", [1, 2])
def test_sleep_frees_and_waking_takes_back(first, oracle, level):
    memory = first.report.memory
    before = device_bytes()
    first.sleep(level)
    assert first.is_sleeping
    assert before - device_bytes() >= memory.weights + memory.kv_cache
    assert all("serves nothing now" in str(output.error) for output in first.generate(PROMPTS, GREEDY))
    first.wake_up(["kv_cache"])
    assert first.is_sleeping
    first.wake_up()
    assert first.is_sleeping == (level == 2)
    if level == 2:
        first.update_weights(on_devices(weights("qwen3", 1)))
    assert not first.is_sleeping
    assert tokens(first) == oracle[1]
    assert device_bytes() == before


def test_asleep_it_takes_new_weights(first, oracle):
    first.sleep()
    first.update_weights(on_devices(weights("qwen3", 2)))
    first.wake_up(["weights"])
    with pytest.raises(InvalidRequestError, match="tags must be among"):
        first.wake_up(["all"])  # type: ignore[list-item]  # what is wrong
    with pytest.raises(InvalidRequestError, match="level must be 1 or 2"):
        first.sleep(3)
    first.wake_up()
    assert tokens(first) == oracle[2]
