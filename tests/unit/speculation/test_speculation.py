"""How many drafts rows of a step get, and when a step waits for its predecessor's tokens."""

import math

import pytest

from jaxserve.clock import VirtualClock
from jaxserve.speculation.drafter import NOTHING, Guess
from jaxserve.speculation.speculation import Row, Speculation


class Copier:
    """Guesses that a text counts on; of texts of the tenant "noise" nothing is right."""

    def begin(self, tenant, num_prompt):
        self.tenant = tenant
        return Counter(-1 if tenant == "noise" else 1)


class Counter:
    def __init__(self, step):
        self.step = step

    def propose(self, tokens, most):
        return Guess(tuple(tokens[-1] + self.step * place for place in range(1, most + 1))) if tokens else NOTHING

    def end(self, tokens):
        pass


def speculation(max_drafts=4, rows=32):
    return Speculation(Copier(), max_drafts, VirtualClock(), max_rows=rows, max_tokens=512)


def row(name, length, tenant="", most=4):
    return Row(name, tenant, 1, list(range(100, 100 + length)), most)


def decoded(guessing, tenant="", *, steps=30, name="a"):
    """A text that was followed for some steps."""
    for length in range(1, steps):
        guessing.pays([row(name, length, tenant)], 1)
    return row(name, steps, tenant)


def measured(guessing, rows, cost, times=5):
    """Steps of so many rows with every number of drafts."""
    for _ in range(times):
        for tokens in range(rows, rows * 5 + 1):
            guessing.observe(rows, tokens, cost(tokens))


def drafts(guessing, rows, num_rows=None, *, room=500, prompts=False):
    given = guessing.drafts(rows, num_rows or len(rows), room=room, prompts=prompts)
    return [len(given.get(one.id, ())) for one in rows]


def test_right_guesses_are_drafts():
    guessing = speculation()
    measured(guessing, 1, lambda tokens: 1.0 + 0.01 * tokens)
    one = decoded(guessing)
    assert guessing.drafts([one], 1, room=500, prompts=False) == {"a": (130, 131, 132, 133)}


def test_rows_differ():
    guessing = speculation()
    measured(guessing, 2, lambda tokens: 1.0 + 0.02 * tokens)
    rows = [decoded(guessing, name="a"), decoded(guessing, "noise", name="b")]
    assert drafts(guessing, rows) == [4, 0]


def test_none_where_each_token_costs_more_than_the_last():
    guessing = speculation()
    rows = [decoded(guessing, "noise" if number % 2 else "", name=str(number)) for number in range(16)]
    measured(guessing, 16, lambda tokens: tokens**1.3)
    assert drafts(guessing, rows) == [0] * 16
    cheap = speculation()
    rows = [decoded(cheap, "noise" if number % 2 else "", name=str(number)) for number in range(16)]
    measured(cheap, 16, lambda tokens: 1.0 + tokens / 1000)
    assert drafts(cheap, rows)[0] == 4


def test_no_more_than_the_step_and_the_row_have_room_for():
    guessing = speculation()
    one = decoded(guessing)
    assert drafts(guessing, [one], room=2) == [2]
    assert drafts(guessing, [one._replace(most=1)]) == [1]
    assert drafts(guessing, [one], room=0) == [0]


def test_beside_prompts_only_likely_drafts_and_few():
    guessing = speculation()
    rows = [decoded(guessing, name="a"), decoded(guessing, "noise", name="b")]
    assert drafts(guessing, rows, prompts=True) == [4, 0]
    assert drafts(guessing, rows, prompts=True, room=8) == [2, 0]


def test_waiting_for_tokens_pays_if_the_host_is_quick():
    guessing = speculation()
    measured(guessing, 1, lambda tokens: 1.0 + 0.01 * tokens)
    one = decoded(guessing)
    assert guessing.pays([one], 1)
    for _ in range(100):
        guessing.observe_host(10.0)
    assert not guessing.pays([one], 1)


def test_no_more_is_waited_for_than_a_step_has_room_for():
    """Many drafts would be worth a step of twice the time; those that fit are not."""
    guessing = Speculation(Copier(), 4, VirtualClock(), max_rows=8, max_tokens=12)
    rows = [decoded(guessing, name=str(number)) for number in range(8)]
    measured(guessing, 8, lambda tokens: 1.0 if tokens == 8 else 2.5)
    assert not guessing.pays(rows, 8)
    roomy = Speculation(Copier(), 4, VirtualClock(), max_rows=8, max_tokens=40)
    measured(roomy, 8, lambda tokens: 1.0 if tokens == 8 else 2.5)
    assert roomy.pays([decoded(roomy, name=str(number)) for number in range(8)], 8)


