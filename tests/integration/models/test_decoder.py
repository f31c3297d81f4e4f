import re
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxserve.errors import ConfigError
from jaxserve.models.binding import abstract_params, bind, param_axes, param_shardings
from jaxserve.models.config import DecoderConfig, Heads, Scales
from jaxserve.models.latent import Indexer, Latent
from jaxserve.models.positions import RopeConfig
from jaxserve.models.registry import weight_rules
from jaxserve.models.shards import cache_layout, held_kv_heads, padded_vocab, require_scales
from jaxserve.weights.load import load_params
from sharding import make_mesh
from tests.support.tiers import tiered

PLAIN: dict[str, Any] = {
    "architecture": "LlamaForCausalLM",
    "vocab_size": 101,
    "hidden_size": 32,
    "num_layers": 2,
    "num_heads": 8,
}
PLAIN |= {"num_kv_heads": 4, "head_dim": 6, "ffn_size": 40, "norm_eps": 1e-6, "ropes": (RopeConfig(),) * 2, "windows": (None, 8)}
PLAIN |= {"tie_embeddings": False, "qkv_bias": False, "output_bias": False, "mlp_bias": False, "qk_norm": None}
PLAIN |= {"activation": "silu", "max_position_embeddings": 64, "dtype": "bfloat16", "eos_token_ids": ()}
EVERYTHING = dict.fromkeys(("tie_embeddings", "qkv_bias", "output_bias", "mlp_bias"), True) | {"qk_norm": "head"}
AROUND = {"norms": "around", "norm_offset": 1.0, "activation": "gelu_tanh", "ropes": (RopeConfig(rotated_dims=4), None)}
LATENT: dict[str, Any] = {
    "architecture": "DeepseekV3ForCausalLM",
    "num_kv_heads": 1,
    "head_dim": 88,
    "ropes": (RopeConfig(rotated_dims=8),) * 2,
}
LATENT["latent"] = Latent(query_rank=72, kv_rank=80, nope_dim=24, rope_dim=8, value_dim=40)
INDEXER = Indexer(heads=7, dim=22, top_k=5, layers=(True, True))
INDEXED = {**LATENT, "head_dim": 110, "latent": replace(LATENT["latent"], indexer=INDEXER)}
AFTER = {"norms": "after", "qk_norm": "all"}
# The second layer has heads of its own, and its values are its keys; or it attends to what the first one does.
HEADS = (Heads(kv_heads=4, head_dim=6), Heads(kv_heads=1, head_dim=12, values_are_keys=True))
GEMMA4: dict[str, Any] = {"architecture": "Gemma4ForCausalLM", "norms": "around", "qk_norm": "head", "activation": "gelu_tanh"}
GEMMA4 |= {"tie_embeddings": True, "value_norm": True, "layer_scales": True}
UNLIKE = {**GEMMA4, "heads": HEADS, "layer_input": 8}
SHARING = {**GEMMA4, "kv_sources": (0, 0), "ffn_sizes": (40, 80)}
CHOICES = [
    {},
    EVERYTHING,
    AROUND,
    AFTER,
    LATENT,
    {**LATENT, "latent": replace(LATENT["latent"], query_rank=None)},
    INDEXED,
    {**INDEXED, "latent": replace(INDEXED["latent"], indexer=replace(INDEXER, layers=(True, False)))},
    UNLIKE,
    SHARING,
]


def config(**changes) -> DecoderConfig:
    return DecoderConfig(**{**PLAIN, **changes})


def logits(decoder_config, params, tokens, attend):
    decoder = bind(decoder_config, params)
    return decoder.logits(decoder.hidden(tokens, jnp.arange(tokens.shape[0]), attend))


