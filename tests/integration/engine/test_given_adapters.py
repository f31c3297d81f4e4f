"""Adapters that a program gives an engine as arrays: they are what the same adapters of directories are."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest
from flax import nnx
from safetensors.numpy import load_file

from jaxserve.engine.calls import AnyCall, FinishUpdate, OpenTransfer, PutPiece, StartUpdate, run_call
from jaxserve.engine.control import SentAdapter
from jaxserve.errors import CheckpointError, ConflictError, InvalidRequestError, ModelNotFoundError
from jaxserve.llm import LLM
from jaxserve.models.checkpoint import read_json_object
from jaxserve.models.registry import decoder_config
from jaxserve.outputs import RequestOutput
from jaxserve.sampling.params import SamplingParams
from jaxserve.types import Prompt, RequestOptions
from jaxserve.weights.live.pieces import pieces_of
from tests.golden.reading import DATA
from tests.golden.test_adapters import ADAPTERS, GREEDY, SMALL, TOLERANCE
from tests.support.lora_trees import CONFIG, peft_tensors, tunix_tree

BASE = "llama-biases"
NAMES = ("all", "stable", "patterns", "one-layer")
Given = tuple[dict[str, Any], dict[str, Any]]


@pytest.fixture(scope="module")
def engine() -> LLM:
    settings = {**SMALL, "max_loras": 2, "max_cpu_loras": 3, "max_lora_rank": 8, "late_compiles": "raise"}
    return LLM(str(DATA / BASE), enable_lora=True, **settings)


@pytest.fixture
def llm(engine: LLM) -> Iterator[LLM]:
    yield engine
    store = engine._adapters.store
    for info in store.listed():
        engine.unload_lora_adapter(info.name)
    assert not store._given, "nothing names them, and nothing runs"


def given(name: str) -> Given:
    """The tensors of an adapter, and its configuration."""
    directory = ADAPTERS / BASE / name
    return load_file(directory / "adapter_model.safetensors"), json.loads((directory / "adapter_config.json").read_text())


def give(llm: LLM, name: str, adapter: str, **options: Any) -> None:
    params, config = given(adapter)
    llm.load_lora_adapter(name, params=params, config=config, **options)


def expected(adapter: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((ADAPTERS / BASE / adapter / "expected.json").read_text())
    return found


def ask(llm: LLM, name: str, prompt: list[int], params: SamplingParams = GREEDY) -> RequestOutput:
    (output,) = llm.generate({"prompt_token_ids": prompt}, params, options=RequestOptions(adapter=name), use_tqdm=False)
    return output


def said(output: RequestOutput) -> list[int]:
    return list(output.outputs[0].token_ids)


def logprobs(output: RequestOutput) -> list[float]:
    (choice,) = output.outputs
    assert choice.logprobs is not None
    return [position[token].logprob for position, token in zip(choice.logprobs, choice.token_ids, strict=True)]


def serves(llm: LLM, name: str, adapter: str) -> bool:
    one = expected(adapter)[0]
    return bool(said(ask(llm, name, one["prompt"])) == one["tokens"])


def test_arrays_are_what_their_directory_is(llm: LLM) -> None:
    before = ask(llm, "", expected("stable")[0]["prompt"])
    give(llm, "arrays", "stable")
    llm.load_lora_adapter("file", ADAPTERS / BASE / "stable")
    for one in expected("stable"):
        from_arrays, from_file = ask(llm, "arrays", one["prompt"]), ask(llm, "file", one["prompt"])
        assert said(from_arrays) == said(from_file) == one["tokens"]
        np.testing.assert_allclose(logprobs(from_arrays), logprobs(from_file), atol=1e-5, rtol=0)  # one of them has its prefix
        np.testing.assert_allclose(logprobs(from_arrays), one["logprobs"], atol=TOLERANCE, rtol=0)
    assert llm.weight_version is None
    after = ask(llm, "", expected("stable")[0]["prompt"])
    assert (said(after), logprobs(after)) == (said(before), logprobs(before))


def test_who_waits_for_one_leaves_the_reader_alone(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """A loop that looks again and again has the interpreter while the reader wants it: a second for what takes milliseconds."""
    for name in NAMES:
        llm.load_lora_adapter(name, ADAPTERS / BASE / name)
    store = llm._adapters.store
    read, wait, waits, coming = store._read_directory, store.wait, threading.Event(), list[int]()

    def reading(directory: Path) -> Any:
        assert waits.wait(60)
        return read(directory)

    def waiting(timeout: float) -> None:
        coming.append(len(store._coming))
        waits.set()
        wait(timeout)

    monkeypatch.setattr(store, "_read_directory", reading)
    monkeypatch.setattr(store, "wait", waiting)
    fetches = store.num_fetches
    assert all(serves(llm, name, name) for name in NAMES)
    assert store.num_fetches > fetches, "more than memory has places for"
    assert 1 in coming


def test_one_that_is_replaced_finishes_what_it_began(llm: LLM) -> None:
    give(llm, "policy", "stable")
    old, new = expected("stable")[2], expected("patterns")[2]
    prompts: list[Prompt] = [{"prompt_token_ids": one["prompt"]} for one in (old, new, old)]
    params = [SamplingParams(temperature=0.0, max_tokens=2, ignore_eos=True), GREEDY, GREEDY]
    replaced: list[bool] = []

    def replace(_: RequestOutput) -> None:
        if not replaced:
            replaced.append(True)
            give(llm, "policy", "patterns", load_inplace=True)

    outputs = llm.generate(prompts, params, options=RequestOptions(adapter="policy"), on_output=replace, use_tqdm=False)
    assert replaced
    assert said(outputs[2]) == old["tokens"]
    assert len(llm._adapters.store._given) == 2, "until somebody else comes"
    behind = ask(llm, "policy", old["prompt"])
    assert behind.num_cached_tokens == 0
    assert said(behind) != old["tokens"]
    assert said(ask(llm, "policy", new["prompt"])) == new["tokens"]
    assert len(llm._adapters.store._given) == 1


def test_many_updates_leave_nothing(llm: LLM) -> None:
    held = llm._built.core.executor.adapters._held  # type: ignore[attr-defined]
    for step in range(12):
        give(llm, "policy", NAMES[step % 2], load_inplace=True)
        assert serves(llm, "policy", NAMES[step % 2])
    store = llm._adapters.store
    assert set(held) == store._given | set(store._held)
    assert len(store._given) == 1
    llm._built.core.scheduler.check()


def test_memory_that_is_full_of_them_is_named(llm: LLM) -> None:
    for name in NAMES[:3]:
        give(llm, name, name)
    with pytest.raises(ConflictError, match=r"max_cpu_loras is 3.*without a directory.*unload one"):
        give(llm, "one-layer", "one-layer")
    llm.load_lora_adapter("file", ADAPTERS / BASE / "one-layer")
    for name in (*NAMES[:3], *NAMES[:3]):  # fewer slots: they come back from memory, and one of a directory from there
        assert serves(llm, name, name)
        assert serves(llm, "file", "one-layer")
    llm.unload_lora_adapter("all")
    give(llm, "one-layer", "one-layer")
    give(llm, "one-layer", "stable", load_inplace=True)  # takes its own place
    assert serves(llm, "one-layer", "stable")
    assert serves(llm, "file", "one-layer")


Q = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"
SHORT = Q.removeprefix("base_model.model.")


@pytest.mark.parametrize(
    ("tensors", "config", "words"),
    [
        ({Q: np.nan}, {}, f"{Q} has numbers that are not finite"),
        ({}, {"r": 9}, "rank 9, and max_lora_rank is 8"),
        ({}, {"r": 4}, r"must be \[4, "),
        ({"somebody's": 1.0}, {}, "somebody's"),
        ({}, {"use_dora": True}, "use_dora=True is not supported"),
    ],
)
def test_what_cannot_be_served_leaves_the_old_one(llm: LLM, tensors: Any, config: Any, words: str) -> None:
    give(llm, "policy", "stable")
    params, told = given("stable")
    for name, factor in tensors.items():
        params[name] = params.get(name, np.ones(2, np.float32)) * np.float32(factor)
    with pytest.raises(CheckpointError, match=words):
        llm.load_lora_adapter("policy", params=params, config={**told, **config}, load_inplace=True)
    assert serves(llm, "policy", "stable")


def test_names_and_arguments_are_checked(llm: LLM) -> None:
    params, config = given("stable")
    give(llm, "policy", "stable")
    with pytest.raises(ConflictError, match="load_inplace"):
        give(llm, "policy", "all")
    for wrong in ({}, {"params": params}, {"config": config}, {"lora_path": "x", "params": params, "config": config}):
        with pytest.raises(InvalidRequestError, match="either lora_path must be given, or params and config"):
            llm.load_lora_adapter("other", **wrong)
    with pytest.raises(ModelNotFoundError):
        ask(llm, "other", [1, 2, 3])


def trainers() -> tuple[dict[str, Any], dict[str, Any]]:
    """An adapter as PEFT and as a trainer have it."""
    config = decoder_config(read_json_object(DATA / BASE / "config.json"))
    tensors = peft_tensors(config, 9)
    return tensors, tunix_tree(config, tensors)


def nested(leaves: Mapping[str, Any]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for name, one in leaves.items():
        *parents, last = name.split(".")
        node = tree
        for key in parents:
            node = node.setdefault(key, {})
        node[last] = one
    return tree


@pytest.mark.parametrize("kind", ["dict", "state"])
def test_a_directory_of_orbax(llm: LLM, tmp_path: Path, kind: str) -> None:
    tensors, tree = trainers()
    live = nested({name: jax.device_put(one) for name, one in tree.items()})
    saved = live if kind == "dict" else nnx.State(jax.tree.map(nnx.LoRAParam, live))
    with ocp.CheckpointManager(tmp_path / "lora") as manager:
        manager.save(7, args=ocp.args.StandardSave(saved))
    with pytest.raises(CheckpointError, match=r"has no adapter_config\.json"):
        llm.load_lora_adapter("orbax", tmp_path / "lora")
    (tmp_path / "lora" / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", **CONFIG}))
    llm.load_lora_adapter("orbax", tmp_path / "lora")
    llm.load_lora_adapter("arrays", params=tensors, config=CONFIG)
    keys = {info.name: info.key for info in llm._adapters.store.listed()}
    assert keys["orbax"] == keys["arrays"]
    (tmp_path / "lora" / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": 4, "lora_alpha": 4}))
    with pytest.raises(CheckpointError, match=r"layers\.0\.attn\.q_proj\.w_lora_a is .* and must be \[\d+, 4\]"):
        llm.load_lora_adapter("other", tmp_path / "lora")


def call(llm: LLM, one: AnyCall) -> Any:
    return run_call(llm._built.core, one)


def announce(llm: LLM, tensors: Mapping[str, Any], config: dict[str, Any], **more: Any) -> None:
    arrays = [str(one.dtype) for one in tensors.values()], [list(one.shape) for one in tensors.values()]
    call(llm, OpenTransfer())
    call(llm, StartUpdate("u", list(tensors), *arrays, adapter=SentAdapter("sent", config, **more)))


def send(llm: LLM, tensors: Mapping[str, Any], **finish: Any) -> None:
    for piece in pieces_of(tensors.items(), 500):
        call(llm, PutPiece("u", piece)).work()
    ended = call(llm, FinishUpdate("u", mode="keep", **finish))
    ended.then(ended.work()).result()


def test_one_that_another_process_sends(llm: LLM) -> None:
    tensors, config = given("stable")
    announce(llm, tensors, config)
    send(llm, tensors)
    assert serves(llm, "sent", "stable")
    assert llm.weight_version is None
    with pytest.raises(ConflictError, match="load_inplace"):
        announce(llm, tensors, config)
    with pytest.raises(CheckpointError, match="rank 9, and max_lora_rank is 8"):
        announce(llm, tensors, {**config, "r": 9}, in_place=True)
    other, told = given("patterns")
    announce(llm, other, told, in_place=True)
    with pytest.raises(InvalidRequestError, match="leave it out for an adapter"):
        send(llm, other, version=3)
    with pytest.raises(CheckpointError, match="not finite"):
        send(llm, {name: one * np.float32("nan") for name, one in other.items()})
    assert serves(llm, "sent", "stable")
    send(llm, other)
    assert serves(llm, "sent", "patterns")