def test_nothing_is_waited_for_where_nothing_is_right():
    guessing = speculation()
    measured(guessing, 1, lambda tokens: 1.0 + 0.3 * tokens)
    assert not guessing.pays([decoded(guessing, "noise")], 1)


def test_a_text_that_begins_to_repeat_is_found_again():
    guessing = speculation()
    measured(guessing, 1, lambda tokens: 1.0 + 0.2 * tokens)
    noise = [5, 3] * 60
    for length in range(1, len(noise)):
        guessing.pays([Row("a", "", 1, noise[:length], 4)], 1)
    text = [*noise, *range(200, 240)]
    assert not guessing.pays([Row("a", "", 1, noise, 4)], 1)
    waits = [guessing.pays([Row("a", "", 1, text[:length], 4)], 1) for length in range(len(noise), len(text))]
    assert any(waits)
    assert waits[-1]


@pytest.mark.parametrize("seconds", [math.nan, -1.0, math.inf, -math.inf, 0.0, 1e300])
def test_hostile_clocks_starve_nobody(seconds):
    """Whatever was measured once, drafts come back where steps with them are quick."""
    guessing = speculation()
    one = decoded(guessing)
    for tokens in range(1, 6):
        guessing.observe(1, tokens, seconds)
    guessing.observe_host(seconds if seconds < 1e300 else 0.0)
    given = []
    for _ in range(600):
        count = drafts(guessing, [one])[0]
        guessing.observe(1, 1 + count, 1.0 + 0.01 * count)
        given.append(count)
    assert given[-1] == 4
    assert math.isfinite(guessing.counts.seconds)


def test_what_is_counted():
    guessing = speculation()
    guessing.verified(4, 2)
    guessing.verified(3, 0)
    guessing.verified(4, 4)
    counts = guessing.counts
    assert (counts.drafts, counts.draft_tokens, counts.accepted_tokens) == (3, 11, 6)
    assert counts.accepted_at == (2, 2, 1, 1)


def test_ended_sequences_are_forgotten():
    guessing = speculation()
    for number in range(50):
        one = decoded(guessing, name=str(number), steps=3)
        guessing.ended(one.id, one.tokens)
    assert not guessing._followers
    guessing.ended("unknown", [])


class Below:
    """A form: numbers below one."""

    def __init__(self, end):
        self.end = end

    def allows(self, tokens):
        return next((place for place, token in enumerate(tokens) if token >= self.end), len(tokens))


def formed(guessing, name="a", tenant="", **more):
    return decoded(guessing, tenant, name=name)._replace(**more)


def test_what_a_form_does_not_allow_is_no_draft():
    guessing = speculation()
    measured(guessing, 1, lambda tokens: 1.0 + 0.01 * tokens)
    for end, wanted in ((129, {}), (132, {"a": (130, 131)}), (200, {"a": (130, 131, 132, 133)})):
        one = formed(guessing, form=Below(end))
        assert guessing.drafts([one], 1, room=500, prompts=False) == wanted


@pytest.mark.parametrize(
    ("sure", "wanted"),
    [
        ((130,), (130, 131, 132, 133)),
        ((130, 131, 132, 133), (130, 131, 132, 133)),
        ((130, 7), (130, 7)),
        ((7, 8, 9), (7, 8, 9)),
        ((1, 2, 3, 4, 5, 6), (1, 2, 3, 4)),
    ],
)
def test_what_must_come_is_a_draft_and_guesses_that_say_the_same_go_on_behind_it(sure, wanted):
    guessing = speculation()
    measured(guessing, 1, lambda tokens: 1.0 + 0.01 * tokens)
    one = formed(guessing, form=Below(10**6), sure=sure)
    assert guessing.drafts([one], 1, room=500, prompts=False) == {"a": wanted}


def test_what_must_come_is_sure_where_guesses_are_not():
    """A draft costs half of a step here, so that only a sure one is worth it, and waiting for."""
    for tenant in ("", "noise"):
        guessing = speculation()
        measured(guessing, 2, lambda tokens: 1.0 + 0.45 * (tokens - 2))
        free, formed_one = decoded(guessing, "noise", name="b"), formed(guessing, tenant=tenant, form=Below(200), sure=(7, 8))
        assert not guessing.pays([free], 2)
        assert guessing.pays([free, formed_one], 2)
        assert drafts(guessing, [formed_one, free]) == [2, 0]
    beside_prompts = guessing.drafts([formed_one, free], 2, room=40, prompts=True)
    assert beside_prompts == {"a": (7, 8)}
