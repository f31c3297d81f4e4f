"""The conversation's loop, with a speaker that answers from a list."""

import asyncio
import io

import pytest
from rich.console import Console

from jaxserve.errors import ConfigError, ContextLengthError
from jaxserve.terminal.conversation import Conversation, Sampling
from jaxserve.terminal.repl import Repl
from jaxserve.terminal.speakers import Piece


class Parrot:
    """Answers with what is next on its list: pieces of text, or an exception after them."""

    name = "parrot"

    def __init__(self, *answers):
        self._answers = list(answers)
        self.heard = []
        self.closed = 0

    async def answer(self, messages, sampling):
        self.heard.append(([dict(message) for message in messages], sampling.given()))
        try:
            for count, piece in enumerate(self._answers.pop(0), 1):
                if isinstance(piece, BaseException):
                    raise piece
                yield Piece(piece, count)
        finally:
            self.closed += 1

    async def close(self):
        """Nothing to let go of."""


def talk(parrot, *lines, system=""):
    """Say the lines; an exception among them is raised where the line would be read. Returns what the terminal shows."""
    left = list(lines)
    conversation = Conversation(system=system)
    shown = io.StringIO()
    console = Console(file=shown, width=80)

    def read(prompt):
        if not left:
            raise EOFError
        line = left.pop(0)
        if isinstance(line, BaseException):
            raise line
        return line

    with asyncio.Runner() as runner:
        Repl(runner, parrot, console, read, conversation, Sampling()).run()
    return shown.getvalue(), conversation


def test_turns_build_on_each_other_after_the_system_message():
    parrot = Parrot(["Hel", "lo"], ["bye"])
    shown, _ = talk(parrot, "hi", "", "and now?", system="be short")
    assert "Hello" in shown
    assert "(2 tokens" in shown
    system = {"role": "system", "content": "be short"}
    first, answer = {"role": "user", "content": "hi"}, {"role": "assistant", "content": "Hello"}
    assert [messages for messages, _ in parrot.heard] == [
        [system, first],
        [system, first, answer, {"role": "user", "content": "and now?"}],
    ]


def test_commands_change_what_is_sent():
    parrot = Parrot(["a"], ["b"], ["c"])
    talk(parrot, "hi", "/set temperature 0", "/system new", "/retry", "/set temperature none", "/clear", "again")
    assert parrot.heard[1] == ([{"role": "system", "content": "new"}, {"role": "user", "content": "hi"}], {"temperature": 0.0})
    assert parrot.heard[2] == ([{"role": "system", "content": "new"}, {"role": "user", "content": "again"}], {})


def test_undo_takes_question_and_answer_back_and_history_shows_the_rest():
    parrot = Parrot(["one"], ["two"])
    shown, conversation = talk(parrot, "first", "second", "/undo", "/history")
    assert [turn["content"] for turn in conversation.turns] == ["first", "one"]
    assert "user: first\nassistant: one\n" in shown


def test_an_answer_that_is_stopped_stays_as_far_as_it_was_heard():
    parrot = Parrot(["half ", KeyboardInterrupt()], ["on"])
    shown, conversation = talk(parrot, "tell", "go on")
    assert "(stopped)" in shown
    assert [turn["content"] for turn in conversation.turns] == ["tell", "half ", "go on", "on"]
    assert parrot.closed == 2


def test_a_refused_question_is_taken_back():
    parrot = Parrot([ContextLengthError("prompt has 900 tokens")], ["fine"])
    shown, _ = talk(parrot, "too long", "short")
    assert "prompt has 900 tokens" in shown
    assert parrot.heard[1][0] == [{"role": "user", "content": "short"}]


def test_lines_go_on_after_a_backslash_and_an_interrupted_line_is_dropped():
    parrot = Parrot(["a"])
    talk(parrot, KeyboardInterrupt(), "one\\", "two", "/quit", "never read")
    assert [messages[-1]["content"] for messages, _ in parrot.heard] == ["one\ntwo"]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("/nope", "there is no /nope"),
        ("/retry", "no question yet"),
        ("/undo", "no question yet"),
        ("/set foo 1", "'foo' is none of temperature"),
        ("/set temperature warm", "temperature must be a number"),
        ("/set top_p nan", "top_p must be finite"),
        ("/set seed", "seed must be a number"),
        ("/help", "/system TEXT"),
    ],
)
def test_what_cannot_be_done_is_said_in_a_line(line, says):
    shown, _ = talk(Parrot(), line)
    assert says in shown


def test_text_is_shown_as_it_is():
    shown, _ = talk(Parrot(["[bold]x[/bold] :smile: http://y " + "long " * 40]), "hi")
    assert "[bold]x[/bold] :smile: http://y " + "long " * 40 in shown


def test_text_cannot_steer_the_terminal():
    shown, _ = talk(Parrot(["a\x1b[2Jb\rc\x9bd\n"]), "hi")
    assert "a[2Jbcd\n" in shown


def test_sampling_of_the_wrong_type_is_refused():
    with pytest.raises(ConfigError, match="max_tokens"):
        Sampling(max_tokens=1.5)  # type: ignore[arg-type]  # as the test says
