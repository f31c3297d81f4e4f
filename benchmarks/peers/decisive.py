"""Weights that leave no doubt about the next token, so that engines of other precisions and orders of addition agree on it.

With random weights the two best of 32,000 logits are often closer than bfloat16 can tell, and outputs of two right engines part
after some tokens. Here one layer looks a few places back, how far is said by the present token, and the head names a token for
the one found there. What comes next depends on keys, values and positions of that layer in the cache, and leads by more than five
deviations of the logits; the other layers are random and add what little noise random layers add.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.llama150m import CONFIG

Array = npt.NDArray[Any]
LAYER = 6  # the one that looks back
BACK = (1, 9, 20, 31)  # places, by the present token's class: its id modulo their number. Prompts are longer
MARK = 16.0  # of a class in an embedding's first values; the others have deviation 1
_SHARP, _PAIRS = 11.0, 16  # size of queries and keys, and rotated pairs that they have: one place beside, scores are lower by 16
_FIRST = 3  # tokens before it are special and never come
_STEP = 12_343  # from a token to the one named for it, times its number: a permutation
_CLASSES = len(BACK)


def embedding(random: np.random.Generator) -> Array:
    """[V, E] in float32: normal values of the same length for all, and a mark for the token's class."""
    vocabulary, hidden = int(str(CONFIG["vocab_size"])), int(str(CONFIG["hidden_size"]))
    table = random.standard_normal((vocabulary, hidden), np.float32)
    table *= np.sqrt(hidden - _CLASSES) / np.linalg.norm(table[:, _CLASSES:], axis=1, keepdims=True)
    table[:, :_CLASSES] = MARK * np.eye(_CLASSES, dtype=np.float32)[np.arange(vocabulary) % _CLASSES]
    return table


def attention(random: np.random.Generator, queries: int, keys: int) -> dict[str, Array]:
    """Projections of the layer that looks back, [outputs, inputs] in float32.

    A key is the same at every place, but for its rotation. A query is that key, turned back by as many places as the class says:
    their product is largest that far back.
    """
    hidden, size = int(str(CONFIG["hidden_size"])), int(str(CONFIG["head_dim"]))
    norm = np.sqrt((hidden - _CLASSES + MARK**2) / hidden)
    angles = np.outer(float(str(CONFIG["rope_theta"])) ** (-np.arange(size // 2) / (size // 2)), BACK)
    rotated = (np.arange(size // 2) < _PAIRS)[:, None] * _SHARP * norm / MARK  # the fast ones, which tell places apart
    query = np.concatenate([rotated * np.cos(angles), -rotated * np.sin(angles)])
    key = np.concatenate([rotated, 0 * rotated])
    made = {
        name: random.standard_normal((count, hidden), np.float32) for name, count in (("q", queries), ("k", keys), ("v", keys))
    }
    made = {name: array * (hidden**-0.5 if name == "v" else 0.002) for name, array in made.items()}
    made["q"][:, :_CLASSES] = np.tile(query, (queries // size, 1))
    made["k"][:, :_CLASSES] = np.tile(key, (keys // size, 1))
    made["v"][:, :_CLASSES] = 0
    made["o"] = random.standard_normal((hidden, queries), np.float32) * norm * queries**-0.5
    unmarked(made["o"])
    return made


def unmarked(array: Array) -> None:
    """Let a norm's scales [E], or a projection [E, inputs] into the residual stream, leave the marks of classes alone."""
    array[:_CLASSES] = 1 if array.ndim == 1 else 0


def head(table: Array, layer: dict[str, Array], deviation: float) -> Array:
    """[V, E]: what the layer adds for a token found is the line of the token that is named for it."""
    size = int(str(CONFIG["head_dim"]))
    values = layer["v"].reshape(-1, size, table.shape[1])
    shared = layer["o"].shape[1] // size // len(values)  # query heads that have the same values
    found = table @ layer["v"].T
    heads = np.repeat(found.reshape(len(table), -1, size), shared, axis=1).reshape(len(table), -1)
    made = np.zeros_like(table)
    made[following(np.arange(_FIRST, len(table)))] = deviation * (heads @ layer["o"].T)[_FIRST:]
    return made


def following(tokens: Array) -> Array:
    """The tokens that are named for these."""
    return _FIRST + (tokens - _FIRST) * _STEP % (int(str(CONFIG["vocab_size"])) - _FIRST)


def continuation(prompt: list[int], count: int) -> list[int]:
    """What the model says after a prompt that is longer than it looks back."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(int(following(np.array(tokens[-1 - BACK[tokens[-1] % _CLASSES]]))))
    return tokens[len(prompt) :]
