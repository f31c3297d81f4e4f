"""JaxserveLM over a model of random weights: what it computes, and how much of it."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from lm_eval.api.instance import Instance
from lm_eval.api.model import CacheHook

from jaxserve.errors import CheckpointError, ConfigError, ContextLengthError, DeadlineError, InvalidRequestError
from jaxserve.evaluation.model import JaxserveLM, TokensUsed
from jaxserve.llm import LLM
from tests.support.tiny_checkpoint import SPECIAL, TEMPLATE, write_tiny_checkpoint

CONTEXT = 96
BOS, EOS = 0, 1
LONG = "what several continuations have in common is computed once. "  # 60 tokens


def load(directory: Path) -> LLM:
    shapes: dict[str, Any] = {
        "max_num_seqs": 4,
        "before_ready": "fewest",
        "max_num_batched_tokens": 32,
        "page_size": 4,
        "max_model_len": CONTEXT,
    }
    return LLM(str(directory), load_format="dummy", **shapes)


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> LLM:
    return load(write_tiny_checkpoint(tmp_path_factory.mktemp("evaluation") / "tiny"))


@pytest.fixture
def model(llm: LLM) -> JaxserveLM:
    llm.reset_prefix_cache()
    return JaxserveLM(llm)


def ask(*arguments: Any) -> list[Instance]:
    return [Instance("any", {}, one, number) for number, one in enumerate(arguments)]


def test_continuations_of_one_context_compute_it_once(model: JaxserveLM) -> None:
    answers = model.loglikelihood(ask((LONG, "a"), (LONG, "bc"), (LONG, "def"), (LONG, "bc")))
    assert len({score for score, _ in answers}) == 3, "the equal ones have the same, and were computed once"
    assert answers[1] == answers[3]
    assert model.usage.prompt_tokens == 61 + 2 * 62 + 63
    assert model.usage.cached_tokens == 62 + 2 * 56, "whole pages before the last token of the context"
    assert model.usage.output_tokens == 0


def test_progress_is_told(llm: LLM) -> None:
    asked = ask((LONG, "a"), (LONG, "bc"), ("x", "def"), (LONG, "bc"), ("y", "g"))
    told: list[tuple[str, int, int]] = []
    JaxserveLM(llm, on_progress=lambda *what: told.append(what)).loglikelihood(asked)
    assert told == [("scoring", done, 5) for done in (1, 2, 3, 4, 5)]


def test_answers_do_not_depend_on_what_else_is_asked(model: JaxserveLM, llm: LLM) -> None:
    asked = [(LONG, "a"), ("other", " text"), ("", "alone"), (LONG, "longer than a")]
    together = model.loglikelihood(ask(*asked))
    for one, (score, greedy) in zip(asked, together, strict=True):
        llm.reset_prefix_cache()
        same: Any = [(pytest.approx(score, abs=1e-4), greedy)]
        assert model.loglikelihood(ask(one)) == same


def test_a_text_is_the_sum_of_its_windows(llm: LLM) -> None:
    text = LONG * 3
    model = JaxserveLM(llm, max_length=50)
    (whole,) = model.loglikelihood_rolling(ask((text,)))
    parts = [model.loglikelihood(ask(("", text[:50])))[0][0]]
    for start, end in pairwise((50, 100, 150, 180)):
        parts.append(model.loglikelihood(ask((text[end - 51 : start], text[start:end])))[0][0])
    assert whole == pytest.approx(sum(parts), abs=1e-3)


def test_an_answer_ends_before_the_stop_string(model: JaxserveLM) -> None:
    (whole,) = model.generate_until(ask(("say", {"max_gen_toks": 12})))
    assert model.usage.output_tokens == 12
    stop = whole[4]
    (cut,) = model.generate_until(ask(("say", {"max_gen_toks": 12, "until": [stop]})))
    assert cut == whole[: whole.index(stop)]


def test_progress_is_told_request_by_request(llm: LLM) -> None:
    told: list[tuple[str, int, int]] = []
    model = JaxserveLM(llm, on_progress=lambda *what: told.append(what))
    model.generate_until(ask(("a", {"max_gen_toks": 1}), ("b", {"max_gen_toks": 1})))
    model.loglikelihood(ask(("a", "b")))
    assert told == [("generating", 1, 2), ("generating", 2, 2), ("scoring", 1, 1)]


def test_answers_go_to_the_harness_cache_by_their_requests(model: JaxserveLM) -> None:
    class Kept(CacheHook):  # type: ignore[misc]  # lm_eval has no types
        def __init__(self) -> None:
            super().__init__(None)
            self.answers: dict[tuple[str, str], Any] = {}

        def add_partial(self, attr: str, req: Any, res: Any) -> None:
            self.answers[attr, str(req)] = res

    kept = Kept()
    model.set_cache_hook(kept)
    scored = model.loglikelihood(ask(("a", "b"), ("a", "c")))
    rolled = model.loglikelihood_rolling(ask(("some text",)))
    said = model.generate_until(ask(("a", {"max_gen_toks": 2})))
    assert kept.answers == {
        ("loglikelihood", "('a', 'b')"): scored[0],
        ("loglikelihood", "('a', 'c')"): scored[1],
        ("loglikelihood_rolling", "('some text',)"): rolled[0],
        ("generate_until", "('a', {'max_gen_toks': 2})"): said[0],
    }


def test_special_tokens(llm: LLM) -> None:
    model = JaxserveLM(llm)
    assert (model.eot_token_id, model.prefix_token_id) == (EOS, BOS)
    assert JaxserveLM(llm, prefix_token_id=7).prefix_token_id == 7
    assert model.tok_encode("ab") == [model.tok_encode("a")[0], model.tok_encode("b")[0]]


class AddsBos:
    """The tokenizer of the model, made to begin texts with BOS as many do."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text)
        return [BOS] * add_special_tokens + ids


