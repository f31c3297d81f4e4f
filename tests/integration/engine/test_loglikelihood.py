"""LLM.loglikelihood: each continuation as scoring it alone gives it, and what is computed for all of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from jaxserve import LLM, RequestOptions, SamplingParams
from jaxserve.errors import ContextLengthError, DeadlineError, InvalidRequestError
from jaxserve.offline_likelihood import Seen, group, tokens_of
from jaxserve.outputs import LikelihoodOutput
from tests.support.tiny_checkpoint import write_tiny_checkpoint

SHAPES: dict[str, Any] = {
    "max_num_seqs": 4,
    "before_ready": "fewest",
    "max_num_batched_tokens": 32,
    "page_size": 4,
    "max_model_len": 96,
}
CONTEXT = tuple(range(40, 71))


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> LLM:
    return LLM(str(write_tiny_checkpoint(tmp_path_factory.mktemp("likelihood") / "tiny")), load_format="dummy", **SHAPES)


def alone(llm: LLM, context: tuple[int, ...], continuation: tuple[int, ...]) -> list[tuple[float, bool]]:
    """Of each token of the continuation, as a request of its own has it: its log-probability, and whether none is likelier."""
    llm.reset_prefix_cache()
    params = SamplingParams(max_tokens=0, prompt_logprobs=0)
    (output,) = llm.generate({"prompt_token_ids": [*context, *continuation]}, params, use_tqdm=False)
    assert output.prompt_logprobs is not None
    rows = zip(continuation, output.prompt_logprobs[len(context) :], strict=True)
    return [(row[token].logprob, row[token].rank == 1) for token, row in rows if row is not None]


def check(llm: LLM, outputs: Sequence[LikelihoodOutput], pairs: Sequence[tuple[tuple[int, ...], tuple[int, ...]]]) -> None:
    for number, (output, (context, continuation)) in enumerate(zip(outputs, pairs, strict=True)):
        wanted = alone(llm, context, continuation)
        assert output.request_id == str(number)
        assert output.token_ids == list(continuation)
        assert output.token_logprobs == pytest.approx([logprob for logprob, _ in wanted], abs=1e-4)
        assert output.logprob == pytest.approx(sum(output.token_logprobs))
        assert output.is_greedy == all(greedy for _, greedy in wanted)
        assert output.num_prompt_tokens == len(context) + len(continuation)


def test_each_is_as_it_is_alone(llm: LLM) -> None:
    pairs = [
        (CONTEXT, (5, 6, 7)),
        (CONTEXT[:9], (8,)),
        (CONTEXT, (5, 6, 9)),
        (CONTEXT, (5, 6, 7)),
        ((*CONTEXT, 5), (6, 7)),
        (CONTEXT[:3], (11, 12)),
    ]
    llm.reset_prefix_cache()
    told: list[str] = []
    outputs = llm.loglikelihood(pairs, use_tqdm=False, on_output=lambda output: told.append(output.request_id))
    assert sorted(told) == [str(number) for number in range(len(pairs))]
    check(llm, outputs, pairs)


def test_every_token_may_be_the_last_one(llm: LLM) -> None:
    """The likeliest are read off one request; the others are asked for one by one, all but the last page being there."""
    vocabulary = llm.report.model.vocab_size
    pairs = [(CONTEXT, (token,)) for token in range(vocabulary)]
    llm.reset_prefix_cache()
    outputs = llm.loglikelihood(pairs, use_tqdm=False)
    likeliest = sorted(range(vocabulary), key=lambda token: -outputs[token].logprob)
    check(llm, [outputs[0]], pairs[:1])
    for token in (*likeliest[:3], likeliest[-1]):
        assert outputs[token].token_logprobs == pytest.approx([alone(llm, CONTEXT, (token,))[0][0]], abs=1e-4)
    assert [token for token in range(vocabulary) if outputs[token].is_greedy] == likeliest[:1]
    computed = [output.num_prompt_tokens - output.num_cached_tokens for output in outputs]
    assert sorted(computed)[:20] == [0] * 20
    assert max(sorted(computed)[:-1]) <= SHAPES["page_size"]


def test_what_is_the_same_is_computed_once(llm: LLM) -> None:
    llm.reset_prefix_cache()
    outputs = llm.loglikelihood([(CONTEXT, (5, 6))] * 3 + [(CONTEXT, (7, 8, 9))], use_tqdm=False)
    assert [output.num_cached_tokens for output in outputs] == [0, 33, 33, 28]
    assert llm.loglikelihood([], use_tqdm=False) == []


def test_texts_become_tokens_together(llm: LLM) -> None:
    (text, tokens) = llm.loglikelihood([("say it ", "again")], use_tqdm=False)[0], tuple(llm.tokenizer.encode("say it again"))
    start = len(llm.tokenizer.encode("say it"))
    assert text.token_ids == list(tokens[start:])
    (same,) = llm.loglikelihood([(tokens[:start], tokens[start:])], use_tqdm=False)
    assert same.token_logprobs == pytest.approx(text.token_logprobs, abs=1e-4)
    (whole,) = llm.loglikelihood([("", "say it again")], use_tqdm=False)
    assert whole.token_ids == list(tokens[1:])


def test_what_cannot_be_is_named_before_anything_runs(llm: LLM) -> None:
    for pair, words in (
        (("a", (5,)), "both be texts, or both token ids"),
        (("a", ""), "no token of its own"),
        ((CONTEXT, ()), "no token of its own"),
        (((), (5,)), "no token of its own"),
        ((CONTEXT, (10**6,)), "token ids are integers"),
    ):
        with pytest.raises(InvalidRequestError, match=words):
            llm.loglikelihood([(CONTEXT, (5,)), pair], use_tqdm=False)  # type: ignore[list-item]
    with pytest.raises(ContextLengthError, match="max_model_len"):
        llm.loglikelihood([(CONTEXT * 4, (5,))], use_tqdm=False)


def test_one_that_fails_keeps_its_place(llm: LLM) -> None:
    outputs = llm.loglikelihood([(CONTEXT, (5,)), (CONTEXT, (6,))], use_tqdm=False, options=RequestOptions(timeout=1e-9))
    assert [type(output.error) for output in outputs] == [DeadlineError] * 2
    assert [output.token_logprobs for output in outputs] == [[], []]


def test_pairs_that_begin_alike_are_neighbours() -> None:
    pairs = [((1, 2, 3), 2), ((4, 4, 4), 1), ((1, 2, 4), 1), ((1, 2, 3), 2), ((1, 2), 1)]
    assert group(pairs) == [Seen((1,), 1, {2: [4]}), Seen((1, 2), 1, {3: [0, 3], 4: [2]}), Seen((4, 4), 1, {4: [1]})]


def test_texts_need_a_tokenizer() -> None:
    assert tokens_of(((1, 2), (3,)), None) == ((1, 2, 3), 2)
    with pytest.raises(InvalidRequestError, match="there is none"):
        tokens_of(("a", "b"), None)
