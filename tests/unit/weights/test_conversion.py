"""Orbax checkpoints hold what the checkpoint had that they were made from, and load on any mesh."""

import json
import shutil

import jax
import ml_dtypes
import numpy as np
import orbax.checkpoint as ocp
import pytest
from safetensors.numpy import load_file, save_file

from jaxserve.errors import CheckpointError, ConfigError, UnsupportedModelError
from jaxserve.models.checkpoint import read_hf_config
from jaxserve.models.registry import decoder_config
from jaxserve.weights import checkpoint
from jaxserve.weights.checkpoint import whole
from jaxserve.weights.conversion import Source, convert, make_manifest
from jaxserve.weights.load import load_params
from jaxserve.weights.manifest import read_manifest
from jaxserve.weights.orbax import OrbaxCheckpoint
from sharding import make_mesh
from tests.golden.reading import DATA

PLAIN, QUANTIZED = DATA / "llama3-layout4", DATA / "gpt-oss-mxfp4"


def silent(done, total):
    pass


def load(directory, tensor=1, dtype="float32", **options):
    config = decoder_config(read_hf_config(directory))
    return load_params(directory, config, make_mesh(tensor), dtype, **options)


def assert_same(params, others):
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(np.asarray(a), np.asarray(b), strict=True), params, others)


@pytest.fixture(scope="module")
def converted(tmp_path_factory):
    output = tmp_path_factory.mktemp("converted") / "model"
    convert(Source(path=PLAIN), output, None, silent)
    return output


@pytest.mark.parametrize("tensor", [1, 2])
def test_an_orbax_checkpoint_loads_on_any_mesh(converted, tensor):
    assert_same(load(converted, tensor), load(PLAIN, tensor))


def test_orbax_itself_reads_the_tensors(converted):
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as reader:
        tree = reader.restore((converted / "orbax").absolute())
    expected = load_file(PLAIN / "model.safetensors")
    assert tree.keys() == expected.keys()
    for name, tensor in expected.items():
        np.testing.assert_array_equal(tree[name], tensor, strict=True)


def test_any_block_is_read(converted):
    expected = load_file(PLAIN / "model.safetensors")
    with OrbaxCheckpoint(converted / "orbax") as stored:
        assert stored.shapes == {name: tensor.shape for name, tensor in expected.items()}
        assert set(stored.dtypes.values()) == {"float32"}
        name = "model.layers.0.mlp.up_proj.weight"
        np.testing.assert_array_equal(stored.read(name, ((3, 9), (2, 7))), expected[name][3:9, 2:7])


def test_chunks_are_what_is_read_at_a_time(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "PIECE", 100)
    convert(Source(path=PLAIN), tmp_path / "out", None, silent)
    with OrbaxCheckpoint(tmp_path / "out" / "orbax") as rows:
        name = "model.layers.0.mlp.up_proj.weight"
        assert rows._stores[name].chunk_layout.read_chunk.shape == (3, rows.shapes[name][1])
        assert all(map(rows.reads_rows, rows.shapes))
    assert_same(load(tmp_path / "out"), load(PLAIN))


def test_chunks_that_are_no_rows_are_read_once(tmp_path):
    source = shutil.copytree(PLAIN, tmp_path / "source")
    tensors = load_file(source / "model.safetensors")
    (source / "model.safetensors").unlink()
    chunks = dict.fromkeys(tensors, ocp.SaveArgs(chunk_byte_size=1024))
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as writer:
        writer.save((source / "orbax").absolute(), args=ocp.args.PyTreeSave(tensors, save_args=chunks))
    with OrbaxCheckpoint(source / "orbax") as stored:
        assert not stored.reads_rows("model.layers.0.mlp.up_proj.weight")
    assert_same(load(source, tensor=2), load(PLAIN, tensor=2))


def test_what_lies_beside_the_weights_comes_along(tmp_path):
    source = shutil.copytree(PLAIN, tmp_path / "source")
    beside = {"generation_config.json": "{}", "tokenizer.json": "{}", "chat_template.jinja": "{{ x }}", "notes.txt": "mine"}
    for name, text in beside.items():
        (source / name).write_text(text)
    more = "additional_chat_templates"
    (source / more).mkdir()
    (source / more / "tools.jinja").write_text("{{ y }}")
    convert(Source(path=source), tmp_path / "out", None, silent)
    there = {path.name for path in (tmp_path / "out").iterdir()}
    assert there == {"config.json", "orbax", "jaxserve-manifest.json", "tokenizer_config.json", more, *beside} - {"notes.txt"}
    assert (tmp_path / "out" / more / "tools.jinja").read_text() == "{{ y }}"
    assert json.loads((tmp_path / "out" / "config.json").read_text()) == json.loads((source / "config.json").read_text())


def test_weights_are_cast_if_asked(tmp_path):
    source = shutil.copytree(PLAIN, tmp_path / "source")
    config = read_hf_config(PLAIN)
    (source / "config.json").write_text(json.dumps({**config, "dtype": None, "torch_dtype": "float32"}))
    manifest = convert(Source(path=source), tmp_path / "out", "bfloat16", silent)
    assert "torch_dtype" not in read_hf_config(tmp_path / "out")
    assert {tensor.dtype for tensor in manifest.tensors.values()} == {"bfloat16"}
    assert decoder_config(read_hf_config(tmp_path / "out")).dtype == "bfloat16"
    assert_same(load(tmp_path / "out", dtype="bfloat16"), load(PLAIN, dtype="bfloat16"))


