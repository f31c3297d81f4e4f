"""DeepSeek-V3's module for multi-token prediction behind its steps guesses what plain numpy says, and changes no token."""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from jaxserve.engine.draft import DraftTarget, load_draft, prepare_module
from jaxserve.errors import CheckpointError, ConfigError
from jaxserve.executor.local import LocalExecutor
from jaxserve.executor.lowering import Lowering
from jaxserve.executor.memory import draft_bytes
from jaxserve.executor.options import ExecutorOptions
from jaxserve.executor.programs import make_programs
from jaxserve.models.checkpoint import read_hf_config
from jaxserve.models.registry import decoder_config
from jaxserve.weights.load import load_params
from jaxserve.weights.packed import Packer
from sharding.mesh import make_mesh
from tests.support.draft_session import Session
from tests.support.engine import silent
from tests.support.plain_deepseek import CONFIG, SPARSE, guess_tokens, random_deepseek, run_deepseek

GUESSES, SLOTS, PAGE = 3, 2, 4
MODULE = f"model.layers.{CONFIG['num_hidden_layers']}"


def write(directory, config, weights):
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config))
    save_file(weights, directory / "model.safetensors")
    return directory


def prepared(directory, devices, module_directory=None):
    config, mesh = decoder_config(read_hf_config(directory)), make_mesh(devices)
    target = DraftTarget(directory, config, None)
    return prepare_module(module_directory or directory, GUESSES, target, mesh, "auto"), config, mesh


def build(directory, devices, module_directory=None) -> LocalExecutor:
    draft, config, mesh = prepared(directory, devices, module_directory)
    options = ExecutorOptions(
        max_num_seqs=SLOTS,
        max_num_batched_tokens=8,
        max_model_len=64,
        num_pages=40,
        page_size=PAGE,
        dtype="float32",
        kv_dtype="float32",
        max_drafts=GUESSES,
        fewest_shapes=True,
        strict=True,
    )
    lowering = Lowering(config, mesh, options, draft=draft.model)
    params = load_params(directory, config, mesh, "float32", packer=Packer(config, mesh, "none"))
    weights = load_draft(draft, lowering, seed=0, progress=silent)
    return LocalExecutor(lowering, make_programs(lowering, silent), params, draft=weights)


# Both kinds of attention, a module with tables of its own and one that shares the target's; on two devices test_draft_head
# has a draft, too.
@pytest.mark.parametrize(
    ("config", "shares", "devices"),
    [
        pytest.param(CONFIG, False, 1, marks=pytest.mark.extended),
        (CONFIG, True, 1),
        pytest.param(CONFIG, True, 2, marks=pytest.mark.extended),
        pytest.param(SPARSE, False, 1, marks=pytest.mark.extended),
        pytest.param(SPARSE, False, 2, marks=pytest.mark.extended),
    ],
)
def test_guesses_are_those_of_the_plain_module(tmp_path, config, shares, devices):
    """And tokens those of the plain target."""
    weights = random_deepseek(np.random.default_rng(3), config, shares=shares)
    session = Session(build(write(tmp_path / "target", config, weights), devices), GUESSES, SLOTS)
    session.prefill()
    for _ in range(6):
        for slot, guesses in enumerate(session.guessed()):
            tokens = session.tokens[slot]
            hidden, logits = run_deepseek(weights, config, tokens)
            assert tokens[-1] == logits[-2].argmax()
            assert guesses == guess_tokens(weights, config, hidden[:-1], tokens, GUESSES)
        session.decode()
    assert session.executor.late_compiles == 0


@pytest.fixture(scope="module")
def weights():
    return random_deepseek(np.random.default_rng(3), CONFIG)


def test_the_module_may_be_in_another_directory(weights, tmp_path):
    """Which has what it shares as well."""
    target = write(tmp_path / "target", CONFIG, {name: array for name, array in weights.items() if not name.startswith(MODULE)})
    draft, _, mesh = prepared(target, 1, write(tmp_path / "module", CONFIG, weights))
    assert (draft.directory, draft.model.config.num_layers) == (tmp_path / "module", 1)
    embed, vocab = CONFIG["hidden_size"], CONFIG["vocab_size"]
    tables = 2 * vocab * embed
    latents = CONFIG["kv_lora_rank"] + CONFIG["qk_rope_head_dim"]
    module = sum(array.size for name, array in weights.items() if name.startswith(MODULE))
    held = draft_bytes(draft.model, mesh, PAGE, "float32", "float32")
    assert (held.weights, held.page) == (4 * module, 4 * PAGE * latents)
    assert module > tables


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"num_nextn_predict_layers": 0}, ConfigError, "num_nextn_predict_layers or .* in the target's config.json is 0"),
        ({"num_nextn_predict_layers": 2}, ConfigError, "is 2; checkpoints with one module are served"),
        ({"num_hidden_layers": 3}, CheckpointError, "has no tensors model.layers.3.*, which are the module"),
    ],
)
def test_targets_without_a_module_are_refused(weights, tmp_path, change, error, words):
    with pytest.raises(error, match=words):
        prepared(write(tmp_path / "target", {**CONFIG, **change}, weights), 1)


def test_modules_of_other_models_are_refused(weights, tmp_path):
    target = write(tmp_path / "target", CONFIG, weights)
    for field, words in (("hidden_size", "hidden_size is 64, the target's is 32"), ("vocab_size", "vocab_size is 64")):
        other = write(tmp_path / field, {**CONFIG, field: 64}, weights)
        with pytest.raises(CheckpointError, match=words):
            prepared(target, 1, other)
    with pytest.raises(ConfigError, match="no checkpoint directory at '/nowhere'"):
        prepared(target, 1, Path("/nowhere"))


@pytest.mark.parametrize(
    ("name", "words"),
    [("enorm", "1 missing: .*enorm.weight"), ("self_attn.q_a_proj", "q_a_proj.weight"), ("mlp.experts.5.up_proj", "experts.5")],
)
def test_tensors_that_are_missing_or_misshaped_are_named(weights, tmp_path, name, words):
    tensor = f"{MODULE}.{name}.weight"
    less = {key: array for key, array in weights.items() if key != tensor}
    cut = {**weights, tensor: np.ascontiguousarray(weights[tensor][:-1])}
    for number, (stored, complaint) in enumerate(((less, words), (cut, f"{tensor} is .*, needs"))):
        draft, _, mesh = prepared(write(tmp_path / str(number), CONFIG, stored), 1)
        with pytest.raises(CheckpointError, match=complaint):
            load_params(draft.directory, draft.model.config, mesh, "float32", load_format="auto")


def test_what_is_not_of_the_module_is_named(weights, tmp_path):
    stored = {**weights, f"{MODULE}.gate.weight": np.zeros(3, np.float32)}
    draft, _, mesh = prepared(write(tmp_path / "target", CONFIG, stored), 1)
    with pytest.raises(CheckpointError, match=f"1 unexpected: {MODULE}.gate.weight"):
        load_params(draft.directory, draft.model.config, mesh, "float32", load_format="auto")
