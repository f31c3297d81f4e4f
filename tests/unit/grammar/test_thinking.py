"""Budgets of thinking: they end it when they are spent, in the format's own way, and nothing else."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from jaxserve.chat_parsing import ResponseTemplate, load_template
from jaxserve.errors import InvalidRequestError
from jaxserve.grammar.matching import GrammarConstraint
from jaxserve.sampling.response import ResponseParams
from jaxserve.sampling.structured import StructuredOutputsParams
from tests.unit.chat_parsing.vocabularies import PLAIN, SPECIAL
from tests.unit.chat_parsing.vocabularies import Vocabulary as Words
from tests.unit.grammar.test_response import ORDER, TOOLS, allowed, constraint, family, grammars, is_whole, say, tools_of

VOCABULARIES = pytest.mark.parametrize("words", [PLAIN, SPECIAL], ids=["plain", "special"])
CONTENT = StructuredOutputsParams(json=ORDER, disable_any_whitespace=True)
END = "\n</think>\n\n"


def budgeted(words: Words, tokens: int, template: ResponseTemplate | None = None, **form: Any) -> GrammarConstraint:
    return constraint(words, template or family("hermes"), **{"content": CONTENT, "max_thinking_tokens": tokens, **form})


def follow(one: GrammarConstraint, words: Words) -> str:
    """What it makes itself say, token for token, by masks that allow that token alone."""
    said: list[int] = []
    while one.imposed:
        assert list(one.forced()) == list(one.imposed)
        assert allowed(one, words) == [one.imposed[0]]
        said.append(one.imposed[0])
        assert one.accept(said[-1])
    return words.text(said)


@VOCABULARIES
@pytest.mark.parametrize(("thinking", "begin"), [("open", ""), ("maybe", "<think>"), ("maybe", "\n <think>")])
def test_thinking_ends_after_so_many_tokens(thinking: str, begin: str, words: Words) -> None:
    for budget in (1, 2, 7):
        one = budgeted(words, budget, thinking=thinking)
        assert say(one, words, begin)
        for left in range(budget, 0, -1):
            assert not one.imposed, left
            assert say(one, words, "a")
        assert follow(one, words) == END
        assert say(one, words, '{"order":1,"name":"a"}')
        assert is_whole(one)


@VOCABULARIES
@pytest.mark.parametrize("thinking", ["open", "maybe"])
def test_it_comes_back_from_whatever_it_looked_at_ahead(thinking: str, words: Words) -> None:
    """Also from within a character, and from where thinking ended meanwhile."""
    chance, imposed = random.Random(5), 0
    for budget in (1, 3, 6):
        one, alone = (budgeted(words, budget, thinking=thinking) for _ in range(2))
        for _ in range(25):
            back = one.checkpoint()
            for _ in range(chance.randrange(9)):
                token = chance.choice(allowed(one, words))
                assert one.allows([token]) == 1
                if not one.accept(token):
                    break
            imposed += bool(one.imposed)
            back()
            assert one.imposed == alone.imposed
            assert one.forced() == alone.forced()
            assert allowed(one, words) == allowed(alone, words)
            token = chance.choice(allowed(one, words))
            assert one.accept(token) == alone.accept(token)
            if alone.matcher.is_stopped():
                break
    assert imposed > 2


@VOCABULARIES
def test_a_budget_of_nothing_ends_thinking_at_once(words: Words) -> None:
    assert follow(budgeted(words, 0, thinking="open"), words) == END
    begun = budgeted(words, 0, thinking="maybe")
    assert not begun.imposed
    assert say(begun, words, "<think>")
    assert follow(begun, words) == END


@VOCABULARIES
def test_who_does_not_think_or_ends_it_in_time_notices_nothing(words: Words) -> None:
    for thinking, before in (("maybe", ""), ("maybe", "<think>a</think>"), ("open", "a</think>\n\n"), ("none", "")):
        one = budgeted(words, 2, thinking=thinking)
        assert say(one, words, before + '{"order":123456,"name":"a"}')
        assert not one.imposed
        assert is_whole(one)
    text = budgeted(words, 2, thinking="maybe", content=None)
    assert say(text, words, "Hello, this is the answer")
    assert not text.imposed


@VOCABULARIES
def test_what_of_the_end_was_said_already_is_not_said_again(words: Words) -> None:
    one = budgeted(words, 2, thinking="open")
    assert say(one, words, "a\n")
    assert follow(one, words) == END[1:]
    begun = budgeted(PLAIN, 4, thinking="open")
    for token in [token for piece in "a</t" for token in PLAIN.encode(piece)]:
        begun.accept(token)
    assert follow(begun, PLAIN) == END, "it begins with a new line, which this is none of"
    closing = budgeted(PLAIN, 4, thinking="open")
    for token in [token for piece in "a\n</" for token in PLAIN.encode(piece)]:
        closing.accept(token)
    assert follow(closing, PLAIN) == END[3:]


@VOCABULARIES
def test_a_character_of_several_tokens_stays_whole(words: Words) -> None:
    parts = words.encode("𓀀")
    assert len(parts) > 2
    one = budgeted(words, 1, thinking="open")
    for token in parts:
        assert not one.imposed
        assert one.accept(token)
    assert follow(one, words) == END


@VOCABULARIES
def test_each_sequence_has_a_budget_of_its_own(words: Words) -> None:
    form = ResponseParams(template=json.dumps(family("hermes").spec), thinking="open", max_thinking_tokens=2, content=CONTENT)
    kept = grammars(words)
    make = kept.constraints(form)
    first, second = make(), make()
    assert say(first, words, "a b")
    assert first.imposed
    assert not second.imposed
    assert say(second, words, "a</think>{")
    longer = kept.constraints(ResponseParams(template=form.template, thinking="open", max_thinking_tokens=5, content=CONTENT))()
    assert say(longer, words, "a b")
    assert not longer.imposed


@VOCABULARIES
def test_calls_come_behind_a_budget(words: Words) -> None:
    for required in (True, False):
        one = budgeted(words, 1, thinking="open", tools=tools_of(*TOOLS), required=required, content=None)
        assert say(one, words, "a")
        assert follow(one, words) == END
        assert say(one, words, '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>')
        assert is_whole(one)


@VOCABULARIES
def test_channels(words: Words) -> None:
    """All thinking of a response counts; what ends it begins the answer, unless there must be a call."""
    begin, end = "<|channel|>analysis<|message|>", "<|end|><|start|>assistant"
    template, final = family("openai"), "<|channel|>final<|message|>"
    one = budgeted(words, 3, template, thinking="maybe")
    assert say(one, words, f"{begin}a{end}{begin}ab")
    assert not one.imposed
    assert say(one, words, "c")
    assert follow(one, words) == end + final
    assert say(one, words, '{"order":1,"name":"a"}')
    called = budgeted(words, 1, template, thinking="maybe", tools=tools_of(*TOOLS), required=True, content=None)
    assert say(called, words, f"{begin}a")
    assert follow(called, words).startswith(end)
    assert not say(called, words, "final")


def test_a_call_that_ends_thinking_is_not_cut() -> None:
    """Where nothing tells thinking from text: it is told from calls all the same."""
    one = budgeted(PLAIN, 3, thinking="maybe", tools=tools_of(*TOOLS), content=None)
    assert say(one, PLAIN, '<think>a<tool_call>\n{"name": "get_weather", "arguments": {"city":"a long name of a city')
    assert not one.imposed


def test_a_template_that_does_not_say_how_it_ends_takes_no_budget() -> None:
    plain = load_template({"start_anchor": "A:", "fields": {"content": {}}})
    wrong = {**family("hermes").spec["fields"]["thinking"], "writes": {"early_close": "enough"}}
    fields = {**family("hermes").spec["fields"], "thinking": wrong}
    endless = load_template({**family("hermes").spec, "fields": fields})
    for template in (plain, endless):
        with pytest.raises(InvalidRequestError, match="how thinking is ended") as refused:
            budgeted(PLAIN, 3, template, thinking="open")
        assert refused.value.param == "max_thinking_tokens"
        assert budgeted(PLAIN, 3, template, thinking="none")
        assert constraint(PLAIN, template, thinking="open", content=CONTENT)
