"""GRPO with Tunix on the bundled model: products as prompts, rollouts by jaxserve or by Tunix's own sampler.

    python examples/rl/grpo.py --out jaxserve.json --plot reward.png
    python examples/rl/grpo.py --engine vanilla --steps 20 --out vanilla.json

It needs google-tunix 0.1.7 (docs/logprobs.md says how). Compiling and the first steps are part of the times but not of the rate,
which is that of the later half of the rollouts.
"""

from __future__ import annotations

import argparse
import functools
import json
import logging
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from tunix.generate.tokenizer_adapter import TokenizerAdapter
from tunix.models.llama3 import model as llama3
from tunix.models.llama3 import params as llama3_params
from tunix.rl import rl_cluster
from tunix.rl.grpo.grpo_learner import GRPOConfig, GRPOLearner
from tunix.rl.rollout.base_rollout import RolloutConfig

from jaxserve.rollout.tunix import JaxserveRollout
from jaxserve.tokenizer.load import load_tokenizer

MODEL = Path(__file__).parents[2] / "jaxserve" / "assets" / "pico"
PROMPT = "<|begin|><|user|>{} * {}<|end|><|assistant|>"
CONFIG = llama3.ModelConfig(
    num_layers=4,
    vocab_size=1024,
    embed_dim=256,
    hidden_dim=704,
    num_heads=8,
    head_dim=32,
    num_kv_heads=4,
    rope_theta=10_000,
    norm_eps=1e-5,
    weight_tying=True,
)


# Tunix 0.1.7 never passes the configuration's rope_theta to its layers, which then turn by 1,000,000.
llama3.apply_rope = functools.partial(llama3.apply_rope, rope_theta=CONFIG.rope_theta)


class PicoTokenizer:
    """The bundled model's tokenizer with the methods that Tunix asks for."""

    def __init__(self) -> None:
        self._tokenizer = load_tokenizer(MODEL)

    def encode(self, text: str, **_: Any) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False))

    def decode(self, ids: Any, **_: Any) -> str:
        return self._tokenizer.decode([int(token) for token in ids], skip_special_tokens=True)

    def bos_id(self) -> int:
        return 1

    def eos_id(self) -> int:
        return 2

    def pad_id(self) -> int:
        return 0


def batches(seed: int, steps: int, prompts: int) -> Iterator[dict[str, Any]]:
    """Products of two numbers below ten, with their answers: the bundled model was taught sums and differences alone."""
    rng = np.random.default_rng(seed)
    for _ in range(steps):
        pairs = rng.integers(2, 10, (prompts, 2))
        texts, products = [PROMPT.format(*pair) for pair in pairs], [str(pair.prod()) for pair in pairs]
        yield {"prompts": np.array(texts), "answer": np.array(products)}


def reward(prompts: list[str], completions: list[str], answer: list[str], **_: Any) -> list[float]:
    """1 for the product and nothing else, up to 0.5 for a number that is close to it, 0 for other texts."""
    return [_one(text.strip(), int(right)) for text, right in zip(completions, answer, strict=True)]


def _one(text: str, right: int) -> float:
    if not text.isdecimal():
        return 0.0
    return 1.0 if int(text) == right else 0.5 * max(0.0, 1.0 - abs(int(text) - right) / right)


def show_progress(what: str, done: int, total: int) -> None:
    logging.info("%s: %d of %d", what, done, total)


