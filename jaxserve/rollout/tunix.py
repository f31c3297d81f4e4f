"""JaxserveRollout: this engine as the rollout engine of Tunix (google-tunix 0.1.7), which must be installed."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from tunix.generate.tokenizer_adapter import TokenizerAdapter
from tunix.rl.rollout.base_rollout import BaseRollout, RolloutConfig, RolloutOutput

from jaxserve.errors import ConfigError
from jaxserve.llm import LLM
from jaxserve.rollout.policy import RolloutPolicy, truncation
from jaxserve.sampling.params import SamplingParams


class JaxserveRollout(BaseRollout):  # type: ignore[misc]  # an optional package, without types where it is missing
    """Passed to Tunix as `ClusterConfig(rollout_engine=functools.partial(JaxserveRollout, config=..., settings={...}))`.

    Args:
        rollout_actor: the model whose weights are served: an NNX module of `tunix.models`.
        tokenizer: Tunix's.
        mesh: of the rollout; the engine makes its own of as many devices as its settings say.
        rollout_config: Tunix's; what it says of parallelism is taken where the settings do not.
        config: what `LLM.from_params` is told of the model: a directory with config.json, or its content.
        settings: the engine's.
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
    ) -> None:
        _require_dense(rollout_config)
        asked = rollout_config.tensor_parallel_size
        parallel = {} if asked in (-1, 1) else {"tensor_parallel_size": asked}
        adapter = tokenizer if isinstance(tokenizer, TokenizerAdapter) else TokenizerAdapter(tokenizer)
        llm = LLM.from_params(config, rollout_actor, mapping="tunix", version=0, **(parallel | (settings or {})))
        self._policy = RolloutPolicy(llm, adapter)

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

    def get_per_token_logps(self, prompt_tokens: jax.Array, completion_tokens: jax.Array) -> jax.Array:
        """float32[B,C] by the served weights, 0 at padding."""
        return jnp.asarray(self._policy.token_logprobs(prompt_tokens, completion_tokens))

    def update_params(self, params: Any, filter_types: tuple[Any, ...] | None = None) -> None:
        """Serve these weights. Raises ConfigError for a part of them, as LoRA's are."""
        if filter_types is not None and any("LoRA" in getattr(kind, "__name__", "") for kind in filter_types):
            raise ConfigError("params of LoRA cannot be served: merge them into the weights", param="filter_types")
        self.llm.update_weights(params, mapping="tunix")

    def pad_id(self) -> int:
        """The tokenizer's."""
        return self._policy.tokenizer.pad_id()

    def eos_id(self) -> int:
        """The tokenizer's."""
        return self._policy.tokenizer.eos_id()

    def model(self) -> None:
        """None: no module has the engine's weights, so Tunix hands over new ones after each step. It cannot offload them."""


def _require_dense(config: RolloutConfig) -> None:
    for name in ("data_parallel_size", "expert_parallel_size"):
        if getattr(config, name) not in (-1, 1):
            raise ConfigError(f"{name} must be 1: start an engine for each part of the devices", param=name)
