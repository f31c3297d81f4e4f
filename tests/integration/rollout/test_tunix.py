"""JaxserveRollout where Tunix is installed (docs/logprobs.md says how): a real model of Tunix's, sampled, scored and updated."""

import functools
import importlib.util
import json

import numpy as np
import pytest

if importlib.util.find_spec("tunix") is None:
    pytest.skip("google-tunix is not installed", allow_module_level=True)

import jax
import jax.numpy as jnp
import qwix
from flax import nnx
from tunix.models.llama3 import model as llama3
from tunix.rl import common
from tunix.rl.rollout.base_rollout import BaseRollout, RolloutConfig

from jaxserve.errors import ConfigError
from jaxserve.rollout.tunix import JaxserveRollout

EOS, PAD = 1, 2
TURNS = 1e6  # Tunix 0.1.7 never passes rope_theta to its layers, which turn by this
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "hidden_act": "silu",
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "rope_theta": TURNS,
    "tie_word_embeddings": True,
    "vocab_size": 128,
    "eos_token_id": EOS,
    "torch_dtype": "float32",
}
SETTINGS = {
    "dtype": "float32",
    "max_model_len": 64,
    "max_num_seqs": 4,
    "before_ready": "fewest",
    "max_num_batched_tokens": 16,
    "page_size": 4,
}


class Letters:
    def encode(self, text, **_):
        return [ord(letter) for letter in text]

    def decode(self, ids, **_):
        return "".join(chr(int(token)) for token in ids)

    def bos_id(self):
        return 0

    def eos_id(self):
        return EOS

    def pad_id(self):
        return PAD


def actor(seed):
    config = llama3.ModelConfig(
        num_layers=2,
        vocab_size=128,
        embed_dim=32,
        hidden_dim=48,
        num_heads=4,
        head_dim=8,
        num_kv_heads=2,
        norm_eps=1e-5,
        rope_theta=10_000,
        weight_tying=True,
    )
    return llama3.Llama3(config, rngs=nnx.Rngs(seed))


@pytest.fixture(scope="module")
def rollout(tmp_path_factory):
    directory = tmp_path_factory.mktemp("tunix")
    (directory / "config.json").write_text(json.dumps(CONFIG))
    engine = functools.partial(JaxserveRollout, config=str(directory), settings=SETTINGS)
    assert issubclass(JaxserveRollout, BaseRollout)
    return engine(rollout_actor=actor(0), tokenizer=Letters(), mesh=None, rollout_config=RolloutConfig())


def trained(actor):
    """With weights as large as trained ones are: what turns queries and keys then matters."""
    nnx.update(actor, jax.tree.map(lambda one: 20 * one, nnx.state(actor, nnx.Param)))
    return actor


def test_an_actor_that_turns_otherwise_is_refused():
    given = {"tokenizer": Letters(), "rollout_config": RolloutConfig(), "settings": SETTINGS}
    with pytest.raises(ConfigError, match=r"do not compute the same.* It begins in layer 0"):
        JaxserveRollout(rollout_actor=trained(actor(0)), config={**CONFIG, "rope_theta": 1e4}, **given)
    right = JaxserveRollout(rollout_actor=trained(actor(0)), config=CONFIG, **given)
    right.update_params(nnx.state(trained(actor(1)), nnx.Param))  # the same structure: not compared again
    prompts, completions = jnp.array([[67, 68, 69, 70]]), jnp.array([[73, 74, 75, 76]])
    served = np.asarray(right.get_per_token_logps(prompts, completions))
    np.testing.assert_allclose(served, theirs(trained(actor(1)), prompts, completions), atol=1e-2)


def theirs(model, prompt, completion, temperature=1.0):
    graph, state = nnx.split(model)
    tokens = {"prompt_tokens": jnp.asarray(prompt), "completion_tokens": jnp.asarray(completion)}
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):  # Tunix is written for jax's defaults
        return np.asarray(common.compute_per_token_logps(graph, state, **tokens, pad_id=PAD, eos_id=EOS, temperature=temperature))


CONFIGURED = RolloutConfig(
    max_tokens_to_generate=10, temperature=0.8, max_prompt_length=6, seed=jax.random.key(3), return_logprobs=True
)


def test_samples_are_as_likely_as_tunix_finds_them(rollout):
    output = rollout.generate(["abc", "abc", "hello"], CONFIGURED)
    assert output.left_padded_prompt_tokens.shape == (3, 6)
    assert output.logprobs is not None
    assert output.text == [Letters().decode(tokens) for tokens in output.tokens]
    for prompt, tokens, logprobs in zip(output.left_padded_prompt_tokens, output.tokens, output.logprobs, strict=True):
        want = theirs(actor(0), prompt[None], tokens[None], CONFIGURED.temperature)[0]
        np.testing.assert_allclose(logprobs, want, atol=1e-3)


