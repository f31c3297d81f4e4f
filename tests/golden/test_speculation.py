"""A golden model of each family gives transformers' greedy tokens, whatever is guessed: right, wrong, or both in turns."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from jaxserve.clock import RealClock, VirtualClock
from jaxserve.config.fields import EngineConfig
from jaxserve.engine.build import build_engine
from jaxserve.models.checkpoint import read_hf_config
from jaxserve.sampling.params import SamplingParams
from jaxserve.speculation.drafter import Guess
from jaxserve.speculation.speculation import Speculation
from tests.golden.reading import DATA, NAMES, read_golden
from tests.support.engine import run, silent
from tests.support.tiers import tiered


def architecture_of(name: str) -> str:
    architecture: str = read_hf_config(DATA / name)["architectures"][0]
    return architecture


DRAFTS, ROWS, STEP, TOKENS = 3, 1, 16, 24
SETTINGS = {
    "dtype": "float32",
    "max_num_seqs": ROWS,
    "before_ready": "fewest",
    "max_num_batched_tokens": STEP,
    "num_pages": 64,
    "page_size": 8,
    "speculative_config": {"method": "ngram", "num_speculative_tokens": DRAFTS},
}
# By the architecture that config.json names, those with windows before others.
OF_FAMILIES = {architecture_of(name): name for name in sorted(NAMES, key=lambda name: "window" in name)}.values()
# One of each state that a rejected draft rolls back: pages and windows, shared keys, convolutions, Mamba-2. In tests/integration/
# engine test_mtp.py has latents and index keys, test_recurrent.py delta rules.
CORE = {"gpt-oss-window", "gemma4-shared", "lfm2-conv", "nemotron-h-latent"}
PARAMS = SamplingParams(temperature=0.0, max_tokens=TOKENS, ignore_eos=True)


class Foreknowing:
    """Proposes what follows in one of the texts, but another token at every `wrong`th place."""

    def __init__(self, texts: Sequence[list[int]], wrong: int) -> None:
        self._texts = texts
        self._wrong = wrong

    def begin(self, tenant: str, num_prompt: int) -> Foreknowing:
        return self

    def end(self, tokens: Sequence[int]) -> None:
        pass

    def propose(self, tokens: Sequence[int], most: int) -> Guess:
        known = len(tokens)
        (text,) = [text for text in self._texts if text[:known] == list(tokens)]
        right = enumerate(text[known : known + most], known)
        return Guess(tuple(token ^ 1 if place % self._wrong == 0 else token for place, token in right))


class Free(Speculation):
    """One to which no step takes any time, so that every guess pays."""

    def observe(self, rows: int, tokens: int, seconds: float) -> None:
        pass


@pytest.mark.parametrize("name", tiered(OF_FAMILIES, CORE))
def test_greedy_tokens_are_those_of_transformers(name: str) -> None:
    golden = read_golden(name)
    both = sorted(zip(golden.prompts, golden.greedy, strict=True), key=lambda one: len(one[0]))
    chosen = [both[0], both[-1]]  # the longest prompt takes several steps
    settings = {**SETTINGS, "model": str(golden.directory), "max_model_len": len(both[-1][0]) + TOKENS}
    built = build_engine(EngineConfig.from_settings(settings), strict_length=True, clock=RealClock(), progress=silent)
    prompts, texts = [prompt for prompt, _ in chosen], [[*prompt, *greedy] for prompt, greedy in chosen]
    accepted = []
    for wrong in (1, 3, 10**6):
        guesses = Free(Foreknowing(texts, wrong), DRAFTS, VirtualClock(), max_rows=ROWS, max_tokens=STEP, least_chance=0.0)
        ran = run(built, prompts, PARAMS, speculation=guesses, prefix_caching=False)
        assert ran.tokens == [greedy[:TOKENS] for _, greedy in chosen]
        accepted.append(ran.scheduler.counts().spec_decode_num_accepted_tokens)
    assert accepted[0] == 0 < accepted[1] < accepted[2]
