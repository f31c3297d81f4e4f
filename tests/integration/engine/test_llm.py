"""The offline API over a real model: every way to ask, and answers that agree with each other."""

import io
import json
import shutil
import signal
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tqdm import tqdm

from jaxserve.errors import (
    ConfigError,
    ContextLengthError,
    DeadlineError,
    EngineDeadError,
    InternalError,
    InvalidRequestError,
    QueueFullError,
)
from jaxserve.llm import LLM
from jaxserve.outputs import RequestOutput
from jaxserve.sampling.params import SamplingParams
from jaxserve.types import RequestOptions, ServiceClass
from tests.golden import reading
from tests.golden.reading import read_golden
from tests.support.broken_tokenizer import BrokenTokenizer
from tests.support.kv_subscriber import Subscriber
from tests.support.tiny_checkpoint import SPECIAL, write_tiny_checkpoint

CONTEXT, VOCAB, EOS = 96, 257, 2
TOLERANCE = 1e-4
PROMPT = [17, 40, 99, 5, 200, 31, 77, 8, 120, 64, 33]


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """A golden checkpoint's weights with a tokenizer over (nearly all) bytes and a chat template: random words, but real ones."""
    directory = tmp_path_factory.mktemp("llm") / "model"
    write_tiny_checkpoint(directory)
    tokenizer = json.loads((directory / "tokenizer.json").read_text())
    letters = tokenizer["model"]["vocab"]
    tokenizer["model"]["vocab"] = {letter: token for letter, token in letters.items() if token < VOCAB}
    (directory / "tokenizer.json").write_text(json.dumps(tokenizer))
    golden = read_golden("llama-tied").directory
    shutil.copy(golden / "model.safetensors", directory)
    config = json.loads((golden / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(config | {"eos_token_id": EOS, "bos_token_id": 0}))
    return directory


def load(directory, **settings):
    shapes: dict[str, Any] = {
        "max_model_len": CONTEXT,
        "max_num_seqs": 4,
        "before_ready": "fewest",
        "max_num_batched_tokens": 16,
        "page_size": 4,
    }
    return LLM(str(directory), dtype="float32", **shapes, **settings)


@pytest.fixture(scope="module")
def llm(directory):
    return load(directory, max_waiting=8)


@pytest.fixture(autouse=True)
def nothing_left(request):
    """Whatever a test did: no sequence and no page is left."""
    yield
    if "llm" in request.fixturenames:
        scheduler = request.getfixturevalue("llm")._built.core.scheduler
        scheduler.check()
        assert not scheduler.has_work
        assert scheduler.cache.num_free == scheduler.cache.num_usable


def ids(tokens):
    return {"prompt_token_ids": list(tokens)}


def greedy(**params):
    return SamplingParams(**{"temperature": 0.0, "max_tokens": 12, "ignore_eos": True} | params)


def tokens_of(llm, params, prompt=PROMPT):
    return llm.generate(ids(prompt), params)[0].outputs[0].token_ids


# Prompts


def test_a_prompt_may_be_text_or_tokens_alone_or_listed(llm):
    text = "hello"
    tokens = llm.tokenizer.encode(text)
    asked = [text, {"prompt": text}, ids(tokens)]
    outputs = [*llm.generate(asked, greedy()), *(llm.generate(prompt, greedy())[0] for prompt in asked)]
    assert [output.prompt for output in outputs] == [text, text, None] * 2
    assert all(output.prompt_token_ids == tokens for output in outputs)
    answers = [output.outputs[0] for output in outputs]
    assert len({answer.text for answer in answers}) == 1
    assert all(answer.token_ids == answers[0].token_ids for answer in answers)
    assert answers[0].text == llm.tokenizer.decode(answers[0].token_ids)


def test_outputs_come_in_the_prompts_order(llm):
    prompts = [[20 + number] * (1 + number * 7 % 40) for number in range(20)]  # more than the queue holds
    wanted = [SamplingParams(temperature=0.0, max_tokens=1 + number % 9, ignore_eos=True) for number in range(20)]
    outputs = llm.generate([ids(prompt) for prompt in prompts], wanted)
    assert [output.prompt_token_ids for output in outputs] == prompts
    assert [output.request_id for output in outputs] == [str(number) for number in range(20)]
    assert [len(output.outputs[0].token_ids) for output in outputs] == [1 + number % 9 for number in range(20)]
    assert all(output.finished for output in outputs)
    assert outputs[13].outputs[0].token_ids == tokens_of(llm, wanted[13], prompts[13])


def test_outputs_are_told_as_they_end(llm):
    """Each once, as it is returned; also one that fails."""
    told: list[RequestOutput] = []
    params = [greedy(max_tokens=20), greedy(max_tokens=2), greedy(n=2, max_tokens=5)]
    outputs = llm.generate([ids(PROMPT)] * 3, params, on_output=told.append)
    assert [output.request_id for output in told] == ["1", "2", "0"]
    assert sorted(told, key=lambda output: output.request_id) == outputs
    told.clear()
    too_late = RequestOptions(queue_timeout=1e-9)
    (output,) = llm.generate([ids(PROMPT)], greedy(), options=too_late, on_output=told.append)
    assert told == [output]
    assert output.error is not None


def test_a_bar_counts_what_is_returned(llm, capfd):
    bars: list[tqdm[Any]] = []

    def bar(**arguments):
        bars.append(tqdm(file=io.StringIO(), **arguments))
        return bars[-1]

    prompts = [ids(PROMPT)] * 3
    outputs = llm.generate(prompts, greedy(n=2, max_tokens=4), use_tqdm=bar)
    assert (bars[0].n, bars[0].total, bars[0].disable) == (3, 3, True)
    llm.chat([{"role": "user", "content": "hi"}], greedy(max_tokens=2), use_tqdm=bar)
    assert (bars[1].n, bars[1].total) == (1, 1)
    too_late = RequestOptions(queue_timeout=1e-9)
    llm.generate(prompts, greedy(), options=too_late, use_tqdm=bar)
    assert bars[2].n == 3
    quiet = llm.generate(prompts, greedy(n=2, max_tokens=4))
    drawn = [[[one.token_ids for one in output.outputs] for output in given] for given in (outputs, quiet)]
    assert drawn[0] == drawn[1]
    assert capfd.readouterr() == ("", "")
    with pytest.raises(InvalidRequestError, match="use_tqdm must be"):
        llm.generate(prompts, greedy(), use_tqdm="yes")


def test_what_on_output_raises_ends_the_call(llm):
    def stop(output):
        raise KeyError(output.request_id)

    with pytest.raises(KeyError, match="1"):
        llm.generate([ids(PROMPT)] * 2, [greedy(max_tokens=20), greedy(max_tokens=2)], on_output=stop)


def test_no_prompts(llm):
    assert llm.generate([]) == []


def test_one_sampling_params_a_prompt(llm):
    outputs = llm.generate([ids(PROMPT)] * 3, [greedy(max_tokens=count) for count in (1, 5, 3)])
    assert [len(output.outputs[0].token_ids) for output in outputs] == [1, 5, 3]
    with pytest.raises(InvalidRequestError, match="2 sampling_params for 3 prompts"):
        llm.generate([ids(PROMPT)] * 3, [greedy()] * 2)


def test_the_second_time_a_prompt_is_cached(llm):
    prompt = list(range(100, 130))
    first, second = (llm.generate(ids(prompt), greedy())[0] for _ in range(2))
    assert (first.num_cached_tokens, second.num_cached_tokens) == (0, 28)
    assert first.outputs[0].token_ids == second.outputs[0].token_ids


# Several sequences, seeds


def test_sequences_of_a_seeded_request_differ_and_come_again(llm):
    params = SamplingParams(n=3, seed=11, temperature=1.0, max_tokens=16, ignore_eos=True)
    first = llm.generate(ids(PROMPT), params)[0].outputs
    llm.generate(ids(PROMPT), SamplingParams(temperature=1.0))
    second = llm.generate([ids([9, 9]), ids(PROMPT)], [SamplingParams(temperature=2.0, ignore_eos=True), params])[1].outputs
    assert [output.index for output in first] == [0, 1, 2]
    assert len({tuple(output.token_ids) for output in first}) == 3
    assert first == second
    alone = SamplingParams(seed=11, temperature=1.0, max_tokens=16, ignore_eos=True)
    assert tokens_of(llm, alone) == first[0].token_ids
    assert tokens_of(llm, SamplingParams(seed=12, temperature=1.0, max_tokens=16, ignore_eos=True)) != first[0].token_ids


def test_requests_without_a_seed_differ(llm):
    params = SamplingParams(temperature=1.0, max_tokens=16, ignore_eos=True)
    first, second = llm.generate([ids(PROMPT)] * 2, params)
    assert first.outputs[0].token_ids != second.outputs[0].token_ids


# Ends


def test_the_checkpoints_defaults_are_for_calls_without_parameters(directory):
    generation = {"temperature": 0.0, "repetition_penalty": 1.5, "max_new_tokens": 3, "eos_token_id": EOS}
    (directory / "generation_config.json").write_text(json.dumps(generation))
    try:
        chosen = load(directory)
    finally:
        (directory / "generation_config.json").unlink()
    wanted = SamplingParams(temperature=0.0, repetition_penalty=1.5, max_tokens=3)
    assert chosen.get_default_sampling_params() == wanted
    assert tokens_of(chosen, None) == tokens_of(chosen, wanted)
    assert len(tokens_of(chosen, SamplingParams(ignore_eos=True, max_tokens=None))) == 3


def test_max_tokens(llm):
    (output,) = llm.generate(ids(PROMPT), greedy(max_tokens=7))[0].outputs
    assert (len(output.token_ids), output.finish_reason, output.stop_reason) == (7, "length", None)


@pytest.mark.parametrize("max_tokens", [None, 500, CONTEXT - 20])
def test_the_context_ends_the_output(llm, max_tokens):
    (output,) = llm.generate(ids([7] * 20), greedy(max_tokens=max_tokens))[0].outputs
    assert (len(output.token_ids), output.finish_reason) == (CONTEXT - 20, "length")


def test_a_prompt_that_leaves_room_for_one_token(llm):
    (output,) = llm.generate(ids([7] * (CONTEXT - 1)), greedy())[0].outputs
    assert (len(output.token_ids), output.finish_reason) == (1, "length")


def answer(llm, count=24):
    """A greedy answer, and a token id that first comes up well within it."""
    tokens = tokens_of(llm, greedy(max_tokens=count))
    place = next(place for place in range(4, count) if tokens[place] not in tokens[:place])
    return tokens, place


def test_stop_token_ids(llm):
    tokens, place = answer(llm)
    (output,) = llm.generate(ids(PROMPT), greedy(max_tokens=24, stop_token_ids=[tokens[place]]))[0].outputs
    assert output.token_ids == tokens[: place + 1]
    assert (output.finish_reason, output.stop_reason) == ("stop", tokens[place])
    assert output.text == llm.tokenizer.decode(tokens[:place])


def test_min_tokens_suppresses_a_stop_token(llm):
    tokens, place = answer(llm)
    stop = tokens[place]
    params = greedy(max_tokens=24, stop_token_ids=[stop], min_tokens=place + 3, logprobs=2)
    (output,) = llm.generate(ids(PROMPT), params)[0].outputs
    assert output.token_ids[:place] == tokens[:place]
    assert stop not in output.token_ids[: place + 3]
    assert len(output.token_ids) > place + 3
    likeliest = min(output.logprobs[place].items(), key=lambda item: item[1].rank)
    assert likeliest[0] == stop, "the distribution reported is the model's own"
    assert output.logprobs[place][output.token_ids[place]].rank == 2, "the next likeliest was taken"


def test_end_of_sequence(llm):
    bias = {EOS: 100.0}
    (ended,) = llm.generate(ids(PROMPT), greedy(ignore_eos=False, logit_bias=bias))[0].outputs
    assert (ended.token_ids, ended.finish_reason, ended.stop_reason) == ([EOS], "stop", None)
    (late,) = llm.generate(ids(PROMPT), greedy(ignore_eos=False, logit_bias=bias, min_tokens=3))[0].outputs
    assert EOS not in late.token_ids[:3]
    assert late.token_ids[3:] == [EOS]
    (ignored,) = llm.generate(ids(PROMPT), greedy(max_tokens=5, logit_bias=bias))[0].outputs
    assert (ignored.token_ids, ignored.finish_reason) == ([EOS] * 5, "length")


def printable(llm):
    """Tokens of visible ASCII characters: text of several tokens that stop strings can be cut from."""
    return [token for letter in map(chr, range(97, 123)) for token in llm.tokenizer.encode(letter, add_special_tokens=False)]


@pytest.mark.parametrize("include", [False, True])
def test_stop_strings(llm, include):
    params = {"max_tokens": 40, "allowed_token_ids": printable(llm), "temperature": 1.0, "seed": 5}
    full = llm.generate(ids(PROMPT), greedy(**params))[0].outputs[0]
    assert len(full.text) == 40
    stop = full.text[20:23]
    end = full.text.index(stop)
    wanted = SamplingParams(**params | {"stop": ["##", stop]}, ignore_eos=True, include_stop_str_in_output=include)
    (output,) = llm.generate(ids(PROMPT), wanted)[0].outputs
    assert output.text == full.text[: end + 3 if include else end]
    assert (output.finish_reason, output.stop_reason) == ("stop", stop)
    assert output.token_ids == full.token_ids[: end + 3]


# What may be chosen


def test_allowed_token_ids(llm):
    allowed: Any = [5, 60, 200]  # a list is taken too
    greedily = tokens_of(llm, greedy(allowed_token_ids=allowed, max_tokens=20))
    drawn = tokens_of(llm, SamplingParams(allowed_token_ids=allowed, max_tokens=40, seed=1, temperature=5.0, ignore_eos=True))
    assert set(greedily) <= set(allowed)
    assert set(drawn) == set(allowed)


def test_logit_bias(llm):
    assert tokens_of(llm, greedy(logit_bias={123: 100.0})) == [123] * 12
    free = tokens_of(llm, greedy())
    assert free[0] not in tokens_of(llm, greedy(logit_bias={free[0]: -100.0}))
    assert tokens_of(llm, greedy(logit_bias={free[0]: 0.0})) == free, "a slot used by others before keeps none of their bias"


@pytest.mark.parametrize(
    "penalties",
    [
        {"presence_penalty": 2.0},
        {"frequency_penalty": 1.5},
        {"presence_penalty": -1.0, "frequency_penalty": -0.5},
        {"repetition_penalty": 3.0},
        {"repetition_penalty": 0.6},
        {"presence_penalty": 0.5, "frequency_penalty": 0.5, "repetition_penalty": 1.5},
    ],
)
def test_penalties_against_a_loop(llm, penalties):
    """Each token of a penalized answer is the one a loop over the model's logits would choose."""
    chosen = list(range(3, 23))  # few tokens, so that they repeat
    params = {"max_tokens": 30, "allowed_token_ids": chosen}
    prompt = [*chosen[:5], 100, 101]
    free = tokens_of(llm, greedy(**params), prompt)
    tokens = tokens_of(llm, greedy(**params, **penalties), prompt)
    assert tokens != free
    presence, frequency = penalties.get("presence_penalty", 0.0), penalties.get("frequency_penalty", 0.0)
    repetition = penalties.get("repetition_penalty", 1.0)
    logits = logits_after(prompt, tokens)
    for place, token in enumerate(tokens):
        row = logits[place].astype(np.float64)
        seen = tokens[:place]
        for other in {*prompt, *seen}:
            row[other] = row[other] / repetition if row[other] > 0 else row[other] * repetition
        for other in set(seen):
            row[other] -= presence + frequency * seen.count(other)
        best = max(chosen, key=lambda other: row[other])
        assert row[token] > row[best] - TOLERANCE, place


def logits_after(prompt, tokens):
    """float32[len(tokens), V], the model's logits before each of the tokens, from a dense forward pass."""
    run = reading.forward(*reading.load(read_golden("llama-tied").directory))
    return reading.logits_of(run, prompt + tokens[:-1])[len(prompt) - 1 :]


# Log-probabilities


@pytest.mark.parametrize("count", [0, 1, 5, 20])
def test_shapes_of_logprobs(llm, count):
    (request,) = llm.generate(ids(PROMPT), greedy(temperature=2.0, seed=3, logprobs=count, prompt_logprobs=count))
    (output,) = request.outputs
    assert len(output.logprobs) == len(output.token_ids) == 12
    assert len(request.prompt_logprobs) == len(PROMPT)
    assert request.prompt_logprobs[0] is None
    rows = [*zip(PROMPT[1:], request.prompt_logprobs[1:], strict=True), *zip(output.token_ids, output.logprobs, strict=True)]
    for token, row in rows:
        ranks = sorted(entry.rank for entry in row.values())
        assert ranks[:count] == list(range(1, count + 1))
        assert len(row) == count + (row[token].rank > count), "the likeliest, and the token itself"
        values = [entry.logprob for entry in sorted(row.values(), key=lambda entry: entry.rank)]
        assert values == sorted(values, reverse=True)
        assert np.exp(values).sum() <= 1 + TOLERANCE
    total = sum(row[token].logprob for token, row in zip(output.token_ids, output.logprobs, strict=True))
    assert output.cumulative_logprob == pytest.approx(total, abs=TOLERANCE)


def test_no_logprobs_unless_asked_for(llm):
    asked, plain = llm.generate([ids(PROMPT)] * 2, [greedy(logprobs=3), greedy()])
    assert plain.prompt_logprobs is None
    assert plain.outputs[0].logprobs is None
    assert plain.outputs[0].cumulative_logprob is None
    assert asked.outputs[0].token_ids == plain.outputs[0].token_ids


def test_logprobs_are_the_models(llm):
    (output,) = llm.generate(ids(PROMPT), greedy(logprobs=20, temperature=1.5, seed=2, top_k=3))[0].outputs
    logits = logits_after(PROMPT, output.token_ids).astype(np.float64)
    reference = logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)
    for row, wanted in zip(output.logprobs, reference, strict=True):
        for token, entry in row.items():
            assert entry.logprob == pytest.approx(wanted[token], abs=TOLERANCE)
            assert entry.decoded_token == llm.tokenizer.token_bytes(token).decode(errors="replace")


