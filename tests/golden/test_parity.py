"""Redoes the golden comparison live: transformers and jaxserve load the same checkpoints side by side."""

from collections.abc import Callable

import numpy as np
import pytest

from tests.golden.reading import NAMES, TOLERANCE, check_greedy, forward, load, logits_of, read_golden

pytestmark = pytest.mark.parity


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.filterwarnings("ignore")  # of torch and transformers
def test_parity(name: str, record_property: Callable[[str, object], None]) -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    torch.set_num_threads(1)  # more only get in each other's way on models this small
    from tests.golden import make

    golden = read_golden(name)
    theirs = make.reference_model(golden.directory)
    ours = forward(*load(golden.directory))
    prompt = golden.prompts[golden.full_prompt]
    expected = make.prompt_logits(theirs, prompt)
    np.testing.assert_allclose(golden.full, expected, atol=TOLERANCE, rtol=0)
    error = float(np.abs(logits_of(ours, prompt) - expected).max())
    record_property("largest_logit_error", error)
    print(f"{name}: largest difference of logits {error:.1e}")
    assert error < TOLERANCE
    for prompt in golden.prompts[::4]:
        tokens, _ = make.generate(theirs, prompt, make.NEW_TOKENS)
        check_greedy(ours, prompt, tokens)
