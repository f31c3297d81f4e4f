"""The decoder computes what transformers computed, for every golden checkpoint."""

import numpy as np
import pytest

from tests.golden.cases import CASES
from tests.golden.reading import NAMES, TOLERANCE, check_greedy, forward, load, logits_of, read_golden


@pytest.mark.parametrize("name", NAMES)
def test_logits_and_greedy_tokens(name: str) -> None:
    golden = read_golden(name)
    run = forward(*load(golden.directory))
    full = logits_of(run, golden.prompts[golden.full_prompt])
    np.testing.assert_allclose(full, golden.full, atol=TOLERANCE, rtol=0)
    for prompt, tokens, last in zip(golden.prompts, golden.greedy, golden.last, strict=True):
        np.testing.assert_allclose(check_greedy(run, prompt, tokens), last, atol=TOLERANCE, rtol=0)


def test_the_goldens_tell_models_apart() -> None:
    """Continuations that are varied and clear of ties, or comparing them would prove little."""
    for name in NAMES:
        golden = read_golden(name)
        best = np.sort(golden.last, axis=-1)
        assert (best[:, -1] - best[:, -2]).min() > 10 * TOLERANCE
        assert golden.full.std() > 1
        assert len({token for tokens in golden.greedy for token in tokens}) > 50
        assert min(map(len, golden.prompts)) == next(case.shortest for case in CASES if case.name == name)
        assert len(golden.prompts) == 17


@pytest.mark.parametrize(
    ("name", "tensor"),
    [
        ("qwen2-yarn", 2),
        ("llama-biases", 2),
        ("qwen3-fp8", 2),
        ("llama-linear", 4),
        ("mistral-window", 4),
        ("olmo2-gqa", 4),
        ("phi3-short", 4),
        ("gemma3-local", 2),
    ],
)
def test_logits_do_not_depend_on_the_mesh(name: str, tensor: int) -> None:
    golden = read_golden(name)
    run = forward(*load(golden.directory, tensor))
    full = logits_of(run, golden.prompts[golden.full_prompt])
    np.testing.assert_allclose(full, golden.full, atol=TOLERANCE, rtol=0)
