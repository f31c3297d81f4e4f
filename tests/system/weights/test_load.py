import json
import subprocess
import sys
import time
from collections import Counter
from functools import reduce
from pathlib import Path
from typing import Any, cast

import jax
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

from jaxserve.errors import CheckpointError
from jaxserve.models.binding import abstract_params
from jaxserve.models.checkpoint import read_hf_config
from jaxserve.models.config import DecoderConfig
from jaxserve.models.registry import decoder_config, weight_rules
from jaxserve.models.rules import Packing
from jaxserve.weights import checkpoint, load
from jaxserve.weights.check import check_tensors
from jaxserve.weights.held import HeldTensors
from jaxserve.weights.load import load_params
from jaxserve.weights.packed import Packer
from jaxserve.weights.packing import read_block
from jaxserve.weights.safetensors import SafetensorsCheckpoint
from jaxserve.weights.transpose import put_transposed
from sharding import make_mesh
from tests.golden.reading import DATA

HF = {"architectures": ["Qwen2ForCausalLM"], "vocab_size": 101, "hidden_size": 16, "intermediate_size": 24}
HF |= {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 6}


def config(**changes) -> DecoderConfig:
    return decoder_config({**HF, **changes})


def tensors(decoder: DecoderConfig) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    sources = [source for rule in weight_rules(decoder) for source in rule.sources]
    return {source.name: rng.normal(size=source.shape).astype(np.float32) for source in sources}


def write(directory: Path, arrays: dict[str, np.ndarray], files: int = 1) -> Path:
    directory.mkdir(exist_ok=True)
    if files == 1:
        save_file(arrays, directory / "model.safetensors")
        return directory
    names = sorted(arrays)
    weight_map = {name: f"model-{i % files}.safetensors" for i, name in enumerate(names)}
    for file in set(weight_map.values()):
        save_file({name: arrays[name] for name in names if weight_map[name] == file}, directory / file)
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return directory


@pytest.mark.parametrize("tensor", [1, 2])
@pytest.mark.parametrize(("files", "piece"), [(1, checkpoint.PIECE), (3, 100)])
def test_every_shard_holds_its_heads_and_columns(tmp_path, monkeypatch, tensor, files, piece):
    monkeypatch.setattr(checkpoint, "PIECE", piece)
    decoder = config()
    arrays = tensors(decoder)
    params = load_params(write(tmp_path, arrays, files), decoder, make_mesh(tensor), "float32")
    assert jax.tree.map(lambda a: (a.shape, a.dtype), params) == jax.tree.map(
        lambda a: (a.shape, a.dtype), abstract_params(decoder, "float32", tensor)
    )
    layer, prefix = params["layers"]["1"], "model.layers.1"
    q, k, v = (arrays[f"{prefix}.self_attn.{name}_proj.weight"] for name in "qkv")
    biases = [arrays[f"{prefix}.self_attn.{name}_proj.bias"] for name in "qkv"]
    for j in range(tensor):

        def part(a, axis=0, j=j):
            return np.split(a, tensor, axis)[j]

        qkv = np.concatenate([part(q), part(k), part(v)]).T
        np.testing.assert_array_equal(layer["attention"]["qkv"][:, j], qkv)
        np.testing.assert_array_equal(layer["attention"]["qkv_bias"][j], np.concatenate([part(b) for b in biases]))
        out = part(arrays[f"{prefix}.self_attn.o_proj.weight"], 1).T
        np.testing.assert_array_equal(layer["attention"]["out"][j], out)
        gate, up = (part(arrays[f"{prefix}.mlp.{name}_proj.weight"]) for name in ("gate", "up"))
        np.testing.assert_array_equal(layer["mlp"]["gate_up"][:, j], np.concatenate([gate, up]).T)
        np.testing.assert_array_equal(layer["mlp"]["down"][j], part(arrays[f"{prefix}.mlp.down_proj.weight"], 1).T)
    table, head = params["embedding"]["table"], params["head"]["kernel"]
    np.testing.assert_array_equal(table[:101], arrays["model.embed_tokens.weight"])
    np.testing.assert_array_equal(head[:, :101], arrays["lm_head.weight"].T)
    assert table.shape[0] == head.shape[1] == (101 if tensor == 1 else 102)
    assert not np.any(table[101:])
    assert not np.any(head[:, 101:])
    assert len({shard.device for shard in head.addressable_shards}) == tensor


