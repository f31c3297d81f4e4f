"""A stream that goes on in another engine has the tokens it would have had: on a model of random weights, from every cut."""

from dataclasses import replace
from typing import Any

import pytest

from jaxserve.cache.kv_cache import KVCache
from jaxserve.clock import RealClock
from jaxserve.config.fields import EngineConfig, SchedulerConfig
from jaxserve.engine.build import build_engine
from jaxserve.engine.core import EngineCore
from jaxserve.engine.remote.codec import decoder, encode
from jaxserve.engine.remote.messages import Add
from jaxserve.sampling.params import SamplingParams
from jaxserve.sampling.structured import StructuredOutputsParams
from jaxserve.scheduler.request import Update
from jaxserve.scheduler.scheduler import Scheduler
from tests.support.engine import silent
from tests.support.tiny_checkpoint import write_tiny_checkpoint

SCHEMA = {
    "type": "object",
    "properties": {"number": {"type": "integer", "minimum": 0, "maximum": 99}, "is_paid": {"type": "boolean"}},
    "required": ["number", "is_paid"],
    "additionalProperties": False,
}
PROMPT = [(7 * place * place + 5) % 240 + 4 for place in range(21)]
WANTED: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "seeded": {"temperature": 1.3, "seed": 11},
    "drawn seed": {"temperature": 1.0, "top_k": 40, "top_p": 0.9},
    "penalties": {"temperature": 0.9, "seed": 4, "repetition_penalty": 1.4, "frequency_penalty": 0.6, "presence_penalty": 0.3},
    "greedy penalties": {"temperature": 0.0, "repetition_penalty": 1.6, "frequency_penalty": 1.0},
    "bias": {"temperature": 0.8, "seed": 2, "logit_bias": {17: 4.0, 90: -5.0, 30: 3.0}},
    "logprobs": {"temperature": 0.7, "seed": 3, "logprobs": 4},
    "allowed": {"temperature": 1.0, "seed": 9, "allowed_token_ids": tuple(range(40, 90))},
    "grammar": {
        "temperature": 1.0,
        "seed": 5,
        "structured_outputs": StructuredOutputsParams(json=SCHEMA, disable_any_whitespace=True),
    },
    "stops": {
        **{"temperature": 1.4, "seed": 6, "allowed_token_ids": tuple(range(40, 90))},
        **{"stop_token_ids": tuple(range(60, 76)), "min_tokens": 6},
    },
    "three": {"temperature": 1.0, "seed": 8, "n": 3, "prompt_logprobs": 2},
}


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    directory = tmp_path_factory.mktemp("tiny")
    write_tiny_checkpoint(directory)
    settings = {"model": str(directory), "load_format": "dummy", "dtype": "float32", "max_model_len": 96, "page_size": 8}
    limits = {"num_pages": 90, "max_num_seqs": 3, "before_ready": "fewest", "max_num_batched_tokens": 8, "late_compiles": "raise"}
    return build_engine(
        EngineConfig.from_settings({**settings, **limits}), strict_length=True, clock=RealClock(), progress=silent
    )


def another_engine(built):
    """One that remembers nothing."""
    limits, grammars = built.core.executor.capabilities(), built.core.grammars
    config = SchedulerConfig(max_num_seqs=limits.max_num_seqs, max_num_batched_tokens=limits.max_num_batched_tokens)
    cache = KVCache(limits.num_pages, limits.page_size, prefix_caching=True)
    scheduler = Scheduler(config, cache, limits.max_model_len, RealClock(), masker=grammars.masker)
    return EngineCore(scheduler, built.core.executor, overlap=True, grammars=grammars)


def sent(requests):
    """As an engine in another process gets them."""
    message = decoder(Add).decode(encode(Add.of(requests)))
    return message.requests


def said(core, requests):
    """Updates of each sequence, to its end."""
    updates: dict[str, list[Update]] = {one.id: [] for one in requests}
    core.add(sent(requests))
    while core.has_work:
        for update in core.step():
            assert update.error is None, update.error
            updates[update.id].append(update)
        core.scheduler.check()
    assert core.scheduler.cache.num_free == core.scheduler.cache.num_usable
    return updates


def tokens_of(updates):
    return [update.token for update in updates if update.token is not None]


@pytest.mark.parametrize("kind", WANTED)
def test_from_every_cut_it_goes_on_with_the_same_tokens(built, kind):
    params = SamplingParams(**{"max_tokens": 24, **WANTED[kind]})
    requests = built.intake.prepare({"prompt_token_ids": PROMPT}, params, kind, built.clock.now())
    whole = said(another_engine(built), requests)
    lengths = {name: len(tokens_of(updates)) for name, updates in whole.items()}
    assert max(lengths.values()) > 4
    assert kind != "stops" or whole[requests[0].id][-1].matched is not None
    core = another_engine(built)
    for cut in range(max(lengths.values())):
        left = [one for one in requests if cut < lengths[one.id]]
        known = {one.id: tokens_of(whole[one.id])[:cut] for one in left}
        moved = [
            replace(one, output=tuple(known[one.id]), resumed=True, parent=left[0].id if place else None)
            for place, one in enumerate(left)
        ]
        if cut % 5 == 1:  # the others find the prompt, and more, in the cache
            core = another_engine(built)
        updates = said(core, moved)
        for one in left:
            assert_continued(whole[one.id], updates[one.id], cut)


def assert_continued(whole, updates, cut):
    assert tokens_of(updates) == tokens_of(whole)[cut:]
    assert (updates[-1].finish_reason, updates[-1].matched) == (whole[-1].finish_reason, whole[-1].matched)
    if cut:
        assert all(update.prompt_logprobs is None for update in updates)
    got = [update.logprobs.first(4) for update in updates if update.logprobs is not None]
    wanted = [update.logprobs.first(4) for update in whole if update.logprobs is not None][cut:]
    for (value, rank, ids, top), (other, same_rank, same_ids, others) in zip(got, wanted, strict=True):
        assert (rank, ids) == (same_rank, same_ids)
        assert [value, *top] == pytest.approx([other, *others], abs=1e-5)
