"""A random module for multi-token prediction changes no token: behind prefix hits, preemption, swapping and aborts."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from jaxserve.cache.swap import SwapSpace
from jaxserve.errors import ConfigError
from jaxserve.llm import LLM
from jaxserve.sampling.params import SamplingParams
from jaxserve.speculation.device import DeviceGuesses
from tests.support.engine import run
from tests.support.golden_modules import with_module
from tests.support.plain_deepseek import CONFIG, SPARSE, random_deepseek
from tests.support.tiers import tiered
from tests.support.tiny_checkpoint import write_tiny_checkpoint

GUESSES, ROWS, TOKENS, PAGE, PAGES, FEW = 2, 4, 16, 4, 90, 24
KINDS: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 1.0, "seed": 5},
    {"temperature": 0.8, "seed": 6, "top_k": 8},
    {"temperature": 0.0, "frequency_penalty": 0.5},
]
COUNT = 8
MODULES = {"deepseek-sparse", "qwen3-next-experts"}
PARAMS = [SamplingParams(max_tokens=24, ignore_eos=True, **KINDS[index % len(KINDS)]) for index in range(COUNT)]


class Always(DeviceGuesses):
    """As many guesses as there may be, whatever they are worth."""

    def __init__(self) -> None:
        super().__init__(GUESSES, max_rows=ROWS, max_tokens=TOKENS)

    def guesses(self, names, num_rows):
        return self.max_drafts


# The sparse one is the other with indexers beside.
@pytest.fixture(scope="module", params=tiered(["deepseek", "deepseek-sparse", "qwen3-next-experts"], MODULES))
def directory(request, tmp_path_factory):
    if not request.param.startswith("deepseek"):
        return with_module(request.param, tmp_path_factory.mktemp("hybrid") / request.param)
    path = write_tiny_checkpoint(tmp_path_factory.mktemp("deepseek"))
    config = {
        **(SPARSE if request.param == "deepseek-sparse" else CONFIG),
        "vocab_size": json.loads((path / "config.json").read_text())["vocab_size"],
    }
    (path / "config.json").write_text(json.dumps(config))
    save_file(random_deepseek(np.random.default_rng(1), config), path / "model.safetensors")
    return path


def swaps(directory: Path) -> bool:
    """Models with recurrent layers do not."""
    return directory.name.startswith("deepseek")


def engine(directory, method: str) -> LLM:
    return LLM(
        str(directory),
        speculative_config={"method": method, **({} if method == "none" else {"num_speculative_tokens": GUESSES})},
        max_model_len=64,
        max_num_seqs=ROWS,
        max_num_batched_tokens=TOKENS,
        before_ready="fewest",
        page_size=PAGE,
        num_pages=PAGES,
        swap_space=0.01 if swaps(directory) else 0.0,
        dtype="float32",
        late_compiles="raise",
    )


def prompts() -> list[list[int]]:
    """Longer and shorter than a step; the last ones begin as the first one does."""
    rng = np.random.default_rng(7)
    drawn: list[list[int]] = [rng.integers(4, 250, int(length)).tolist() for length in rng.integers(3, 30, COUNT)]
    return [*drawn[:-2], *(drawn[0][:9] + tokens for tokens in drawn[-2:])]


def generated(llm: LLM) -> list[list[int]]:
    """As the engine schedules, which guesses where it pays."""
    return [
        answer.outputs[0].token_ids for answer in llm.generate([{"prompt_token_ids": prompt} for prompt in prompts()], PARAMS)
    ]


@pytest.fixture(scope="module")
def expected(directory):
    return generated(engine(directory, "none"))


def test_no_token_changes(directory, expected):
    llm = engine(directory, "deepseek_mtp" if swaps(directory) else "qwen3_next_mtp")
    assert generated(llm) == expected
    assert generated(llm) == expected, "behind prefix hits"
    llm._built.core.scheduler.check()
    always = run(llm._built, prompts(), PARAMS, speculation=Always())
    assert always.tokens == expected
    assert always.scheduler.counts().spec_decode_num_draft_tokens > 10 * COUNT
    for swap in (None, SwapSpace(40, 0.0)) if swaps(directory) else (None,):
        pressed = run(llm._built, prompts(), PARAMS, num_pages=FEW, growth_reserve=0.0, swap=swap, speculation=Always())
        assert pressed.preemptions
        assert pressed.tokens == expected
    gone: list[str] = []

    def abort(core):
        if len(gone) < 3:
            running = [name for name, one in core.scheduler.sequences.items() if one.num_output > 2 * len(gone)]
            gone.extend(core.abort(running[:1]))

    cut = run(llm._built, prompts(), PARAMS, speculation=Always(), each_step=abort).tokens
    assert sum(mine == whole for mine, whole in zip(cut, expected, strict=True)) == COUNT - 3


def test_other_families_are_refused(tmp_path):
    llama = write_tiny_checkpoint(tmp_path / "llama")
    with pytest.raises(ConfigError, match="'mtp': LlamaForCausalLM has no module for multi-token prediction here"):
        LLM(str(llama), load_format="dummy", speculative_config={"method": "mtp"})