def test_devices_that_share_a_kv_head_read_the_same_one(tmp_path):
    decoder = config()
    arrays = tensors(decoder)
    params = load_params(write(tmp_path, arrays), decoder, make_mesh(4), "float32")
    attention, prefix = params["layers"]["1"]["attention"], "model.layers.1.self_attn"
    for j in range(4):

        def head(kind, name, number):
            return arrays[f"{prefix}.{name}_proj.{kind}"][6 * number : 6 * (number + 1)]

        for kind, packed in (("weight", np.asarray(attention["qkv"])[:, j].T), ("bias", np.asarray(attention["qkv_bias"])[j])):
            expected = [head(kind, "q", j), head(kind, "k", j // 2), head(kind, "v", j // 2)]
            np.testing.assert_array_equal(packed, np.concatenate(expected))


@pytest.mark.parametrize("stored", [np.float16, ml_dtypes.bfloat16, np.float32])
@pytest.mark.parametrize("wanted", ["bfloat16", "float32", "float16"])
def test_weights_are_cast(tmp_path, stored, wanted):
    decoder = config()
    arrays = {name: array.astype(stored) for name, array in tensors(decoder).items()}
    params = load_params(write(tmp_path, arrays), decoder, make_mesh(1), wanted)
    assert {str(leaf.dtype) for leaf in jax.tree.leaves(params)} == {wanted}
    expected = arrays["model.embed_tokens.weight"].astype(wanted)
    np.testing.assert_array_equal(params["embedding"]["table"], expected)


def test_progress(tmp_path):
    decoder = config()
    calls = []
    load_params(write(tmp_path, tensors(decoder)), decoder, make_mesh(1), "float32", progress=lambda *now: calls.append(now))
    done, totals = zip(*calls, strict=True)
    assert len(calls) == 1 + len(weight_rules(decoder))
    assert set(totals) == {decoder.num_parameters * 4}
    assert list(done) == sorted(set(done))
    assert (done[0], done[-1]) == (0, totals[0])


def test_reading_ends_when_progress_raises(tmp_path, monkeypatch):
    """The start was cancelled, or compiling failed: what was not begun is not read."""
    decoder = config(num_hidden_layers=8)
    begun = []

    def slow(*arguments):
        begun.append(arguments)
        time.sleep(0.05 if len(begun) > 1 else 0)
        return read_block(*arguments)

    def cancelled(done, total):
        raise KeyError("cancelled")

    monkeypatch.setattr(load, "read_block", slow)
    with pytest.raises(KeyError, match="cancelled"):
        load_params(write(tmp_path, tensors(decoder)), decoder, make_mesh(1), "float32", progress=cancelled)
    assert len(begun) < len(weight_rules(decoder)) // 2


def test_tied_head_and_stored_frequencies_are_ignored(tmp_path):
    decoder = config(tie_word_embeddings=True)
    arrays = tensors(decoder)
    extra = {
        "lm_head.weight": arrays["model.embed_tokens.weight"],
        "model.layers.0.self_attn.rotary_emb.inv_freq": np.ones(3, np.float32),
    }
    params = load_params(write(tmp_path, arrays | extra), decoder, make_mesh(1), "float32")
    assert "head" not in params


def test_keys_that_a_layer_does_not_read_are_ignored():
    """Published Gemma 4 files have them; those of a layer with keys of its own are needed."""
    config = decoder_config(read_hf_config(DATA / "gemma4-shared"))
    rules = weight_rules(config)
    shapes = {source.name: source.stored_shape for rule in rules for source in rule.sources}
    assert config.kv_source(5) == 1
    for unread in ("k_proj", "v_proj", "k_norm"):
        shapes[f"model.layers.5.self_attn.{unread}.weight"] = (7,)
    check_tensors(config, rules, shapes, dict.fromkeys(shapes, "bfloat16"))
    shapes["model.layers.1.self_attn.k_norm.bias"] = (7,)
    with pytest.raises(CheckpointError, match=r"1 unexpected: model\.layers\.1\.self_attn\.k_norm\.bias"):
        check_tensors(config, rules, shapes, dict.fromkeys(shapes, "bfloat16"))


def test_one_error_lists_everything_that_does_not_fit(tmp_path):
    decoder = config()
    arrays = tensors(decoder)
    del arrays["model.norm.weight"], arrays["model.layers.1.mlp.up_proj.weight"]
    arrays["model.layers.0.self_attn.q_proj.weight"] = np.zeros((24, 8), np.float32)
    arrays["model.layers.0.self_attn.sinks"] = np.zeros(4, np.float32)
    arrays["model.layers.2.mlp.up_proj.weight"] = np.zeros((2, 3), np.float32)
    with pytest.raises(CheckpointError) as caught:
        load_params(write(tmp_path, arrays), decoder, make_mesh(1), "float32")
    message = caught.value.message
    assert "2 missing: model.norm.weight [16], model.layers.1.mlp.up_proj.weight [24, 16]" in message
    assert "2 unexpected: model.layers.0.self_attn.sinks [4], model.layers.2.mlp.up_proj.weight [2, 3]" in message
    assert "1 of the wrong shape: model.layers.0.self_attn.q_proj.weight is [24, 8], needs [24, 16]" in message
    assert "\n" not in message


def test_long_lists_are_cut_with_a_count(tmp_path):
    decoder = config(num_hidden_layers=9)
    arrays = tensors(config())
    with pytest.raises(CheckpointError, match=r"84 missing: .* and 72 more"):
        load_params(write(tmp_path, arrays), decoder, make_mesh(1), "float32")


def test_files_that_are_missing_or_damaged_are_named(tmp_path):
    decoder = config()
    mesh = make_mesh(1)
    (tmp_path / "empty").mkdir()
    with pytest.raises(CheckpointError, match=r"empty has neither model\.safetensors nor"):
        load_params(tmp_path / "empty", decoder, mesh, "float32")
    sharded = write(tmp_path / "sharded", tensors(decoder), files=3)
    (sharded / "model-1.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"sharded lacks files that .*: model-1\.safetensors"):
        load_params(sharded, decoder, mesh, "float32")
    single = write(tmp_path / "single", tensors(decoder)) / "model.safetensors"
    for damage in (single.read_bytes()[:2000], b"", b"not a safetensors file at all"):
        single.write_bytes(damage)
        with pytest.raises(CheckpointError, match=r"model\.safetensors is damaged"):
            load_params(tmp_path / "single", decoder, mesh, "float32")


def test_a_bad_index_is_named(tmp_path):
    decoder = config()
    index = write(tmp_path, tensors(decoder), files=2) / "model.safetensors.index.json"
    outside = {"weight_map": {"model.norm.weight": "../model-0.safetensors"}}
    for text, complaint in (("{", "cannot be read"), ("{}", "no weight_map"), (json.dumps(outside), "lacks files")):
        index.write_text(text)
        with pytest.raises(CheckpointError, match=complaint):
            load_params(tmp_path, decoder, make_mesh(1), "float32")


def test_quantized_tensors_are_refused(tmp_path):
    arrays = tensors(config())
    arrays["model.norm.weight"] = np.zeros(16, np.int8)
    with pytest.raises(CheckpointError, match=r"1 not float32, float16, bfloat16: model\.norm\.weight \(int8\)"):
        load_params(write(tmp_path, arrays), config(), make_mesh(1), "float32")


def test_a_truncated_tensor_is_not_read_as_zeros(tmp_path):
    arrays = tensors(config())
    path = write(tmp_path, arrays) / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(CheckpointError, match="damaged"):
        load_params(tmp_path, config(), make_mesh(1), "float32")


def test_tensors_in_other_files_than_the_index_says_are_named(tmp_path):
    arrays = tensors(config())
    index = write(tmp_path, arrays, files=2) / "model.safetensors.index.json"
    weight_map = json.loads(index.read_text())["weight_map"]
    moved = {**weight_map, "model.norm.weight": next(f for f in weight_map.values() if f != weight_map["model.norm.weight"])}
    unlisted = {name: file for name, file in weight_map.items() if name != "model.norm.weight"}
    imagined = {**weight_map, "model.sinks": "model-0.safetensors"}
    elsewhere = r"model-.\.safetensors (lacks|has) tensors that .* places (there|elsewhere): model\.norm\.weight"
    for changed, complaint in (
        (moved, elsewhere),
        (unlisted, r"has tensors that .* places elsewhere: model\.norm\.weight \(nowhere\)"),
        (imagined, r"model-0\.safetensors lacks tensors that .* places there: model\.sinks"),
    ):
        index.write_text(json.dumps({"weight_map": changed}))
        with pytest.raises(CheckpointError, match=complaint):
            load_params(tmp_path, config(), make_mesh(1), "float32")


@pytest.mark.parametrize("tensor", [1, 2])
@pytest.mark.parametrize("stored", [np.float16, ml_dtypes.bfloat16, np.float32])
def test_weights_that_are_no_numbers_are_named(tmp_path, stored, tensor):
    name, mesh = "model.layers.1.mlp.up_proj.weight", make_mesh(tensor)
    for value in (np.nan, -np.nan, np.inf, -np.inf):
        arrays = {name: array.astype(stored) for name, array in tensors(config()).items()}
        arrays[name][23, 15] = value
        for packer in (None, Packer(config(), mesh)):
            with pytest.raises(
                CheckpointError, match=rf"NaN or infinite: {name} has 1 in 384, the first at \[23, 15\]: {value:g} \(in .*\)$"
            ):
                load_params(write(tmp_path, arrays), config(), mesh, "bfloat16", packer=packer)


def test_weights_too_large_for_the_dtype_are_named(tmp_path):
    arrays = tensors(config())
    arrays["model.norm.weight"][3] = 7e4
    load_params(write(tmp_path, arrays), config(), make_mesh(1), "bfloat16")
    with pytest.raises(CheckpointError, match=r"norm\.weight has 1 in 16, the first at \[3\]: 70000, too large for float16"):
        load_params(tmp_path, config(), make_mesh(1), "float16")


def test_a_file_that_shrinks_while_it_is_read_is_named(tmp_path):
    path = write(tmp_path, {"a": np.arange(6, dtype=np.float32), "b": np.arange(6, dtype=np.float32)}) / "model.safetensors"
    with SafetensorsCheckpoint(tmp_path) as stored:
        path.write_bytes(path.read_bytes()[:-8])
        with pytest.raises(CheckpointError, match=r"model\.safetensors ends within b: it has become shorter"):
            stored.read("b", ((0, 6),))


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_any_block_of_any_tensor(blocks, data):
    stored, arrays = blocks
    name = data.draw(st.sampled_from(sorted(arrays)))
    shape = arrays[name].shape
    starts = [data.draw(st.integers(0, size)) for size in shape]
    bounds = tuple((start, data.draw(st.integers(start, size))) for start, size in zip(starts, shape, strict=True))
    for tensors in (stored, HeldTensors(stored), HeldTensors(stored, lambda *tensor: None)):
        for _ in range(2):
            block = tensors.read(name, bounds)
            assert block.dtype == arrays[name].dtype
            np.testing.assert_array_equal(block, arrays[name][tuple(slice(*part) for part in bounds)])


@pytest.fixture(scope="module")
def blocks(tmp_path_factory):
    shapes = {"scalar": (), "vector": (5,), "matrix": (4, 3), "experts": (3, 1, 4), "deep": (2, 3, 2, 2)}
    arrays = {name: np.arange(np.prod(shape), dtype=np.int32).reshape(shape) for name, shape in shapes.items()}
    arrays["bytes"] = np.arange(9, dtype=np.uint8)
    with SafetensorsCheckpoint(write(tmp_path_factory.mktemp("blocks"), arrays)) as stored:
        yield stored, arrays


class CountingTensors:
    """Counts the elements that are read of each tensor."""

    def __init__(self, checkpoint, rows):
        self.rows = rows
        self.checkpoint = checkpoint
        self.shapes, self.dtypes = checkpoint.shapes, checkpoint.dtypes
        self.read_elements: Counter[str] = Counter()
        self.reads: Counter[str] = Counter()

    def reads_rows(self, name):
        return self.rows

    def read(self, name, bounds):
        block = self.checkpoint.read(name, bounds)
        self.read_elements[name] += block.size
        self.reads[name] += 1
        return block


@pytest.mark.parametrize(("checked", "rows"), [(True, True), (False, True), (False, False)])
def test_the_blocks_of_a_parameter_read_every_element_once(tmp_path, monkeypatch, checked, rows):
    monkeypatch.setattr(checkpoint, "PIECE", 100)
    decoder, arrays = config(), tensors(config())
    shapes: Any = abstract_params(decoder, "float32", 2)
    told = []
    with SafetensorsCheckpoint(write(tmp_path, arrays)) as stored:
        counting = CountingTensors(stored, rows)
        for rule in weight_rules(decoder):
            shape = reduce(lambda node, key: node[key], rule.path, shapes).shape
            axis = {Packing.COLUMNS: -2, Packing.ROWS: 0}.get(rule.packing)
            held = HeldTensors(
                cast(checkpoint.Checkpoint, counting),
                (lambda name, tensor: told.append((name, tensor.shape))) if checked else None,
            )
            for shard in range(2 if axis is not None else 1):
                index = [slice(None)] * len(shape)
                if axis is not None:
                    index[axis] = slice(shard, shard + 1)
                block = read_block(held, rule, shape, tuple(index), "float32")
                assert block.ctypes.data % 64 == 0  # or jax's CPU devices would copy it
    assert counting.read_elements == {name: array.size for name, array in arrays.items()}
    assert (set(counting.reads.values()) == {1}) == (checked or not rows)
    assert sorted(told) == (sorted((name, array.shape) for name, array in arrays.items()) if checked else [])


@pytest.mark.parametrize(
    ("shape", "part"),
    [
        ((), ()),
        ((5,), (5,)),
        ((200,), (100,)),
        ((0, 7), (1, 7)),
        ((30, 10), (10, 10)),
        ((3, 150), (1, 100)),
        ((4, 30, 10), (1, 10, 10)),
        ((50, 2, 10), (5, 2, 10)),
        ((50, 2, 99), (1, 1, 99)),
    ],
)
def test_a_piece_is_a_run_of_elements(monkeypatch, shape, part):
    monkeypatch.setattr(checkpoint, "PIECE", 100)
    assert checkpoint.piece(shape) == part


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_transposition(data):
    rows, columns, first = data.draw(st.integers(0, 140)), data.draw(st.integers(0, 9)), data.draw(st.integers(0, 5))
    stored, wanted = (data.draw(st.sampled_from([np.float32, np.float16, ml_dtypes.bfloat16])) for _ in range(2))
    part = np.arange(rows * columns, dtype=np.float32).reshape(rows, columns).astype(stored)
    if data.draw(st.booleans()):
        part = np.asfortranarray(part)
    out = np.full((columns, first + rows + 3), -1, wanted)
    put_transposed(out[:, first : first + rows], part)
    np.testing.assert_array_equal(out[:, first : first + rows], part.astype(wanted).T)
    assert (out[:, :first] == -1).all()
    assert (out[:, first + rows :] == -1).all()
    vector = np.full(rows, -1, wanted)
    put_transposed(vector, part[:, 0] if columns else vector)
    np.testing.assert_array_equal(vector, part[:, 0].astype(wanted) if columns else vector)


def test_threads_that_load_may_take_turns_at_any_moment() -> None:
    """Without `_walk_devices` one of three such processes crashes."""
    command = [sys.executable, "-X", "faulthandler", "-m", "tests.support.load_in_turns", str(DATA / "llama-tied")]
    done = subprocess.run(command, cwd=DATA.parents[2], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
