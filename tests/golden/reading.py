"""Reads the golden checkpoints and runs jaxserve's decoder on them with a plain dense attention."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from jaxserve.models.attention import Attend
from jaxserve.models.binding import Params, bind
from jaxserve.models.checkpoint import read_hf_config
from jaxserve.models.config import DecoderConfig
from jaxserve.models.dense_attention import dense_attend
from jaxserve.models.registry import decoder_config
from jaxserve.weights.load import load_params
from sharding import make_mesh

DATA = Path(__file__).parent / "data"
NAMES = sorted(path.name for path in DATA.iterdir() if path.is_dir())
LENGTH = 160  # every sequence is padded to this, so that one compilation serves them all
TOLERANCE = 1e-4

Forward = Callable[[jax.Array], jax.Array]


@dataclass(frozen=True)
class Golden:
    """What transformers computed from one checkpoint.

    Attributes:
        directory: the checkpoint.
        prompts: token ids.
        greedy: the 64 greedy tokens after each prompt, not stopped by any end-of-sequence token.
        last: float32[prompts, V], logits after each prompt.
        full_prompt: index of the prompt with logits at every position.
        full: float32[T, V], those logits.
    """

    directory: Path
    prompts: list[list[int]]
    greedy: list[list[int]]
    last: np.ndarray
    full_prompt: int
    full: np.ndarray


def read_golden(name: str) -> Golden:
    """The golden of one case."""
    directory = DATA / name
    texts = json.loads((directory / "greedy.json").read_text())
    with np.load(directory / "logits.npz") as arrays:
        return Golden(directory, texts["prompts"], texts["greedy"], arrays["last"], texts["full"], arrays["full"])


def load(directory: Path) -> tuple[DecoderConfig, Params]:
    """The checkpoint's decoder and its float32 parameters on one device."""
    config = decoder_config(read_hf_config(directory))
    return config, load_params(directory, config, make_mesh(1), "float32")


def forward(config: DecoderConfig, params: Params, attend: Attend = dense_attend) -> Forward:
    """A jitted function from tokens[LENGTH] to logits float32[LENGTH, V]."""

    @jax.jit
    def run(params: Params, tokens: jax.Array) -> jax.Array:
        decoder = bind(config, params)
        logits = decoder.logits(decoder.hidden(tokens, jnp.arange(tokens.shape[0]), attend))
        return logits[:, : config.vocab_size]

    return partial(run, params)


def logits_of(run: Forward, tokens: list[int]) -> np.ndarray:
    """Logits at every position of a sequence: float32[T, V]. Padding comes after, where causal attention ignores it."""
    padded = np.zeros(LENGTH, np.int32)
    padded[: len(tokens)] = tokens
    return np.asarray(run(jnp.asarray(padded)))[: len(tokens)]


def check_greedy(run: Forward, prompt: list[int], expected: list[int]) -> np.ndarray:
    """Assert that greedy decoding from a prompt gives the expected tokens; returns the logits after the prompt.

    One pass over prompt and continuation decides it: if each expected token is the argmax of the logits before it,
    decoding token by token would choose exactly them.
    """
    logits = logits_of(run, prompt + expected[:-1])[len(prompt) - 1 :]
    assert logits.argmax(axis=-1).tolist() == expected
    first: np.ndarray = logits[0]
    return first