class Meter:
    """Counts the tokens of rollouts, and the seconds that they take."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, float]] = []
        self.rewards: list[float] = []
        self.exact: list[float] = []

    def watch(self, rollout: Any) -> None:
        generate = rollout.generate

        def timed(*args: Any, **kwargs: Any) -> Any:
            began = time.monotonic()
            output = generate(*args, **kwargs)
            self.calls.append((sum(map(len, output.tokens)), time.monotonic() - began))
            return output

        rollout.generate = timed

    def reward(self, prompts: list[str], completions: list[str], answer: list[str], **rest: Any) -> list[float]:
        given = reward(prompts, completions, answer, **rest)
        self.rewards.append(float(np.mean(given)))
        self.exact.append(float(np.mean([each == 1.0 for each in given])))
        return given

    def rate(self) -> float:
        """Tokens a second of the later half of the calls."""
        later = self.calls[len(self.calls) // 2 :]
        return sum(tokens for tokens, _ in later) / sum(seconds for _, seconds in later)


def train(asked: argparse.Namespace) -> dict[str, Any]:
    engine, steps, prompts, group = asked.engine, asked.steps, asked.prompts, asked.group
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]).reshape(1, 1), ("fsdp", "tp"))
    roles = (rl_cluster.Role.ACTOR, rl_cluster.Role.REFERENCE, rl_cluster.Role.ROLLOUT)
    with mesh:
        actor, reference = (
            llama3_params.create_model_from_safe_tensors(str(MODEL), CONFIG, mesh, dtype=jnp.float32) for _ in range(2)
        )
    settings = {"dtype": "float32", "max_model_len": 64, "max_num_seqs": prompts * group, "max_num_batched_tokens": 256}
    ours = functools.partial(JaxserveRollout, config=str(MODEL), settings=settings, progress=show_progress)
    chosen = ours if engine == "jaxserve" else engine
    config = rl_cluster.ClusterConfig(
        role_to_mesh=dict.fromkeys(roles, mesh),
        rollout_engine=chosen,
        offload_to_cpu=False,
        training_config=rl_cluster.RLTrainingConfig(
            actor_optimizer=optax.adamw(asked.learning_rate),
            eval_every_n_steps=steps + 1,
            max_steps=steps,
            data_sharding_axis=("fsdp",),
        ),
        rollout_config=RolloutConfig(
            max_tokens_to_generate=8, max_prompt_length=16, kv_cache_size=32, temperature=1.0, top_p=1.0, return_logprobs=True
        ),
    )
    cluster = rl_cluster.RLCluster(
        actor=actor, reference=reference, tokenizer=TokenizerAdapter(PicoTokenizer()), cluster_config=config
    )
    meter = Meter()
    meter.watch(cluster.rollout)
    algorithm = GRPOConfig(num_generations=group, num_iterations=1, beta=asked.beta)
    learner = GRPOLearner(rl_cluster=cluster, algo_config=algorithm, reward_fns=meter.reward)
    began = time.monotonic()
    with mesh:
        learner.train(list(batches(asked.seed, steps, prompts)))
    return {
        "engine": engine,
        "steps": steps,
        "prompts_a_step": prompts,
        "samples_a_prompt": group,
        "jax": jax.__version__,
        "seconds": time.monotonic() - began,
        "rollout_tokens_per_s": meter.rate(),
        "rollout_seconds": sum(seconds for _, seconds in meter.calls),
        "reward": meter.rewards,
        "exact": meter.exact,
    }


def plot(result: dict[str, Any], path: Path) -> None:
    import matplotlib.pyplot as plt  # noqa: PLC0415 - optional

    figure, axes = plt.subplots()
    rewards, mean = result["reward"], min(10, len(result["reward"]))
    axes.plot(rewards, color="lightgray", label="mean reward of a step")
    axes.plot(range(mean - 1, len(rewards)), np.convolve(rewards, np.ones(mean) / mean, "valid"), label=f"of {mean} steps")
    axes.plot(result["exact"], label="exact answers")
    axes.set_ylim(bottom=0.0)
    axes.set_xlabel("step")
    axes.legend()
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engine", choices=("jaxserve", "vanilla"), default="jaxserve")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--prompts", type=int, default=8, help="prompts a step")
    parser.add_argument("--group", type=int, default=16, help="samples a prompt")
    parser.add_argument("--learning-rate", type=float, default=1e-4)
    parser.add_argument("--beta", type=float, default=0.0, help="how much the KL divergence from the first weights costs")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="JSON file for the figures")
    parser.add_argument("--plot", type=Path, help="PNG file for the rewards")
    asked = parser.parse_args()
    logging.basicConfig(level=logging.INFO, force=True)
    result = train(asked)
    if asked.out is not None:
        asked.out.write_text(json.dumps(result, indent=1) + "\n")
    if asked.plot is not None:
        plot(result, asked.plot)
    shown = {name: value for name, value in result.items() if name not in ("reward", "exact")}
    logging.info(
        "%s; exact answers at first %.2f, at last %.2f", shown, np.mean(result["exact"][:3]), np.mean(result["exact"][-3:])
    )


if __name__ == "__main__":
    main()
