"""Requests with a prefix in common are work once, so they are not refused for a wait that they do not have."""

import pytest

from jaxserve.errors import OverloadedError
from jaxserve.types import ServiceClass
from tests.support.bench import Bench, family, request

PREFIX = list(range(1, 257))


def bench(**settings):
    """One slot taken for long; 100 tokens of prompts are done in a second."""
    settings = {"max_num_seqs": 1, "budget": 16, "decode_price": 0.0, "max_len": 400, "num_pages": 401} | settings
    made = Bench(**settings)
    made.add(request("running", [300] * 390, 1))
    made.add(request("waiting", [301] * 4, 1))
    made.run(10, seconds=0.16)
    return made


def work(made):
    return made.scheduler._waiting.work_ahead("", ServiceClass.INTERACTIVE_PAID)


def sharing(name, at=0.0, more=10, **fields):
    return request(name, [*PREFIX, *(400 + ord(name[-1]) + number for number in range(more))], 1, arrival=at, **fields)


def test_thirty_requests_with_a_common_prefix_are_the_work_of_one_and_thirty_ends():
    made = bench()
    before = work(made)
    made.add(*(sharing(f"r{number:c}", queue_deadline=made.clock.now() + 30.0) for number in range(65, 95)))
    assert work(made) - before == 256 + 30 * 10
    made.scheduler.check()


def test_without_a_prefix_cache_every_prompt_is_work_in_full():
    made = bench(prefix_caching=False)
    made.add(*(sharing(f"r{number:c}", queue_deadline=made.clock.now() + 30.0) for number in range(65, 76)))
    with pytest.raises(OverloadedError, match=r"would wait about 29\.\d s"):
        made.add(sharing("z", queue_deadline=made.clock.now() + 20.0))


def test_what_is_cached_already_is_no_work():
    made = bench(max_num_seqs=2, budget=64)
    made.add(sharing("a"))
    made.run(12)
    assert "a" in made.ended
    made.add(request("more", [302] * 4, 1), request("again", [303] * 4, 1))
    before = work(made)
    made.add(sharing("b"))
    assert work(made) - before == 10


def test_tenants_and_salts_share_nothing():
    made = bench()
    made.add(sharing("a"))
    before = work(made)
    made.add(sharing("b", root=b"another"))
    assert work(made) - before == 266


def test_what_nobody_will_compute_any_more_is_work_again():
    made = bench()
    made.add(sharing("a"))
    made.scheduler.abort(["a"])
    before = work(made)
    made.add(sharing("b"))
    assert work(made) - before == 266
    made.scheduler.abort(list(made.scheduler.sequences))
    assert not made.scheduler._prefixes._pages


def test_siblings_and_scored_prompts_are_counted_for_what_they_compute():
    made = bench()
    before = work(made)
    made.scheduler.add(family("f", 3, PREFIX))
    assert work(made) - before == 256, "siblings wait behind the first"
    before = work(made)
    made.add(sharing("s", prompt_logprobs=1))
    assert work(made) - before == 266, "every token of it must run"
    made.scheduler.check()
