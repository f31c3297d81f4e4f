"""JaxserveRollout: this engine as the rollout engine of Tunix (google-tunix 0.1.7), which must be installed."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from tunix.generate.tokenizer_adapter import TokenizerAdapter
from tunix.rl.rollout.base_rollout import BaseRollout, RolloutConfig, RolloutOutput

from jaxserve.adapters.config import AdapterConfig
from jaxserve.errors import ConfigError
from jaxserve.executor.programs import CompileProgress
from jaxserve.jax_settings import engine_settings
from jaxserve.llm import LLM
from jaxserve.rollout.agreement import TrainerForward, require_agreement
from jaxserve.rollout.policy import RolloutPolicy, truncation
from jaxserve.sampling.params import SamplingParams
from jaxserve.step.plan import Ints

logger = logging.getLogger(__name__)

ADAPTER = "policy"
"""The name of the adapter of LoRA that is trained."""
_ONE_ADAPTER: Mapping[str, Any] = MappingProxyType({"enable_lora": True, "max_loras": 1, "max_cpu_loras": 1})
_WEIGHTS = nnx.All(nnx.Param, nnx.Not(nnx.LoRAParam))


class JaxserveRollout(BaseRollout):  # type: ignore[misc]  # an optional package, without types where it is missing
    """Passed to Tunix as `ClusterConfig(rollout_engine=functools.partial(JaxserveRollout, config=..., settings={...}))`.

    Args:
        rollout_actor: the model whose weights are served: an NNX module of `tunix.models`.
        tokenizer: Tunix's.
        mesh: of the rollout; the engine makes its own of as many devices as its settings say.
        rollout_config: Tunix's; what it says of parallelism is taken where the settings do not.
        config: what `LLM.from_params` is told of the model: a directory with config.json, or its content.
        settings: the engine's.
        lora_config: where LoRA is trained, what an adapter_config.json says: `r` and `lora_alpha`, which qwix was told.
        largest_difference: nats by which log-probabilities of the actor and of the engine may differ on average, over a few
            random tokens at the start and whenever arrays of other names, shapes or dtypes are served; None goes by the dtype.
        progress: told about loading and compiling: (what, done, of how many).

    Raises ConfigError where they differ by more: actor and `config` are then not the same model (`rollout.agreement`).
    """

    def __init__(
        self,
        *,
        rollout_actor: Any,
        tokenizer: Any,
        mesh: Any = None,
        rollout_config: RolloutConfig,
        config: Any,
        settings: dict[str, Any] | None = None,
        lora_config: Mapping[str, Any] | None = None,
        largest_difference: float | None = None,
        progress: CompileProgress | None = None,
    ) -> None:
        _require_dense(rollout_config)
        asked = rollout_config.tensor_parallel_size
        parallel = {} if asked in (-1, 1) else {"tensor_parallel_size": asked}
        adapter = tokenizer if isinstance(tokenizer, TokenizerAdapter) else TokenizerAdapter(tokenizer)
        weights, lora = nnx.state(rollout_actor, _WEIGHTS), nnx.state(rollout_actor, nnx.LoRAParam)
        if bool(lora) != (lora_config is not None):
            raise ConfigError("lora_config must be given for an actor that has LoRA, and for no other", param="lora_config")
        served = {} if lora_config is None else {**_ONE_ADAPTER, "max_lora_rank": AdapterConfig.given(lora_config).rank}
        settings = parallel | served | (settings or {})
        llm = LLM.from_params(config, weights, mapping="tunix", version=0, progress=progress, **settings)
        self._lora_config = lora_config
        self._policy = RolloutPolicy(llm, adapter, ADAPTER if lora else "")
        self._update_lora(lora)
        self._largest_difference = largest_difference
        self._structure = nnx.graphdef(rollout_actor)
        self._rest = nnx.state(rollout_actor, nnx.Not(nnx.Any(_WEIGHTS, nnx.LoRAParam)))  # random numbers' states
        self._compared: set[Any] = set()
        self._compare(nnx.state(rollout_actor, nnx.Any(_WEIGHTS, nnx.LoRAParam)))

    @property
    def llm(self) -> LLM:
        """The engine."""
        return self._policy.llm

    def generate(self, prompts: list[str], rollout_config: RolloutConfig, **_: Any) -> RolloutOutput:
        """One sequence a prompt; tokens have the one that ended it, log-probabilities are those that tokens were drawn by."""
        _require_dense(rollout_config)
        params = SamplingParams(
            max_tokens=rollout_config.max_tokens_to_generate,
            temperature=rollout_config.temperature,
            **truncation(rollout_config.top_p, rollout_config.top_k),
        )
        found = self._policy.sample(prompts, params, eos_tokens=rollout_config.eos_tokens, seed=rollout_config.seed)
        return RolloutOutput(
            text=[self._policy.tokenizer.decode(one.token_ids) for one in found],
            logits=[],
            tokens=[np.asarray(one.token_ids, np.int32) for one in found],
            left_padded_prompt_tokens=self._policy.left_padded(found, rollout_config.max_prompt_length),
            logprobs=[one.logprobs for one in found] if rollout_config.return_logprobs else None,
        )

    @engine_settings()
    def get_per_token_logps(self, prompt_tokens: jax.Array, completion_tokens: jax.Array) -> jax.Array:
        """float32[B,C] by the served weights, 0 at padding."""
        return jnp.asarray(self._policy.token_logprobs(prompt_tokens, completion_tokens))

    def update_params(self, params: Any, filter_types: tuple[Any, ...] | None = None) -> None:
        """Serve these weights, LoRA's, or both: as the types of their variables say, of which `filter_types` are. What is not
        among them is left as it is.

        Raises ConfigError for LoRA's where the actor had none.
        """
        lora = nnx.filter_state(params, nnx.LoRAParam)
        if lora and self._lora_config is None:
            raise ConfigError("the actor had no LoRA: params of it cannot be served", param="params")
        weights = nnx.filter_state(params, nnx.Not(nnx.LoRAParam))
        if weights:
            self.llm.update_weights(weights, mapping="tunix")
        self._update_lora(lora)
        self._compare(params)

    def _compare(self, params: Any) -> None:
        """Require that the engine computes what the actor does with these params, once for all of the same structure."""
        leaves = jax.tree_util.tree_leaves_with_path(params)
        structure = {(jax.tree_util.keystr(path), leaf.shape, leaf.dtype.name) for path, leaf in leaves}
        if structure <= self._compared:
            return
        if {path for path, *_ in self._compared} - {path for path, *_ in structure}:
            logger.warning("a part of the actor has other shapes or dtypes than before: alone it cannot be compared")
            return
        actor = nnx.merge(self._structure, self._rest, params)
        require_agreement(self.llm, partial(forward, actor), adapter=self._policy.adapter, limit=self._largest_difference)
        self._compared |= structure

    def _update_lora(self, lora: nnx.State[Any, Any]) -> None:
        if lora:
            assert self._lora_config is not None, "it was asked for"
            self.llm.load_lora_adapter(ADAPTER, params=lora, config=self._lora_config, mapping="tunix", load_inplace=True)

    def pad_id(self) -> int:
        """The tokenizer's."""
        return self._policy.tokenizer.pad_id()

    def eos_id(self) -> int:
        """The tokenizer's."""
        return self._policy.tokenizer.eos_id()

    def model(self) -> None:
        """None: no module has the engine's weights, so Tunix hands over new ones after each step. It cannot offload them."""


