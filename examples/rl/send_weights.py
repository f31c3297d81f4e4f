"""A trainer in a process of its own: takes the bundled model's weights, changes them, and gives them to a server that runs.

    python -m jaxserve.keys new --tenant trainer --admin >> keys.toml       # shows KEY
    python -m jaxserve.serve pico --keys keys.toml
    python examples/rl/send_weights.py http://127.0.0.1:8000 KEY

It prints what the server answers before the first step and after each.
"""

from __future__ import annotations

import argparse
from typing import Any

import httpx
import jax
from safetensors.flax import load_file

from jaxserve.engine.preparation import BUNDLED_MODEL, model_directory
from jaxserve.rollout.transfer import WeightSender

STEPS = 3
NOISE = 0.02


def train_step(params: dict[str, jax.Array], key: jax.Array) -> dict[str, jax.Array]:
    """What a training step would be: here noise, so that the model gets worse."""
    keys = dict(zip(params, jax.random.split(key, len(params)), strict=True))
    return {name: array + NOISE * jax.random.normal(keys[name], array.shape, array.dtype) for name, array in params.items()}


def ask(url: str, api_key: str) -> Any:
    """A sum, and whose weights the answer is of."""
    body = {"messages": [{"role": "user", "content": "12+30="}], "temperature": 0.0, "max_tokens": 8}
    reply = httpx.post(f"{url}/v1/chat/completions", json=body, headers={"Authorization": f"Bearer {api_key}"}, timeout=60.0)
    (choice,) = reply.raise_for_status().json()["choices"]
    return choice["message"]["content"], choice.get("weight_versions")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("key", help="an API key with admin = true")
    arguments = parser.parse_args()
    params = load_file(model_directory(BUNDLED_MODEL) / "model.safetensors")
    print("before:", *ask(arguments.url, arguments.key))
    with WeightSender(arguments.url, arguments.key) as sender:
        for step in range(1, STEPS + 1):
            params = train_step(params, jax.random.key(step))
            sender.send(params, step, mode="wait", force=True)
            print(f"step {step}:", *ask(arguments.url, arguments.key))


if __name__ == "__main__":
    main()
