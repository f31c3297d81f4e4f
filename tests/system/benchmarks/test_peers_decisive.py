"""The benchmark model says what it must: where its layer looks, and what its head names."""

import numpy as np

from benchmarks.batch_requests import VOCABULARY, word
from benchmarks.llama150m import CONFIG
from benchmarks.peers.agreement import wrong_tokens
from benchmarks.peers.clients import Stream
from benchmarks.peers.decisive import BACK, MARK, attention, continuation, embedding, following, head, unmarked
from benchmarks.peers.workloads import Request

SIZE, KEYS = int(str(CONFIG["head_dim"])), 4


def rotated(vector: np.ndarray, places: np.ndarray) -> np.ndarray:
    """As Hugging Face's Llama rotates: [places, SIZE]."""
    half = SIZE // 2
    angles = np.outer(places, float(str(CONFIG["rope_theta"])) ** (-np.arange(half) / half))
    first, second = vector[:half], vector[half:]
    return np.concatenate([first * np.cos(angles) - second * np.sin(angles), second * np.cos(angles) + first * np.sin(angles)], 1)


def test_what_a_token_finds_and_what_is_named_for_it() -> None:
    random = np.random.default_rng(0)
    table = embedding(random)
    layer = attention(random, 4 * KEYS * SIZE, KEYS * SIZE)
    inputs = table / np.sqrt(np.mean(table**2, axis=1, keepdims=True))
    for kind, back in enumerate(BACK):
        token = 400 + kind
        query, key = layer["q"][:SIZE] @ inputs[token], layer["k"][:SIZE] @ inputs[7]
        scores = rotated(query, np.array([900]))[0] @ rotated(key, np.arange(901)).T / np.sqrt(SIZE)
        assert scores.argmax() == 900 - back
        assert np.sort(scores)[-1] - np.sort(scores)[-2] > 10
    tokens = np.array([3, 77, 4096, VOCABULARY - 1])
    values = (inputs[tokens] @ layer["v"].T).reshape(len(tokens), KEYS, SIZE)
    added = np.repeat(values, 4, axis=1).reshape(len(tokens), -1) @ layer["o"].T
    logits = (inputs[::-1][: len(tokens)] + added) @ head(table, layer, 0.02).T
    assert logits.argmax(axis=1).tolist() == following(tokens).tolist()
    assert np.all(np.abs(added[:, : len(BACK)]) == 0), "marks stay as they are"
    assert np.allclose(np.linalg.norm(table, axis=1), np.linalg.norm(table[0])), "nobody's key is larger than another's"


def test_tokens_are_named_once_and_special_ones_never() -> None:
    ordinary = np.arange(3, VOCABULARY)
    assert sorted(following(ordinary)) == ordinary.tolist()


def test_marks_are_left_alone() -> None:
    scales, projection = np.full(1024, 0.9), np.full((1024, 8), 0.1)
    unmarked(scales)
    unmarked(projection)
    assert scales[: len(BACK)].tolist() == [1.0] * len(BACK)
    assert not projection[: len(BACK)].any()
    assert (scales[len(BACK) :] == 0.9).all()
    assert (projection[len(BACK) :] == 0.1).all()
    assert MARK > 10


def test_wrong_tokens_are_counted() -> None:
    prompt = list(range(100, 140))
    expected = continuation(prompt, 3)
    assert expected[0] == following(np.array(prompt[-1 - BACK[prompt[-1] % 4]]))
    assert expected[1] == following(np.array([*prompt, expected[0]][-1 - BACK[expected[0] % 4]]))
    right = Stream(Request(prompt, 3), text="".join(map(word, expected)))
    assert wrong_tokens(right) == 0
    assert wrong_tokens(Stream(Request(prompt, 3), text=word(expected[0]) + word(5))) == 2