@pytest.mark.parametrize(
    ("setting", "text", "argument", "begins"),
    [
        (None, "ab", None, [BOS]),
        (None, "ab", False, []),
        (None, "<s>ab", None, [BOS]),
        (None, "<s>ab", True, [BOS, BOS]),
        (False, "ab", None, []),
        (False, "ab", True, [BOS]),
        (True, "<s>ab", None, [BOS]),
    ],
)
def test_bos_is_added_once_unless_told_otherwise(
    llm: LLM, setting: bool | None, text: str, argument: bool | None, begins: list[int]
) -> None:
    model = JaxserveLM(llm, add_bos_token=setting)
    model._tokens = AddsBos(llm.tokenizer)
    assert model.tok_encode(text, add_special_tokens=argument) == [*begins, *llm.tokenizer.encode("ab")]


def test_chat(model: JaxserveLM) -> None:
    user: dict[str, str] = {"role": "user", "content": "hi"}
    assert model.chat_template(True) == TEMPLATE
    assert model.chat_template(False) is None
    assert model.apply_chat_template([user]) == f"{SPECIAL[0]}<|user|>hi<|assistant|>"
    begun = [user, {"role": "assistant", "content": "well"}]
    assert model.apply_chat_template(begun, add_generation_prompt=False) == "<s><|user|>hi<|assistant|>well"
    assert model.tokenizer_name.endswith("__tiny")
    assert "/" not in model.tokenizer_name


def test_lengths(llm: LLM, model: JaxserveLM) -> None:
    assert model.max_length == CONTEXT
    assert JaxserveLM(llm, max_length=10).max_length == 10
    for wrong in (0, CONTEXT + 1):
        with pytest.raises(ConfigError, match=f"max_length must be between 1 and {CONTEXT}, got {wrong}"):
            JaxserveLM(llm, max_length=wrong)
    with pytest.raises(ContextLengthError, match="a continuation has 97 tokens, but max_length is 96"):
        model.loglikelihood(ask(("a", "b" * 97)))
    with pytest.raises(InvalidRequestError, match="a continuation of 1 tokens of context has no token of its own"):
        model.loglikelihood(ask(("a", "")))
    with pytest.raises(ContextLengthError, match="max_gen_toks is 96, but max_length is 96"):
        model.generate_until(ask(("a", {"max_gen_toks": 96})))


def test_a_request_that_fails_ends_the_run(model: JaxserveLM, monkeypatch: pytest.MonkeyPatch, llm: LLM) -> None:
    """A score that is missing must not look like one."""
    monkeypatch.setattr(llm._built.core.scheduler, "add", _too_late)
    with pytest.raises(DeadlineError, match="too late"):
        model.loglikelihood(ask(("a", "b")))
    assert model.usage == TokensUsed()


def _too_late(requests: Any, constraint: Any) -> None:
    raise DeadlineError("too late")


def test_no_chat_template_and_no_end_of_sequence(tmp_path: Path) -> None:
    directory = write_tiny_checkpoint(tmp_path / "bare")
    (directory / "tokenizer_config.json").write_text("{}")
    bare = JaxserveLM(load(directory))
    assert bare.chat_template(True) is None
    with pytest.raises(CheckpointError, match="the model has no chat template"):
        bare.apply_chat_template([{"role": "user", "content": "hi"}])
    with pytest.raises(CheckpointError, match="the tokenizer names no end-of-sequence token"):
        bare.loglikelihood(ask(("", "a")))
