"""A module for multi-token prediction as a decoder: logits and what it goes on from are those of plain numpy."""

import json
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from jaxserve.engine.draft import DraftTarget, prepare_module
from jaxserve.models.binding import Params, bind
from jaxserve.models.checkpoint import read_hf_config
from jaxserve.models.dense_attention import dense_attend
from jaxserve.models.registry import decoder_config
from jaxserve.weights.load import load_params
from jaxserve.weights.packed import Packer
from jaxserve.weights.stored_schemes import stored_schemes
from sharding.mesh import make_mesh
from tests.support.golden_modules import MODULES, with_module
from tests.support.plain_deepseek import CONFIG, random_deepseek, run_module

BLOCK = 16
DENSE = {**CONFIG, "first_k_dense_replace": CONFIG["num_hidden_layers"] + 1}
TIED = {**DENSE, "tie_word_embeddings": True}
FP8 = {**CONFIG, "q_lora_rank": 32, "qk_nope_head_dim": 8, "v_head_dim": 8}
METHOD = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [BLOCK, BLOCK]}


def write(directory, config, weights):
    (directory / "config.json").write_text(json.dumps(config))
    save_file(weights, directory / "model.safetensors")
    return directory


def in_blocks(weights: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The same as DeepSeek stores it, and what that is worth: matrices of attention and MLP in FP8, each block with a factor."""
    stored, worth = dict(weights), dict(weights)
    for name, matrix in weights.items():
        if matrix.ndim != 2 or not (".self_attn." in name or ".mlp." in name) or name.endswith("mlp.gate.weight"):
            continue
        rows, columns = (-(-size // BLOCK) for size in matrix.shape)
        factors = np.random.default_rng(0).uniform(0.01, 0.1, (rows, columns)).astype(np.float32)
        each = np.kron(factors, np.ones((BLOCK, BLOCK), np.float32))[: matrix.shape[0], : matrix.shape[1]]
        stored[name] = (matrix / each).astype(ml_dtypes.float8_e4m3fn)
        stored[f"{name}_scale_inv"] = factors
        worth[name] = stored[name].astype(np.float32) * each
    return stored, worth


def logits_of(directory, hidden, follows) -> tuple[Any, Any]:
    config, mesh = decoder_config(read_hf_config(directory)), make_mesh(1)
    draft = prepare_module(directory, 1, DraftTarget(directory, config, None), mesh, "auto")
    module = draft.model.config
    packer = Packer(module, mesh, "none", draft.model.stored)

    @jax.jit
    def run(params: Params, hidden: jax.Array, follows: jax.Array) -> tuple[jax.Array, jax.Array]:
        decoder = bind(module, params)
        positions = jnp.arange(len(follows), dtype=jnp.int32)
        normed, after = decoder.follow(hidden, follows, positions, dense_attend)
        return after, decoder.logits(normed)

    params = load_params(directory, module, mesh, "float32", packer=packer)
    after, logits = run(params, np.asarray(hidden, np.float32), np.array(follows, np.int32))
    return np.asarray(after), np.asarray(logits)


@pytest.mark.parametrize(
    ("config", "shares"),
    [(CONFIG, False), (CONFIG, True), (DENSE, False), (DENSE, True), (TIED, False), (TIED, True), (FP8, False)],
)
def test_it_computes_what_the_plain_one_does(tmp_path, config, shares):
    rng = np.random.default_rng(3)
    weights = stored = random_deepseek(rng, config, shares=shares)
    if config is FP8:
        stored, weights = in_blocks(weights)
        config = {**config, "quantization_config": METHOD}
    directory = write(tmp_path, config, stored)
    hidden, follows = rng.standard_normal((9, config["hidden_size"])), rng.integers(0, config["vocab_size"], 9).tolist()
    for found, expected in zip(logits_of(directory, hidden, follows), run_module(weights, config, hidden, follows), strict=True):
        np.testing.assert_allclose(found, expected, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("name", ["qwen3-5-dense", "qwen3-5-experts", "qwen3-next-experts"])
def test_modules_of_hybrids_compute_what_transformers_parts_do(tmp_path, name):
    """They lie beside the layers, and go on from what their final norm makes."""
    directory = with_module(name, tmp_path / name)
    expected = np.load(MODULES / name / "expected.npz")
    after, logits = logits_of(directory, expected["hidden"], expected["follows"].tolist())
    np.testing.assert_allclose(after, expected["after"], rtol=0, atol=1e-4)
    np.testing.assert_allclose(logits[:, : expected["logits"].shape[1]], expected["logits"], rtol=0, atol=1e-4)


def test_blocks_are_held_as_those_of_the_target(tmp_path):
    directory = write(
        tmp_path, {**FP8, "quantization_config": METHOD}, in_blocks(random_deepseek(np.random.default_rng(3), FP8))[0]
    )
    config, mesh = decoder_config(read_hf_config(directory)), make_mesh(1)
    draft = prepare_module(directory, 1, DraftTarget(directory, config, None), mesh, "auto")
    last = ("layers", str(config.num_layers - 1))
    target = {path[2:]: scheme for path, scheme in stored_schemes(directory, config, "auto") if path[:2] == last}
    assert {path[2:]: scheme for path, scheme in draft.model.stored} == target
    assert len(target) == 9


def test_dummies_need_no_files(tmp_path):
    """What both share is then the target's by name."""
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    config, mesh = decoder_config(CONFIG), make_mesh(1)
    draft = prepare_module(tmp_path, 1, DraftTarget(tmp_path, config, None), mesh, "dummy")
    fed = draft.model.config.fed
    assert (draft.load_format, fed and fed.own_embedding, fed and fed.own_head) == ("dummy", False, False)
    params = load_params(tmp_path, draft.model.config, mesh, "float32", load_format="dummy")
    embed = CONFIG["hidden_size"]
    assert params["entry"]["kernel"].shape == (2 * embed, embed)