@pytest.mark.parametrize("dtype", [None, "bfloat16"])
def test_quantized_weights_stay_so_or_are_dequantized(tmp_path, dtype):
    manifest = convert(Source(path=QUANTIZED), tmp_path / "out", dtype, silent)
    kept = {tensor.dtype for tensor in manifest.tensors.values()}
    assert ("uint8" in kept) == (dtype is None)
    assert ("quantization_config" in read_hf_config(tmp_path / "out")) == (dtype is None)
    assert_same(load(tmp_path / "out", dtype="bfloat16"), load(QUANTIZED, dtype="bfloat16"))


def test_nothing_is_left_of_a_conversion_that_fails(tmp_path):
    source = shutil.copytree(PLAIN, tmp_path / "source")
    tensors = load_file(source / "model.safetensors")
    tensors["model.norm.weight"][2] = 1e38
    save_file(tensors, source / "model.safetensors")
    with pytest.raises(
        CheckpointError, match=r"model\.norm\.weight has weights that are NaN, infinite, or too large for float16"
    ):
        convert(Source(path=source), tmp_path / "out", "float16", silent)
    assert not (tmp_path / "out").exists()
    save_file({name: tensor for name, tensor in tensors.items() if "norm" not in name}, source / "model.safetensors")
    with pytest.raises(CheckpointError, match="missing"):
        convert(Source(path=source), tmp_path / "out", None, silent)