@pytest.mark.parametrize("length", [1, 15, 16, 17, 50])
def test_prompt_logprobs_equal_those_of_generation(llm, length):
    """Score prompt + output as one prompt, in chunks and with a warm prefix cache: the numbers generation reported."""
    prompt = [(7 * place + length) % 200 + 3 for place in range(length)]
    (output,) = llm.generate(ids(prompt), greedy(logprobs=4, temperature=1.0, seed=8, max_tokens=24))[0].outputs
    warm = llm.generate(ids(prompt + output.token_ids), greedy())[0]
    assert warm.num_cached_tokens > 0
    scored, _ = llm.generate([ids(prompt + output.token_ids), ids(PROMPT)], greedy(prompt_logprobs=4, max_tokens=1))
    assert scored.num_cached_tokens == 0, "all of it was run"
    assert len(scored.prompt_logprobs) == length + 24
    for token, row, generated in zip(output.token_ids, scored.prompt_logprobs[length:], output.logprobs, strict=True):
        assert row.keys() == generated.keys()
        assert row[token].rank == generated[token].rank
        for other, entry in generated.items():
            assert row[other].logprob == pytest.approx(entry.logprob, abs=TOLERANCE)


@pytest.mark.parametrize("start", [1, 2, 16, 17, 39, 40])
@pytest.mark.parametrize("cached", [False, True])
def test_scores_from_a_position_on_are_those_of_the_whole_prompt(llm, start, cached):
    prompt = [(13 * place) % 200 + 3 for place in range(41)]
    whole = llm.generate(ids(prompt), greedy(prompt_logprobs=3, max_tokens=1))[0].prompt_logprobs
    if not cached:
        llm.reset_prefix_cache()
    scoring = SamplingParams(max_tokens=0, prompt_logprobs=3, prompt_logprobs_start=start)
    (scored,) = llm.generate([ids(prompt)], scoring)
    assert scored.num_cached_tokens == ((start - 1) // 4 * 4 if cached else 0)
    assert scored.prompt_token_ids == prompt
    assert scored.prompt_logprobs[:start] == [None] * start
    for got, want in zip(scored.prompt_logprobs[start:], whole[start:], strict=True):
        assert got.keys() == want.keys()
        for token, entry in want.items():
            assert got[token].rank == entry.rank
            assert got[token].logprob == pytest.approx(entry.logprob, abs=TOLERANCE)
    (output,) = scored.outputs
    assert (output.text, output.token_ids, output.finish_reason, output.stop_reason) == ("", [], "length", None)


def test_a_prompt_that_is_only_scored_may_be_one_longer_than_the_context(llm):
    prompt = [(13 * place) % 200 + 3 for place in range(CONTEXT + 1)]
    scoring = SamplingParams(max_tokens=0, prompt_logprobs=0)
    (scored,) = llm.generate([ids(prompt)], scoring)
    (most,) = llm.generate([ids(prompt[:-2])], SamplingParams(max_tokens=1, prompt_logprobs=0))
    assert len(scored.prompt_logprobs) == CONTEXT + 1
    chosen = [row[token].logprob for token, row in zip(prompt[1:], scored.prompt_logprobs[1:], strict=True)]
    wanted = [row[token].logprob for token, row in zip(prompt[1:], most.prompt_logprobs[1:], strict=False)]
    assert chosen[: len(wanted)] == pytest.approx(wanted, abs=TOLERANCE)
    assert all(logprob < 0 for logprob in chosen)
    with pytest.raises(ContextLengthError, match="prompt has 98 tokens"):
        llm.generate([ids([*prompt, 5])], scoring)


def test_prompt_logprobs_with_several_sequences(directory, llm):
    """Sequences that find the prompt in the cache are ahead of the one that scores it."""
    prompt = [(11 * place) % 200 + 3 for place in range(60)]
    wanted = llm.generate(ids(prompt), greedy(prompt_logprobs=0))[0]
    eager = load(directory, long_prefill_token_threshold=8)
    eager.generate(ids(prompt), greedy())
    request = eager.generate(ids(prompt), greedy(prompt_logprobs=0, n=3))[0]
    assert len(request.prompt_logprobs) == 60
    for got, row in zip(request.prompt_logprobs[1:], wanted.prompt_logprobs[1:], strict=True):
        assert {token: entry.rank for token, entry in got.items()} == {token: entry.rank for token, entry in row.items()}
    assert [output.token_ids for output in request.outputs] == [wanted.outputs[0].token_ids] * 3


# Bad input


@pytest.mark.parametrize(
    ("prompt", "params", "error", "message"),
    [
        ("", {}, InvalidRequestError, "prompt must not be empty"),
        (ids([]), {}, InvalidRequestError, "prompt must not be empty"),
        (ids([VOCAB]), {}, InvalidRequestError, "token ids are integers from 0 to 256"),
        (ids([5] * CONTEXT), {}, ContextLengthError, "prompt has 96 tokens, but this model's maximum context length is 96"),
        (None, {}, InvalidRequestError, "prompt must be a string or a dict"),
        ([1, 2], {}, InvalidRequestError, "prompt must be a string or a dict"),
        (ids([5]), {"n": 9}, InvalidRequestError, "n must be at most 8"),
        (ids([5]), {"logit_bias": {VOCAB: 1.0}}, InvalidRequestError, "logit_bias has 257"),
    ],
)
def test_bad_input_raises_before_anything_runs(llm, prompt, params, error, message):
    scheduler = llm._built.core.scheduler
    before = scheduler.cache.queried_tokens
    with pytest.raises(error, match=message):
        llm.generate([ids(PROMPT), prompt], [greedy(), greedy(**params)])
    assert scheduler.cache.queried_tokens == before
    assert len(tokens_of(llm, greedy())) == 12


class Interrupted(BaseException):
    """Stands for KeyboardInterrupt, which a test runner would take for its own."""


@pytest.mark.parametrize("after", [1, 3, 7])
def test_an_interrupt_leaves_nothing_behind(llm, monkeypatch, after):
    wanted = tokens_of(llm, greedy())
    core = llm._built.core
    step, turns = core.step, iter(range(after))

    def interrupted():
        if next(turns, None) is None:
            raise Interrupted
        return step()

    with monkeypatch.context() as patched:
        patched.setattr(core, "step", interrupted)
        with pytest.raises(Interrupted):
            llm.generate([ids([number + 5] * 30) for number in range(12)], greedy())
    assert not core.scheduler.has_work
    assert core.scheduler.cache.num_free == core.scheduler.cache.num_usable
    assert tokens_of(llm, greedy()) == wanted


def test_ctrl_c_waits_for_the_end_of_a_turn(llm, monkeypatch):
    wanted = tokens_of(llm, greedy())
    core, handler = llm._built.core, signal.getsignal(signal.SIGINT)
    submit, steps = core.executor.submit, []

    def pressed(plan):
        steps.append(plan)
        if len(steps) == 3:
            signal.raise_signal(signal.SIGINT)
        return submit(plan)

    with monkeypatch.context() as patched:
        patched.setattr(core.executor, "submit", pressed)
        with pytest.raises(KeyboardInterrupt):
            llm.generate([ids([number + 5] * 30) for number in range(12)], greedy())
    assert len(steps) == 3
    assert signal.getsignal(signal.SIGINT) is handler
    assert tokens_of(llm, greedy()) == wanted


def test_after_a_failed_step_the_engine_is_dead(directory, monkeypatch):
    llm = load(directory)
    core = llm._built.core

    def failing(plan):
        raise RuntimeError("the device is gone")

    assert len(tokens_of(llm, greedy())) == 12
    with monkeypatch.context() as patched:
        patched.setattr(core.executor, "submit", failing)
        with pytest.raises(RuntimeError, match="the device is gone"):
            llm.generate([ids(PROMPT)] * 3, greedy())
    assert core.scheduler.cache.num_free == core.scheduler.cache.num_usable
    with pytest.raises(EngineDeadError, match="the device is gone"):
        llm.generate(ids(PROMPT), greedy())


# Options, and requests that fail alone


def added(llm, monkeypatch, *arguments, **options):
    """What the engine was given for a call."""
    seen, add = [], llm._built.core.add

    def seeing(requests):
        seen.extend(requests)
        add(requests)

    with monkeypatch.context() as patched:
        patched.setattr(llm._built.core, "add", seeing)
        llm.generate(*arguments, **options)
    return seen


def test_offline_work_is_of_the_batch_class(llm, monkeypatch):
    (request,) = added(llm, monkeypatch, ids(PROMPT), greedy(max_tokens=1))
    assert request.service_class is ServiceClass.BATCH
    assert request.queue_deadline == float("inf")


def test_options_for_all_prompts_or_for_each(llm, monkeypatch):
    one, two = RequestOptions(tenant="a"), RequestOptions(tenant="b", service_class=ServiceClass.INTERACTIVE_FREE)
    both = [ids(PROMPT)] * 2
    assert [request.tenant for request in added(llm, monkeypatch, both, greedy(max_tokens=1), options=one)] == ["a", "a"]
    requests = added(llm, monkeypatch, both, greedy(max_tokens=1), options=[one, two])
    assert [request.tenant for request in requests] == ["a", "b"]
    assert [request.service_class for request in requests] == [ServiceClass.BATCH, ServiceClass.INTERACTIVE_FREE]
    with pytest.raises(InvalidRequestError, match="1 options for 2 prompts") as refused:
        llm.generate(both, greedy(), options=[one])
    assert refused.value.param == "options"
    (output,) = llm.chat([{"role": "user", "content": "hi"}], greedy(), options=replace(two, max_total_tokens=9))
    assert len(output.prompt_token_ids + output.outputs[0].token_ids) == 9
    assert output.outputs[0].finish_reason == "length"


def test_tenants_share_no_prefix_and_the_cache_can_be_reset(llm):
    prompt = ids(range(100, 120))
    counts = [llm.generate(prompt, greedy(max_tokens=1))[0].num_cached_tokens for _ in range(2)]
    other = llm.generate(prompt, greedy(max_tokens=1), options=RequestOptions(tenant="b"))[0].num_cached_tokens
    assert (counts, other) == ([0, 16], 0)
    llm.reset_prefix_cache()
    assert llm.generate(prompt, greedy(max_tokens=1))[0].num_cached_tokens == 0


def test_a_request_whose_text_cannot_be_made_keeps_its_place(llm, monkeypatch, caplog):
    others, broken = [9, 9, 4], tokens_of(llm, greedy())[5]
    plain = tokens_of(llm, greedy(), others)
    assert broken not in plain
    tokenizer = BrokenTokenizer(llm.tokenizer, broken)
    with monkeypatch.context() as patched:
        patched.setattr(llm, "_built", replace(llm._built, tokenizer=tokenizer))
        failed, fine = llm.generate([ids(PROMPT), ids(others)], greedy(skip_special_tokens=False))
    assert isinstance(failed.error, InternalError)
    assert failed.prompt_token_ids == PROMPT
    assert failed.outputs[0].finish_reason == "error"
    assert failed.outputs[0].token_ids == tokens_of(llm, greedy())[:5]
    assert (fine.error, fine.outputs[0].token_ids, fine.outputs[0].finish_reason) == (None, plain, "length")


def test_a_request_that_is_too_late_keeps_its_place(llm):
    late, fine = llm.generate([ids(PROMPT)] * 2, greedy(n=2), options=[RequestOptions(timeout=1e-9), RequestOptions(timeout=60)])
    assert isinstance(late.error, DeadlineError)
    assert (late.prompt_token_ids, late.prompt_logprobs, late.num_cached_tokens) == (PROMPT, None, 0)
    assert [output.finish_reason for output in late.outputs] == ["error", "error"]
    assert fine.error is None
    assert fine.outputs[0].token_ids == tokens_of(llm, greedy())


def test_a_request_that_the_engine_refuses_keeps_its_place(llm, monkeypatch):
    add = llm._built.core.add

    def refusing(requests):
        if requests[0].tenant == "nobody":
            raise QueueFullError("not you", retry_after=1.0)
        add(requests)

    with monkeypatch.context() as patched:
        patched.setattr(llm._built.core, "add", refusing)
        options = [RequestOptions(tenant="nobody"), RequestOptions()]
        refused, fine = llm.generate([ids(PROMPT)] * 2, greedy(n=2), options=options)
    assert isinstance(refused.error, QueueFullError)
    assert [(output.token_ids, output.finish_reason) for output in refused.outputs] == [([], "error")] * 2
    assert fine.error is None
    assert fine.outputs[0].token_ids == tokens_of(llm, greedy())


@pytest.fixture(scope="module")
def governed(directory, tmp_path_factory):
    """A small cache with a warm prompt, and a tenant that may have a part of it."""
    folder = tmp_path_factory.mktemp("governed")
    (folder / "warm.jsonl").write_text(json.dumps({"prompt_token_ids": PROMPT, "tenant": "acme", "pin": True}))
    (folder / "policies.json").write_text(json.dumps({"tenants": {"small": {"kv_share": 0.3, "kv_cap": 0.3}}}))
    files = {"warm_prompts": str(folder / "warm.jsonl"), "policies": str(folder / "policies.json")}
    return load(directory, num_pages=49, **files)


def test_warm_prompts_are_cached_before_the_first_request(governed):
    first = governed.generate(ids([*PROMPT, 9]), greedy(), options=RequestOptions(tenant="acme"))[0]
    assert first.num_cached_tokens == len(PROMPT) // 4 * 4
    assert first.outputs[0].token_ids == tokens_of(governed, greedy(), [*PROMPT, 9])
    governed.reset_prefix_cache()
    assert governed._built.core.scheduler.cache.num_pinned == 0


def test_a_tenant_runs_and_keeps_what_its_policy_gives_it(governed, monkeypatch):
    kept, core, running = ids(range(60, 80)), governed._built.core, []
    step = core.step
    governed.generate(kept, greedy(max_tokens=1))

    def counting():
        outputs = step()
        running.append(core.scheduler.num_running)
        return outputs

    with monkeypatch.context() as patched:
        patched.setattr(core, "step", counting)
        flood = [ids([number] * 40) for number in range(100, 110)]
        outputs = governed.generate(flood, greedy(max_tokens=8), options=RequestOptions(tenant="small"))
    assert all(len(output.outputs[0].token_ids) == 8 for output in outputs)
    assert max(running) == 1, "14 of 48 pages hold one of them at a time"
    assert governed.generate(kept, greedy(max_tokens=1))[0].num_cached_tokens == 16, "what others have cached stays"


# Chat


MESSAGES = [{"role": "user", "content": "hi"}]


def test_chat(llm):
    (request,) = llm.chat(MESSAGES, greedy())
    expected = [*(SPECIAL.index(token) for token in ("<s>", "<|user|>"))]
    expected += [*llm.tokenizer.encode("hi", add_special_tokens=False), SPECIAL.index("<|assistant|>")]
    assert request.prompt_token_ids == expected
    assert request.outputs[0].token_ids == tokens_of(llm, greedy(), expected)


def test_chat_with_several_conversations(llm):
    other = [*MESSAGES, {"role": "assistant", "content": "yes"}, {"role": "user", "content": "why"}]
    first, second = llm.chat([MESSAGES, other], greedy())
    for one, alone in ((first, MESSAGES), (second, other)):
        assert one.outputs[0].token_ids == llm.chat(alone, greedy())[0].outputs[0].token_ids
    assert len(second.prompt_token_ids) > len(first.prompt_token_ids)


def test_chat_may_continue_the_last_message(llm):
    messages = [*MESSAGES, {"role": "assistant", "content": "yes, b"}]
    (request,) = llm.chat(messages, greedy(), add_generation_prompt=False, continue_final_message=True)
    assert request.prompt_token_ids[-6:] == llm.tokenizer.encode("yes, b", add_special_tokens=False)


@pytest.mark.parametrize("messages", [[], [{"content": "no role"}], [{"role": "user", "content": 5}]])
def test_bad_conversations(llm, messages):
    with pytest.raises(InvalidRequestError, match="messages"):
        llm.chat(messages, greedy())


# Settings


def test_an_unknown_setting_is_named_beside_the_known_ones():
    with pytest.raises(ConfigError, match=r"unknown setting 'max_num_sequences'; known are .*max_num_seqs") as refused:
        LLM("anything", max_num_sequences=3)
    assert refused.value.param == "max_num_sequences"


def test_impossible_settings(tmp_path, directory):
    with pytest.raises(ConfigError, match="no checkpoint directory at"):
        LLM(str(tmp_path / "nowhere"))
    with pytest.raises(ConfigError, match="max_num_batched_tokens must be at least 8"):
        LLM(str(directory), max_num_seqs=8, max_num_batched_tokens=4)
    with pytest.raises(ConfigError, match="max_model_len is 4096 tokens, but the model was made for 2048"):
        LLM(str(directory), max_model_len=4096)
    with pytest.raises(ConfigError, match="tensor_parallel_size"):
        LLM(str(directory), tensor_parallel_size=64)


def test_report(llm):
    report = llm.report
    assert (report.model.name, report.model.vocab_size, report.model.max_model_len) == ("model", VOCAB, CONTEXT)
    assert report.model.dtype == report.kv_dtype == "float32"
    assert report.memory.kv_tokens >= CONTEXT


def test_what_the_prefix_cache_holds_is_published(directory, tmp_path):
    endpoints = {name: f"ipc://{tmp_path}/{name}" for name in ("endpoint", "replay_endpoint")}
    llm = load(directory, kv_events_config=json.dumps({"enable_kv_cache_events": True, "format": "map", **endpoints}))
    subscriber = Subscriber(endpoints["endpoint"], endpoints["replay_endpoint"], "", "map")
    try:
        (output,) = llm.generate({"prompt_token_ids": PROMPT}, SamplingParams(max_tokens=9, ignore_eos=True))
        tokens = (*PROMPT, *output.outputs[0].token_ids)
        subscriber.catch_up()
        held = set(subscriber.blocks.values())
        assert held >= {tokens[:end] for end in range(4, len(tokens), 4)}
        llm.reset_prefix_cache()
        subscriber.catch_up()
        assert subscriber.blocks == {}
    finally:
        subscriber.close()
