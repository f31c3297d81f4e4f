"""Models with recurrent states: snapshots, several outputs of a prompt, several devices, drafts, and what is refused."""

import math
import re
from typing import Any

import pytest

from jaxserve.errors import ConfigError
from jaxserve.executor.local import LocalExecutor
from jaxserve.llm import LLM
from jaxserve.sampling.params import SamplingParams
from jaxserve.speculation.costs import DraftCosts
from jaxserve.types import TokensPrompt
from tests.golden.reading import DATA, TOLERANCE, read_golden
from tests.support.engine import build, run
from tests.support.tiers import tiered

NAME = "qwen3-next-experts"
SIZES: dict[str, Any] = {"max_num_seqs": 8, "max_num_batched_tokens": 24, "max_model_len": 160, "page_size": 8}
GREEDY = SamplingParams(temperature=0.0, max_tokens=64, ignore_eos=True)


@pytest.fixture(scope="module")
def golden():
    return read_golden(NAME)


def model(name: str = NAME, **settings: Any) -> LLM:
    return LLM(str(DATA / name), dtype="float32", before_ready="fewest", **{**SIZES, **settings})


@pytest.fixture(scope="module")
def uncached() -> LLM:
    return model(prefix_caching=False)


def answers(llm: LLM, prompts, params=GREEDY):
    given = [TokensPrompt(prompt_token_ids=list(prompt)) for prompt in prompts]
    outputs = llm.generate(given, params)
    return [list(one.token_ids) for output in outputs for one in output.outputs], [one.num_cached_tokens for one in outputs]


def test_snapshots_are_found_by_what_goes_on_and_by_what_branches(golden, uncached):
    """Every second page of a sequence; where a prompt left another's pages; and none of what was evicted."""
    llm = model(state_snapshot_interval=16, state_snapshots=4)
    prompt, tokens = golden.prompts[-1], golden.greedy[-1]
    assert len(prompt) == 90
    ten = SamplingParams(temperature=0.0, max_tokens=10, ignore_eos=True)

    # Turns of a conversation: the prompt's last page, then the latest snapshot of what was answered.
    for known, found in ((0, 0), (10, 96), (20, 96), (38, 104)):
        got, cached = answers(llm, [[*prompt, *tokens[:known]]], ten)
        assert got == [list(tokens[known : known + 10])], known
        assert cached[0] >= min(found, 88 if not known else found), (known, cached)

    # Others that begin alike: the first finds pages but no state, and leaves a snapshot there for the next.
    others = [[*prompt[:50], *golden.prompts[number][:20]] for number in (-2, -3, -4)]
    want = [answers(uncached, [other], ten)[0] for other in others]
    llm = model(state_snapshots=4)
    answers(llm, [prompt], ten)
    lengths: list[int] = []
    for other, expected in zip(others, want, strict=True):
        got, cached = answers(llm, [other], ten)
        assert got == expected
        lengths += cached
    assert lengths == [0, 48, 48]

    # Many others: nothing of the first is left.
    for number in range(2, 8):
        answers(llm, [golden.prompts[-number]], ten)
    assert answers(llm, [others[0]], ten)[1] == [0]


def test_outputs_of_one_prompt_and_no_prefix_cache(golden, uncached):
    for llm in (model(), uncached, model(state_snapshots=0)):
        params = SamplingParams(temperature=0.9, seed=7, n=3, max_tokens=12, ignore_eos=True, logprobs=0)
        together = llm.generate([TokensPrompt(prompt_token_ids=list(golden.prompts[-1]))], params)[0].outputs
        assert len({tuple(one.token_ids) for one in together}) == 3
        for one in together:
            tokens = [*golden.prompts[-1], *one.token_ids]
            scored = llm.generate([TokensPrompt(prompt_token_ids=tokens)], SamplingParams(max_tokens=1, prompt_logprobs=0))[0]
            assert scored.prompt_logprobs is not None
            assert one.logprobs is not None
            places = zip(tokens[90:], scored.prompt_logprobs[90:], strict=True)
            theirs = [place[token].logprob for token, place in places if place is not None]
            ours = [place[token].logprob for token, place in zip(one.token_ids, one.logprobs, strict=True)]
            assert ours == pytest.approx(theirs, abs=5 * TOLERANCE)


def test_tensor_parallel(golden):
    """Two devices, each with its heads' states: the same tokens, and no step gathers a table."""
    built = build(golden.directory, **SIZES, tensor_parallel_size=2)
    assert run(built, golden.prompts, GREEDY, num_pages=41).tokens == [list(tokens) for tokens in golden.greedy]
    assert isinstance(built.core.executor, LocalExecutor)
    states = built.core.executor._forward.states
    assert states is not None
    assert states.memory is not None
    for text in built.core.executor.program_texts():
        gathered = re.findall(r"= \(?\w+\[([\d,]+)\]\S* all-gather", text)
        assert all(math.prod(map(int, shape.split(","))) < states.memory[0, 0].size for shape in gathered), (
            "a step gathers states"
        )


DRAFTED = [(NAME, "ngram"), (NAME, "mistral-window"), ("lfm2-conv", "mistral-window")]


# tests/golden/test_speculation.py has convolutions, test_mtp.py guesses of the device.
@pytest.mark.parametrize(("name", "draft"), tiered(DRAFTED, {(NAME, "ngram")}))
def test_drafts(name, draft, monkeypatch):
    """Those of the host, and of a model on the device whose guesses are verified before anybody knows them: most are wrong."""
    golden = read_golden(name)
    monkeypatch.setattr(DraftCosts, "seconds", lambda costs, rows, tokens: 1.0)
    asked: dict[str, Any] = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 1}
    if draft != "ngram":
        asked = {"method": "draft_model", "model": str(DATA / draft), "num_speculative_tokens": 3}
    llm = model(name, speculative_config=asked, max_num_batched_tokens=32)
    got, _ = answers(llm, [*golden.prompts, *golden.prompts[-3:]])
    assert got == [list(tokens) for tokens in (*golden.greedy, *golden.greedy[-3:])]
    assert llm._built.core.scheduler.counts().spec_decode_num_draft_tokens > 15


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"swap_space": 0.1}, "swap_space moves pages of every layer to the host, and this model has layers with recurrent"),
        ({"state_snapshots": -1}, "state_snapshots must be at least 0"),
        ({"state_snapshot_interval": 0}, "state_snapshot_interval must be at least 1"),
        ({"tensor_parallel_size": 4}, "linear_num_key_heads"),
        ({"kv_cache_memory_gib": 1e-9}, "no memory for a KV cache"),
    ],
)
def test_what_is_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        model(**settings)


def test_a_recurrent_model_is_no_draft():
    asked = {"method": "draft_model", "model": str(DATA / NAME), "num_speculative_tokens": 2}
    with pytest.raises(ConfigError, match="recurrent"):
        model("qwen2-window", speculative_config=asked)