def values_only(layer, q, k, v, rope, options, sinks, index=None, heads=None):
    """A stand-in for attention that is local to a token."""
    v = k[..., : options.value_dim] if v is None else v
    attended = jnp.repeat(v, q.shape[1] // v.shape[1], axis=1)
    return attended if heads is None else heads.values(attended)


@pytest.mark.parametrize("changes", CHOICES)
@pytest.mark.parametrize("shards", [1, 2, 4, 8])
def test_rules_and_parameters_are_the_same_set(changes, shards):
    decoder = config(**changes)
    leaves = jax.tree_util.tree_leaves_with_path(abstract_params(decoder, "float32", shards))
    paths = {tuple(key.key for key in path): leaf for path, leaf in leaves}
    rules = weight_rules(decoder)
    assert sorted(rule.path for rule in rules) == sorted(paths)
    assert set(param_axes(decoder)) == set(paths)
    assert all(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in paths.values())


@pytest.mark.parametrize("changes", [*CHOICES, {"sinks": True}])
def test_number_of_parameters(changes):
    decoder = config(**changes)
    leaves = jax.tree.leaves(abstract_params(decoder, "float32"))
    assert decoder.num_parameters == sum(leaf.size for leaf in leaves)


@pytest.mark.parametrize("tensor", [4, 8])
def test_parameters_are_divided_by_whole_heads_and_columns(tensor):
    decoder = config(**EVERYTHING)
    mesh = make_mesh(tensor)
    shardings = param_shardings(decoder, mesh)
    for path, leaf in jax.tree_util.tree_leaves_with_path(abstract_params(decoder, "float32", tensor)):
        part = shardings[tuple(key.key for key in path)].shard_shape(leaf.shape)
        replicated = "norm" in str(path) or path[-1].key in ("out_bias", "down_bias")
        assert np.prod(part) * (1 if replicated else tensor) == leaf.size


@pytest.mark.parametrize(
    ("shards", "named"),
    [
        (3, "num_attention_heads 8 and num_key_value_heads 4 and intermediate_size 40"),
        (5, "num_attention_heads 8 and num_key_value_heads 4"),
        (16, "num_attention_heads 8 and intermediate_size 40"),
    ],
)
def test_indivisible_meshes_are_refused_by_name(shards, named):
    with pytest.raises(ConfigError) as caught:
        abstract_params(config(), "float32", shards)
    fitting = "sizes that fit this model: 1, 2, 4, 8"
    assert caught.value.message == f"tensor_parallel_size {shards} does not divide {named}; {fitting}"
    assert caught.value.param == "tensor_parallel_size"


@pytest.mark.parametrize(("shards", "heads"), [(1, 4), (4, 4), (8, 8)])
def test_fewer_kv_heads_than_devices_are_repeated(shards, heads):
    decoder = config()
    assert held_kv_heads(decoder.num_kv_heads, shards) == heads
    packed = abstract_params(decoder, "float32", shards)["layers"]["0"]["attention"]["qkv"]
    assert packed.shape == (32, shards, (8 + 2 * heads) // shards * 6)


def test_keys_of_other_layers_count_once():
    decoder = config(**{**SHARING, "num_layers": 4, "windows": (8, None, None, 8), "kv_sources": (0, 1, 1, 0)})
    assert decoder.cache_windows == (8, None)
    assert decoder.cache_numbers == (0, 1, 1, 0)
    assert decoder.first(2).kv_sources == (0, 1)
    assert config().cache_numbers == (0, 1)


def test_layers_with_other_heads_have_room_in_the_pages_of_the_largest():
    layouts = [cache_layout(config(**UNLIKE), shards) for shards in (1, 4, 8)]
    assert layouts == [(2, 4, 6), (2, 4, 12), (2, 8, 12)], "repeated heads may be the larger ones"
    odd = (HEADS[0], Heads(kv_heads=1, head_dim=14))
    with pytest.raises(ConfigError, match="4 KV heads of 6 and 1 of 14"):
        abstract_params(config(**{**UNLIKE, "heads": odd}), "float32")


def test_a_quantized_cache_is_refused_where_layers_differ_in_heads():
    require_scales(config())
    with pytest.raises(ConfigError, match=r"different KV heads \(4 of 6 and 1 of 12\)") as caught:
        require_scales(config(**UNLIKE))
    assert caught.value.param == "kv_cache_dtype"


def test_padding_of_the_vocabulary_has_no_logits():
    decoder = config()
    params = load_params("", decoder, make_mesh(4), "float32", load_format="dummy")
    out = np.asarray(jax.jit(lambda params, hidden: bind(decoder, params).logits(hidden))(params, np.ones((2, 32), np.float32)))
    assert out.shape == (2, padded_vocab(101, 4)) == (2, 104)
    assert np.isfinite(out[:, :101]).all()
    assert (out[:, 101:] == -np.inf).all()


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_dtypes_and_what_attend_sees(dtype):
    decoder = config()
    params = load_params("", decoder, make_mesh(1), dtype, load_format="dummy")
    calls = []

    def attend(layer, q, k, v, rope, options, sinks, index=None, heads=None):
        calls.append((layer, q.shape, k.shape, v.shape, options.window, options.soft_cap))
        assert q.dtype == k.dtype == v.dtype == jnp.dtype(dtype)
        assert options.scale == pytest.approx(6**-0.5)
        return values_only(layer, q, k, v, rope, options, sinks)

    @jax.jit
    def run(params):
        model = bind(decoder, params)
        hidden = model.hidden(jnp.arange(5), jnp.arange(5), attend)
        return hidden, model.logits(hidden[1:3])

    hidden, out = run(params)
    assert hidden.shape == (5, 32)
    assert hidden.dtype == jnp.dtype(dtype)
    assert out.shape == (2, 101)
    assert out.dtype == jnp.float32
    assert calls == [(i, (5, 8, 6), (5, 4, 6), (5, 4, 6), (None, 8)[i], None) for i in range(2)]


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("changes", [{}, {"tie_embeddings": True}, LATENT, INDEXED], ids=["plain", "tied", "latent", "indexed"])
def test_weights_enter_plain_matmuls_as_they_are(dtype, changes):
    """On one device no weight is transposed, copied or converted as a whole before its dot."""
    decoder = config(**{"hidden_size": 256, "ffn_size": 384, "head_dim": 32, "vocab_size": 1000} | changes)
    params = abstract_params(decoder, dtype)
    tokens = jax.ShapeDtypeStruct((8,), jnp.int32)
    run = jax.jit(lambda params, tokens: logits(decoder, params, tokens, values_only))
    text = run.lower(params, tokens).compile().as_text()
    assert text is not None
    norms = params["norms"]["scale"].size  # of which each norm reads a row
    sizes = {leaf.size for leaf in jax.tree.leaves(params) if leaf.ndim > 1} - {norms}
    # A fused gather converts only the rows it picks, whatever the size of the operand it names.
    parts = [part for part in text.split("\n}\n") if not (part.lstrip().startswith("%fused") and " gather(" in part)]
    # One definition a line: "%name = dtype[dims]{layout} opcode(...)".
    definition = re.compile(r"= \w+\[([\d,]+)\]\S* ([\w-]+)\(")
    found = [(np.prod([int(d) for d in dims.split(",")]), op) for part in parts for dims, op in definition.findall(part)]
    moved = [opcode for size, opcode in found if size in sizes and opcode not in ("parameter", "bitcast")]
    assert moved == []
    dots = [line for line in text.splitlines() if re.search(r" dot\(|__ynn|__onednn|custom-call", line)]
    assert dots


@pytest.mark.parametrize("tensor", tiered([2, 4, 8], {2, 8}))
def test_two_all_reduces_a_layer_and_one_for_the_embedding(tensor):
    decoder = config(**EVERYTHING, vocab_size=128)
    params = load_params("", decoder, make_mesh(tensor), "float32", load_format="dummy")
    run = jax.jit(lambda params, tokens: bind(decoder, params).hidden(tokens, jnp.arange(8), values_only))
    text = run.lower(params, jnp.arange(8)).compile().as_text()
    assert text is not None
    assert len(re.findall(r"= \S+ all-reduce(?:-start)?\(", text)) == 2 * decoder.num_layers + 1
    assert not re.findall(r"= \S+ (?:all-gather|all-to-all|collective-permute)(?:-start)?\(", text)


def test_constants_scale_and_cap():
    plain = config(norm_eps=1e-3)
    params = load_params("", plain, make_mesh(1), "float32", load_format="dummy")
    tokens = jnp.arange(8)
    before = np.asarray(logits(plain, params, tokens, values_only))

    def after(**scales):
        return np.asarray(logits(replace(plain, scales=Scales(**scales)), params, tokens, values_only))

    np.testing.assert_allclose(after(logits=0.5), before * 0.5, rtol=1e-6)
    np.testing.assert_allclose(after(logits=2.0, logits_cap=0.7), 0.7 * np.tanh(2 * before / 0.7), rtol=1e-5)
    table = params["embedding"]["table"]
    nothing_added = bind(replace(plain, scales=Scales(residual=0.0, embedding=3.0)), params)
    expected = nothing_added.logits(nothing_added.norms(nothing_added.norms.final, 3.0 * table[:8]))
    np.testing.assert_allclose(after(residual=0.0, embedding=3.0), expected, rtol=1e-5)


@pytest.mark.parametrize(("platform", "dtype"), [("cuda", "bf16"), ("cpu", "f32")])
def test_what_devices_sum_is_rounded_on_gpus_alone(platform, dtype):
    decoder = config()
    run = jax.jit(lambda params, tokens: bind(decoder, params).hidden(tokens, jnp.arange(8), values_only))
    traced = run.trace(abstract_params(decoder, "bfloat16", 4), jnp.arange(8))
    text = traced.lower(lowering_platforms=(platform,)).as_text()
    sums = re.findall(r"dot_general.*contracting_dims = \[1, 2\] x \[0, 1\].*-> tensor<8x32x(\w+)>", text)
    assert sums == [dtype] * 2 * decoder.num_layers


@pytest.mark.parametrize(("qk_norm", "left"), [(None, True), ("head", False), ("all", False)])
def test_attend_rotates_what_is_not_normalised(qk_norm, left):
    """One kernel rotates and stores slices of a product; a norm between them is a kernel that rotates too."""
    decoder, seen = config(qk_norm=qk_norm), []

    def attend(layer, q, k, v, rope, options, sinks, index=None, heads=None):
        seen.append(rope is not None)
        return values_only(layer, q, k, v, rope, options, sinks)

    jax.eval_shape(lambda params: logits(decoder, params, jnp.arange(5), attend), abstract_params(decoder, "float32"))
    assert seen == [left] * decoder.num_layers


@pytest.mark.parametrize("shards", [1, 4])
def test_sinks_are_a_logit_a_head(shards):
    decoder, seen = config(sinks=True), []

    def attend(layer, q, k, v, rope, options, sinks, index=None, heads=None):
        seen.append(sinks.shape)
        return values_only(layer, q, k, v, rope, options, sinks)

    params = abstract_params(decoder, "float32", shards)
    assert params["layers"]["1"]["attention"]["sinks"].shape == (shards, 8 // shards)
    jax.eval_shape(lambda params, tokens: logits(decoder, params, tokens, attend), params, jnp.arange(5))
    assert seen == [(8,), (8,)]
