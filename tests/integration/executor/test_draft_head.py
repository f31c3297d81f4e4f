"""An EAGLE-3 head behind the steps of a Llama guesses what plain numpy says, and changes no token."""

import json

import numpy as np
import pytest
from safetensors.numpy import save_file

from jaxserve.engine.draft import DraftTarget, load_draft, prepare_draft
from jaxserve.errors import CheckpointError, ConfigError, UnsupportedModelError
from jaxserve.executor.local import LocalExecutor
from jaxserve.executor.lowering import Lowering
from jaxserve.executor.options import ExecutorOptions
from jaxserve.executor.programs import make_programs
from jaxserve.models.checkpoint import read_hf_config
from jaxserve.models.registry import decoder_config
from jaxserve.weights.load import load_params
from jaxserve.weights.packed import Packer
from sharding.mesh import make_mesh
from tests.support.draft_session import Session
from tests.support.engine import silent
from tests.support.plain_llama import guess_tokens, random_head, random_llama, run_llama

GUESSES, SLOTS, PAGE = 3, 3, 4
VOCAB, GUESSED, LAYERS = 48, 32, 5
TAPS = (2, LAYERS // 2, LAYERS - 3) if len({2, LAYERS // 2, LAYERS - 3}) == 3 else (1, 2, 4)
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "hidden_act": "silu",
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "vocab_size": VOCAB,
    "torch_dtype": "float32",
}
HEAD = {
    **CONFIG,
    "architectures": ["LlamaForCausalLMEagle3"],
    "num_hidden_layers": 1,
    "draft_vocab_size": GUESSED,
    "eagle_config": {"eagle_aux_hidden_state_layer_ids": list(TAPS), "use_aux_hidden_state": True},
}


def write(directory, config, weights):
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config))
    save_file(weights, directory / "model.safetensors")
    return directory


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A target, a head of its authors' layout, and one of speculators' that shares the target's embeddings."""
    rng, path = np.random.default_rng(3), tmp_path_factory.mktemp("eagle")
    target = random_llama(rng, CONFIG)
    targets = np.sort(rng.permutation(VOCAB)[:GUESSED])
    marks = {"d2t": targets - np.arange(GUESSED), "t2d": np.isin(np.arange(VOCAB), targets)}
    head = random_head(rng, CONFIG, len(TAPS), GUESSED)
    other = random_head(rng, CONFIG, len(TAPS), GUESSED, "layers.0")
    other["embed_tokens.weight"] = target["model.embed_tokens.weight"]
    stored = {name: array for name, array in other.items() if name != "embed_tokens.weight"}
    speculators = {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "draft_vocab_size": GUESSED,
        "norm_before_residual": True,
        "eagle_aux_hidden_state_layer_ids": list(TAPS),
        "transformer_layer_config": {**CONFIG, "num_hidden_layers": 1},
    }
    directories = (
        write(path / "target", CONFIG, target),
        write(path / "head", HEAD, {**head, **marks}),
        write(path / "speculators", speculators, {**stored, **marks}),
    )
    return directories, target, (head, other), targets


def build(target_directory, head_directory, devices: int) -> LocalExecutor:
    config, mesh = decoder_config(read_hf_config(target_directory)), make_mesh(devices)
    draft = None
    if head_directory is not None:
        draft = prepare_draft(head_directory, GUESSES, DraftTarget(target_directory, config, None), mesh, "auto")
    options = ExecutorOptions(
        max_num_seqs=SLOTS,
        max_num_batched_tokens=8,
        max_model_len=64,
        num_pages=40,
        page_size=PAGE,
        dtype="float32",
        kv_dtype="float32",
        max_drafts=0 if draft is None else GUESSES,
        fewest_shapes=True,
        strict=True,
    )
    lowering = Lowering(config, mesh, options, draft=None if draft is None else draft.model)
    params = load_params(target_directory, config, mesh, "float32", packer=Packer(config, mesh, "none"))
    weights = None
    if draft is not None:
        weights = load_draft(draft, lowering, seed=0, progress=silent)
    return LocalExecutor(lowering, make_programs(lowering, silent), params, draft=weights)


# Both layouts of heads, one device and two.
@pytest.mark.parametrize(("which", "devices"), [pytest.param(0, 1, marks=pytest.mark.extended), (1, 1), (0, 2)])
def test_guesses_are_those_of_the_plain_head(models, which, devices):
    """And tokens those of the plain target."""
    (target_directory, *heads), target, weights, targets = models
    session = Session(build(target_directory, heads[which], devices), GUESSES, SLOTS)
    session.prefill()
    right = 0
    for _ in range(8):
        for slot, guesses in enumerate(session.guessed()):
            tokens = session.tokens[slot]
            inputs, logits = run_llama(target, CONFIG, tokens)
            assert tokens[-1] == logits[-2].argmax()
            tapped = np.concatenate([inputs[tap] for tap in TAPS], axis=1)[:-1]
            layer, first = ("midlayer", False) if which == 0 else ("layers.0", True)
            expected = guess_tokens(weights[which], CONFIG, tapped, tokens, GUESSES, targets, layer, norm_first=first)
            assert guesses == expected
        right += int(session.decode().num_tokens.sum()) - 2
    assert session.executor.late_compiles == 0


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"norm_output": True}, UnsupportedModelError, "norm_output"),
        ({"speculators_model_type": "dflash"}, UnsupportedModelError, "dflash"),
        ({"target_hidden_size": 64}, CheckpointError, "64 numbers a token, and the target has 32"),
        ({"eagle_aux_hidden_state_layer_ids": [1, 2, 9]}, CheckpointError, "the target has 5 layers"),
        ({"vocab_size": 47}, ConfigError, "the draft has 47 tokens, the target 48"),
        ({"draft_vocab_size": 31}, CheckpointError, "31"),
    ],
)
def test_heads_that_do_not_fit_are_refused(models, tmp_path, change, error, words):
    (target_directory, *_), _, (head, _), targets = models
    marks = {"d2t": targets - np.arange(GUESSED)}
    directory = write(tmp_path / "head", {**HEAD, **change}, {**head, **marks})
    with pytest.raises(error, match=words):
        build(target_directory, directory, 1)


def test_a_missing_table_of_tokens_is_named(models, tmp_path):
    (target_directory, *_), _, (head, _), _ = models
    with pytest.raises(CheckpointError, match="the head guesses 32 of the target's 48 tokens, and no tensor d2t"):
        build(target_directory, write(tmp_path / "head", HEAD, head), 1)