def test_scores_are_those_of_tunix(rollout):
    prompts, completions = jnp.array([[PAD, PAD, 65, 66], [67, 68, 69, 70]]), jnp.array([[71, 72, EOS, PAD], [73, 74, 75, 76]])
    got = np.asarray(rollout.get_per_token_logps(prompts, completions))
    want = theirs(actor(0), prompts, completions)
    np.testing.assert_allclose(got[0, :3], want[0, :3], atol=1e-3)
    np.testing.assert_allclose(got[1], want[1], atol=1e-3)


def test_new_weights_are_served_and_not_those_before(rollout):
    prompts, completions = jnp.array([[67, 68, 69, 70]]), jnp.array([[73, 74, 75, 76]])
    before = rollout.get_per_token_logps(prompts, completions)
    model = actor(1)
    rollout.update_params(nnx.state(model, nnx.Param))
    after = np.asarray(rollout.get_per_token_logps(prompts, completions))
    np.testing.assert_allclose(after, theirs(model, prompts, completions), atol=1e-3)
    assert np.abs(after - before).max() > 1e-2
    rollout.update_params(nnx.state(actor(0), nnx.Param))
    np.testing.assert_array_equal(rollout.get_per_token_logps(prompts, completions), before)


def test_what_cannot_be_is_refused(rollout):
    with pytest.raises(ConfigError, match="the actor had no LoRA"):
        rollout.update_params(nnx.State({"a": nnx.LoRAParam(jnp.zeros(2))}), (nnx.LoRAParam,))
    with pytest.raises(ConfigError, match="data_parallel_size"):
        rollout.generate(["a"], RolloutConfig(data_parallel_size=2))
    assert rollout.model() is None  # else Tunix takes the actor's weights for the engine's, and never hands over new ones
    assert (rollout.pad_id(), rollout.eos_id()) == (PAD, EOS)


LORA = {"r": 3, "lora_alpha": 6}


def with_lora(seed):
    """The actor with qwix's LoRA, whose Bs are not zero."""
    provider = qwix.LoraProvider(module_path=".*(q|k|v|o|gate|up|down)_proj", rank=LORA["r"], alpha=float(LORA["lora_alpha"]))
    model = actor(0)
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        model = qwix.apply_lora_to_model(model, provider, **model.get_model_input(), rngs=nnx.Rngs(seed))
    numbers = np.random.default_rng(seed)
    state = nnx.state(model, nnx.LoRAParam)
    nnx.update(model, jax.tree.map(lambda one: jnp.asarray(numbers.standard_normal(one.shape) / 4, one.dtype), state))
    return model


def merged(model):
    """The actor with qwix's LoRA in its weights."""
    made = actor(0)
    leaves = {path: one.get_value() for path, one in nnx.to_flat_state(nnx.state(model, nnx.LoRAParam))}
    flat = dict(nnx.to_flat_state(nnx.state(made, nnx.Param)))
    for path, one in flat.items():
        a, b = (leaves.get((*path[:-1], f"{path[-1]}_lora_{side}")) for side in "ab")
        if a is not None and b is not None:
            one.set_value(one.get_value() + LORA["lora_alpha"] / LORA["r"] * jnp.tensordot(a, b, 1))
    nnx.update(made, nnx.from_flat_state(list(flat.items())))
    return made


def test_lora_alone_is_synced(rollout):
    """It is what the same weights are with LoRA merged into them."""
    prompts, completions = jnp.array([[67, 68, 69, 70]]), jnp.array([[73, 74, 75, 76]])
    given = {"tokenizer": Letters(), "mesh": None, "rollout_config": RolloutConfig(), "config": CONFIG, "settings": SETTINGS}
    trained = JaxserveRollout(rollout_actor=with_lora(1), lora_config=LORA, **given)

    def check(model):
        rollout.update_params(nnx.state(merged(model), nnx.Param))
        want = rollout.get_per_token_logps(prompts, completions)
        np.testing.assert_allclose(trained.get_per_token_logps(prompts, completions), want, atol=1e-4)
        output = trained.generate(["abc"], CONFIGURED)
        tempered = rollout.generate(["abc"], CONFIGURED)
        assert output.tokens[0].tolist() == tempered.tokens[0].tolist()
        np.testing.assert_allclose(output.logprobs[0], tempered.logprobs[0], atol=1e-4)
        return np.asarray(want)

    try:
        first = check(with_lora(1))
        model = with_lora(2)
        trained.update_params(nnx.state(model, (nnx.LoRAParam,)), (nnx.LoRAParam,))
        assert np.abs(check(model) - first).max() > 1e-2
        assert trained.llm.weight_version == 0, "the model's own weights are those of the beginning"
        trained.update_params(nnx.state(with_lora(1), nnx.Param))  # all of them, as for a new reference
        np.testing.assert_allclose(trained.get_per_token_logps(prompts, completions), first, atol=1e-4)
    finally:
        rollout.update_params(nnx.state(actor(0), nnx.Param))
    with pytest.raises(ConfigError, match="lora_config must be given"):
        JaxserveRollout(rollout_actor=with_lora(1), **given)
    with pytest.raises(ConfigError, match="for no other"):
        JaxserveRollout(rollout_actor=actor(0), lora_config=LORA, **given)