def forward(model: Any, tokens: Ints) -> TrainerForward:
    """One forward pass of a model of `tunix.models` over int32[T] tokens, with what goes into its layers."""
    count = len(tokens)
    seen = jnp.tril(jnp.ones((1, count, count), bool))
    # Tunix is written for jax's defaults.
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"), _recorded(type(model.layers[0])) as inputs:
        logits, _ = model(jnp.asarray(tokens)[None], jnp.arange(count)[None], None, seen)
        told = len(inputs) == len(model.layers) and not any(isinstance(one, jax.core.Tracer) for one in inputs)
        taken = [np.asarray(one[0], np.float32) for one in inputs] if told else None
        dtype = jax.tree.leaves(nnx.state(model, nnx.Param))[0].dtype.name
        return TrainerForward(np.asarray(logits[0], np.float32), taken, dtype)


@contextmanager
def _recorded(layer: Any) -> Iterator[list[Any]]:
    """What layers of a class are called with meanwhile, in order: their first argument."""
    call, inputs = layer.__call__, []

    def recording(self: Any, x: Any, *rest: Any, **named: Any) -> Any:
        inputs.append(x)
        return call(self, x, *rest, **named)

    layer.__call__ = recording
    try:
        yield inputs
    finally:
        layer.__call__ = call


def _require_dense(config: RolloutConfig) -> None:
    for name in ("data_parallel_size", "expert_parallel_size"):
        if getattr(config, name) not in (-1, 1):
            raise ConfigError(f"{name} must be 1: start an engine for each part of the devices", param=name)
