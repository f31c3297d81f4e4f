"""The loop that reads a person's lines, and the commands that begin with a slash."""

from __future__ import annotations

import asyncio
import unicodedata
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass

from rich.console import Console

from jaxserve.clock import RealClock
from jaxserve.errors import JaxserveError
from jaxserve.terminal.conversation import Conversation, Sampling
from jaxserve.terminal.speakers import Speaker

HELP = """\
/system TEXT     what the model is told first (nothing: forget it)
/set NAME VALUE  temperature, top_p, max_tokens or seed; VALUE none for the default
/retry           answer the last question again
/undo            take the last question and its answer back
/clear           begin a new conversation
/history         show the conversation
/quit            leave (also Ctrl-D); Ctrl-C stops an answer
A line that ends with a backslash goes on in the next one."""

ReadLine = Callable[[str], str]
"""Shows a prompt and returns a line. Raises EOFError at the end."""


@dataclass(slots=True)
class Repl:
    """A conversation in a terminal."""

    runner: asyncio.Runner
    speaker: Speaker
    console: Console
    read_line: ReadLine
    conversation: Conversation
    sampling: Sampling

    def run(self) -> None:
        while True:
            try:
                line = self._read()
            except KeyboardInterrupt:  # a line thought better of
                self.console.print()
                continue
            except EOFError:
                return
            if line == "/quit":
                return
            if line.startswith("/"):
                self._command(line)
            elif line:
                self.conversation.ask(line)
                self._answer()

    def _read(self) -> str:
        lines = [self.read_line("> ")]
        while lines[-1].endswith("\\"):
            lines[-1] = lines[-1][:-1]
            lines.append(self.read_line(". "))
        return "\n".join(lines).strip()

    def _command(self, line: str) -> None:
        word, _, rest = line.partition(" ")
        commands: dict[str, Callable[[str], None]] = {
            "/help": lambda _: self._say(HELP),
            "/system": self._system,
            "/set": self._set,
            "/retry": self._retry,
            "/undo": self._undo,
            "/clear": lambda _: self.conversation.clear(),
            "/history": self._history,
        }
        if word not in commands:
            self._say(f"there is no {word}; /help lists what there is")
            return
        commands[word](rest.strip())

    def _system(self, text: str) -> None:
        self.conversation.system = text

    def _set(self, rest: str) -> None:
        name, _, value = rest.partition(" ")
        try:
            self.sampling.set(name, value.strip())
        except JaxserveError as error:
            self._say(error.message)

    def _retry(self, _: str) -> None:
        question = self.conversation.take_back()
        if question is None:
            self._say("there is no question yet")
            return
        self.conversation.ask(question)
        self._answer()

    def _undo(self, _: str) -> None:
        if self.conversation.take_back() is None:
            self._say("there is no question yet")

    def _history(self, _: str) -> None:
        for message in self.conversation.messages():
            self._say(f"{message['role']}: {message['content']}")

    def _answer(self) -> None:
        """Stream an answer to the terminal; what was heard of it stays in the conversation even if it is stopped."""
        heard: list[str] = []
        try:
            self.runner.run(self._stream(heard))
        except KeyboardInterrupt:
            self._say("\n(stopped)")
        except JaxserveError as error:
            self._say(f"{'' if not heard else chr(10)}{error.message}")
            if not heard:
                self.conversation.take_back()  # so that the next question is not a second one in a row
                return
        self.conversation.answered("".join(heard))

    async def _stream(self, heard: list[str]) -> None:
        clock = RealClock()
        start, first, tokens, thinks = clock.now(), None, 0, False
        async with aclosing(self.speaker.answer(self.conversation.messages(), self.sampling)) as pieces:
            async for piece in pieces:
                if first is None and (piece.text or piece.thought):
                    first = clock.now()
                if piece.thought:
                    self.console.print(printable(piece.thought), end="", markup=False, emoji=False, highlight=False, style="dim")
                    thinks = True
                elif thinks and piece.text:
                    self.console.print("\n")
                    thinks = False
                heard.append(piece.text)
                tokens = max(tokens, piece.tokens)
                self.console.out(printable(piece.text), end="", highlight=False)
                self.console.file.flush()
        self.console.print()
        if first is not None and tokens > 1:
            rate = (tokens - 1) / max(clock.now() - first, 1e-9)
            self._say(f"({tokens} tokens, {rate:,.1f} a second, the first after {first - start:.2f} s)", style="dim")

    def _say(self, text: str, style: str | None = None) -> None:
        self.console.print(printable(text), markup=False, emoji=False, highlight=False, style=style)


def printable(text: str) -> str:
    """Text that cannot steer a terminal: no control characters but line ends and tabs."""
    return "".join(char for char in text if char in "\n\t" or unicodedata.category(char) != "Cc")