def test_an_output_that_is_there_is_left_alone(tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("x")
    with pytest.raises(ConfigError, match="out is there already and not empty"):
        convert(Source(path=PLAIN), tmp_path / "out", None, silent)
    assert (tmp_path / "out" / "mine").read_text() == "x"


def test_damaged_orbax_checkpoints_are_named(converted, tmp_path):
    with pytest.raises(CheckpointError, match="no Orbax checkpoint"):
        load(PLAIN, load_format="orbax")
    lost = shutil.copytree(converted, tmp_path / "lost")
    for path in (lost / "orbax").rglob("d/*"):
        path.unlink()
    with pytest.raises(CheckpointError, match="cannot be opened"):
        load(lost)
    cut = shutil.copytree(converted, tmp_path / "cut")
    largest = max((cut / "orbax").rglob("d/*"), key=lambda path: path.stat().st_size)
    largest.write_bytes(largest.read_bytes()[:1000])
    with pytest.raises(CheckpointError, match=r"cannot be (read|opened)"):
        load(cut)
    strange = shutil.copytree(converted, tmp_path / "strange")
    for text, complaint in (("[]", "must hold a JSON object"), ('{"tree_metadata": {"a": {}}}', "is not what Orbax writes")):
        (strange / "orbax" / "_METADATA").write_text(text)
        with pytest.raises(CheckpointError, match=complaint):
            load(strange)


def test_every_tensor_is_verified(converted, tmp_path):
    assert_same(load(converted, tensor=2, verify=True), load(PLAIN, tensor=2))
    source = shutil.copytree(PLAIN, tmp_path / "source")
    with pytest.raises(CheckpointError, match=r"source has no jaxserve-manifest\.json to verify weights against"):
        load(source, verify=True)
    make_manifest(source, silent)
    assert read_manifest(source) == read_manifest(converted)
    tensors = load_file(source / "model.safetensors")
    for name, tensor in tensors.items():
        changed = tensor.copy()
        changed.reshape(-1).view(np.uint32)[-1] ^= 1  # the last bit of all
        save_file({**tensors, name: changed}, source / "model.safetensors")
        load(source)
        with pytest.raises(CheckpointError, match=rf"{name} is not what jaxserve-manifest\.json says"):
            load(source, tensor=2, verify=True)
    save_file({**tensors, "model.layers.0.self_attn.rotary_emb.inv_freq": np.ones(2, np.float32)}, source / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"it has besides model\.layers\.0\.self_attn\.rotary_emb\.inv_freq"):
        load(source, verify=True)


def maxtext_tree(tensors, config, *, stacked, neighbours):
    """What MaxText would hold, from Hugging Face's tensors."""
    heads, kv_heads, head_dim = config.num_heads, config.num_kv_heads, config.head_dim

    def projection(name, count):
        kernel = tensors[f"{name}.weight"].T.reshape(-1, count, head_dim)
        if neighbours and not name.endswith("v_proj"):
            first, second = np.split(kernel, 2, axis=-1)
            kernel = np.stack([first, second], axis=-1).reshape(kernel.shape)
        return {"kernel": (kernel / np.sqrt(head_dim)).astype(kernel.dtype) if name.endswith("q_proj") else kernel}

    def layer(number):
        here = f"model.layers.{number}"
        attention, mlp = f"{here}.self_attn", f"{here}.mlp"
        out = tensors[f"{attention}.o_proj.weight"].T.reshape(heads, head_dim, -1)
        return {
            "pre_self_attention_layer_norm": {"scale": tensors[f"{here}.input_layernorm.weight"]},
            "post_self_attention_layer_norm": {"scale": tensors[f"{here}.post_attention_layernorm.weight"]},
            "self_attention": {
                "query": projection(f"{attention}.q_proj", heads),
                "key": projection(f"{attention}.k_proj", kv_heads),
                "value": projection(f"{attention}.v_proj", kv_heads),
                "out": {"kernel": out},
            },
            "mlp": {
                "wi_0": {"kernel": tensors[f"{mlp}.gate_proj.weight"].T},
                "wi_1": {"kernel": tensors[f"{mlp}.up_proj.weight"].T},
                "wo": {"kernel": tensors[f"{mlp}.down_proj.weight"].T},
            },
        }

    layers = [layer(number) for number in range(config.num_layers)]
    decoder = {"decoder_norm": {"scale": tensors["model.norm.weight"]}}
    if "lm_head.weight" in tensors:
        decoder["logits_dense"] = {"kernel": tensors["lm_head.weight"].T}
    if stacked:
        decoder["layers"] = jax.tree.map(lambda *parts: np.stack(parts, axis=1), *layers)
    else:
        decoder |= {f"layers_{number}": tree for number, tree in enumerate(layers)}
    return {"decoder": decoder, "token_embedder": {"embedding": tensors["model.embed_tokens.weight"]}}


def save(path, tree):
    tree = jax.tree.map(np.ascontiguousarray, tree)
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as writer:
        writer.save(path.absolute(), args=ocp.args.PyTreeSave(tree))


@pytest.mark.parametrize(
    ("name", "stacked", "neighbours", "wrapped"),
    [("llama3-layout4", True, True, 2), ("llama-dynamic", False, False, 1), ("mistral-window", True, False, 0)],
)
def test_checkpoints_of_maxtext(tmp_path, name, stacked, neighbours, wrapped):
    """Scaling queries by sqrt(D) there and back rounds twice; all else is exact."""
    config = decoder_config(read_hf_config(DATA / name))
    tensors = load_file(DATA / name / "model.safetensors")
    tree = maxtext_tree(tensors, config, stacked=stacked, neighbours=neighbours)
    for _ in range(wrapped):
        tree = {"params": tree}
    if wrapped:  # with the rest of a training state
        tree |= {"step": np.int32(7), "opt_state": {"mu": {"scale": np.ones(3)}, "empty": {}, "none": None}}
    steps = tmp_path / "checkpoints"
    save(steps / "10" / "items", tree)
    save(steps / "9" / "items", {"old": np.ones(3)})
    source = Source(path=steps, kind="maxtext", config=DATA / name / "config.json")
    convert(source, tmp_path / "out", None, silent)
    with OrbaxCheckpoint(tmp_path / "out" / "orbax") as stored:
        assert stored.shapes.keys() == tensors.keys()
        for tensor, expected in tensors.items():
            found = stored.read(tensor, whole(expected.shape))
            rounding = ml_dtypes.finfo(found.dtype).eps if "q_proj" in tensor else 0
            assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
            np.testing.assert_allclose(found.astype(np.float32), expected.astype(np.float32), rtol=float(rounding), atol=0)


def test_other_trees_are_no_checkpoint_of_maxtext(tmp_path):
    config_file = PLAIN / "config.json"
    config = decoder_config(read_hf_config(PLAIN))
    tensors = load_file(PLAIN / "model.safetensors")
    tree = maxtext_tree(tensors, config, stacked=True, neighbours=True)
    del tree["decoder"]["decoder_norm"]
    tree["decoder"]["layers"]["self_attention"]["sinks"] = np.ones(2)
    tree["decoder"]["layers"]["mlp"]["wo"]["kernel"] = np.ones((3, 2, 4), ml_dtypes.bfloat16)
    save(tmp_path / "odd", tree)
    with pytest.raises(CheckpointError) as caught:
        convert(Source(path=tmp_path / "odd", kind="maxtext", config=config_file), tmp_path / "out", None, silent)
    for part in ("decoder_norm.scale is missing, needs", "wo.kernel is [3, 2, 4], needs", "self_attention.sinks is unknown"):
        assert part in caught.value.message
    save(tmp_path / "other", {"a": np.ones(3)})
    with pytest.raises(CheckpointError, match=r"no checkpoint of MaxText: it has no token_embedder\.embedding"):
        convert(Source(path=tmp_path / "other", kind="maxtext", config=config_file), tmp_path / "out", None, silent)
    with pytest.raises(CheckpointError, match="has no Orbax checkpoint"):
        convert(Source(path=PLAIN, kind="maxtext", config=config_file), tmp_path / "out", None, silent)
    gpt_oss = Source(path=tmp_path / "odd", kind="maxtext", config=QUANTIZED / "config.json")
    with pytest.raises(UnsupportedModelError, match="read for LlamaForCausalLM and MistralForCausalLM, not GptOssForCausalLM"):
        convert(gpt_oss, tmp_path / "out", None, silent)
