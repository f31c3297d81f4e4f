"""Texts in processes of their own, so that long prompts take no time from an event loop's process.

A worker that dies or hangs costs time and nothing else: what it had is done in this process at once, and so is everything else
until a worker is there again. But a conversation that a worker hangs at is refused: its chat template would hang here, too, where
no thread can be ended.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import msgspec

from jaxserve.chat_parsing.registry import Parsers
from jaxserve.children import Backoff, Child, describe_exit, spawn
from jaxserve.errors import OverloadedError
from jaxserve.tokenizer.load import load_tools
from jaxserve.tokenizer.texts import LONG, Texts, TextTools, ThreadTexts, is_long
from jaxserve.tokenizer.worker import Encode, Job, Render, WorkerSpec
from jaxserve.types import OwnTokenIds

logger = logging.getLogger(__name__)

MODULE = "jaxserve.tokenizer.worker"
MAX_BATCH = 16  # jobs that a worker gets at once, if so many wait
HANG_SECONDS = 10.0  # a worker that takes longer for a job is ended
START_SECONDS = 60.0  # to load the tokenizer

Result = TypeVar("Result")

_ENCODER = msgspec.msgpack.Encoder()
_REPLY: msgspec.msgpack.Decoder[bytes | None] = msgspec.msgpack.Decoder(bytes | None)


async def open_texts(
    tokenizer: str,
    chat_template: str | None,
    processes: int,
    on_fallback: Callable[[], None] = lambda: None,
    *,
    parsers: Parsers | None = None,
    parse_special_tokens: bool = False,
) -> Texts:
    """Text tools for an event loop, with so many worker processes or with threads only; see `load_tools` and ProcessTexts."""
    load = partial(load_tools, tokenizer, chat_template, parsers, parse_special_tokens=parse_special_tokens)
    tools = await asyncio.to_thread(load)
    if processes == 0:
        return ThreadTexts(tools)
    return ProcessTexts(tools, WorkerSpec(tokenizer, chat_template, parse_special_tokens), processes, on_fallback=on_fallback)


@dataclass(slots=True, eq=False)
class _Waiting:
    """A job, encoded, and its tokens: None once it is known that no worker gives them; and whether it renders."""

    job: msgspec.Raw
    is_long: bool
    renders: bool
    tokens: asyncio.Future[list[int] | None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    def answer(self, tokens: list[int] | None) -> None:
        if not self.tokens.done():  # else its caller went away
            self.tokens.set_result(tokens)

    def hangs(self, seconds: float) -> None:
        if self.renders and not self.tokens.done():
            self.tokens.set_exception(
                OverloadedError(f"the chat template was not done with these messages after {seconds:g} s", param="messages")
            )
        self.answer(None)


class ProcessTexts:
    """Texts in worker processes; see Texts. Belongs to the event loop that it is made in, of a main thread.

    Args:
        tools: for what workers cannot do now.
        spec: what workers load.
        on_fallback: told of each call that no worker answered.
    """

    def __init__(
        self,
        tools: TextTools,
        spec: WorkerSpec,
        processes: int,
        *,
        hang_seconds: float = HANG_SECONDS,
        on_fallback: Callable[[], None] = lambda: None,
    ) -> None:
        self._here = ThreadTexts(tools)
        self._spec = spec
        self._hang_seconds = hang_seconds
        self._on_fallback = on_fallback
        self._jobs: asyncio.PriorityQueue[tuple[bool, int, _Waiting]] = asyncio.PriorityQueue()  # what is short first
        self._numbers = itertools.count()
        self._working: set[Child] = set()
        self._keepers = [asyncio.create_task(self._keep(number)) for number in range(processes)]

    @property
    def tools(self) -> TextTools:
        return self._here.tools

    @property
    def workers(self) -> list[int]:
        """Process ids of the workers that take jobs now."""
        return [child.process.pid for child in self._working]

    async def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        tokens = await self._elsewhere(Encode(text, add_special_tokens), is_long=len(text) >= LONG)
        if tokens is None:
            self._on_fallback()
            return await self._here.encode(text, add_special_tokens=add_special_tokens)
        return tokens

    async def render(
        self, messages: Sequence[Mapping[str, Any]], arguments: Mapping[str, Any], max_bytes: int | None = None
    ) -> list[int]:
        """As TextTools.render. Raises OverloadedError, too, if a worker hangs at it."""
        job = Render([dict(message) for message in messages], dict(arguments), max_bytes)
        tokens = await self._elsewhere(job, is_long=is_long(messages))
        if tokens is None:
            self._on_fallback()
            return await self._here.render(messages, arguments, max_bytes)
        return tokens

    async def run(self, function: Callable[[], Result]) -> Result:
        return await self._here.run(function)

    async def run_long(self, function: Callable[[], Result]) -> Result:
        return await self._here.run_long(function)

    async def close(self) -> None:
        for keeper in self._keepers:
            keeper.cancel()
        await asyncio.gather(*self._keepers, return_exceptions=True)
        self._give_up()
        await self._here.close()

    async def _elsewhere(self, job: Job, *, is_long: bool) -> list[int] | None:
        """A worker's tokens; None if there is no worker, or it failed."""
        if not self._working:
            return None
        try:
            waiting = _Waiting(msgspec.Raw(_ENCODER.encode(job)), is_long, isinstance(job, Render))
        except (TypeError, UnicodeEncodeError, OverflowError):  # what no message can hold
            return None
        self._put(waiting)
        return await waiting.tokens

    def _give_up(self) -> None:
        """Whatever waits is done here."""
        while not self._jobs.empty():
            self._take().answer(None)

    def _put(self, waiting: _Waiting) -> None:
        self._jobs.put_nowait((waiting.is_long, next(self._numbers), waiting))

    def _take(self) -> _Waiting:
        return self._jobs.get_nowait()[-1]

    async def _keep(self, number: int) -> None:
        backoff = Backoff()
        while True:
            started = time.monotonic()
            try:
                child = await spawn(MODULE, _ENCODER.encode(self._spec))
                try:
                    hangs = await self._work(child)
                finally:
                    self._working.discard(child)
                    if not self._working:
                        self._give_up()
                    await child.kill()
                code = child.process.returncode or 0
                how = "killed because it did not respond in time" if hangs else describe_exit(code)
            except OSError as error:  # no memory, no process, no file descriptor left
                how = f"before it was a process: {error}"
            backoff.failed(time.monotonic() - started)
            logger.error("tokenizer process %d ended, %s; it is started again", number, how)
            await asyncio.sleep(backoff.seconds)

    async def _work(self, child: Child) -> bool:
        """Give a worker jobs until it ends or hangs. Returns whether it hangs."""
        try:
            async with asyncio.timeout(START_SECONDS):
                ready = await child.receive()
            if ready is None:
                return False
            self._working.add(child)
            ended = asyncio.ensure_future(child.process.wait())
            try:
                while (batch := await self._batch(ended)) and await self._do(child, batch):
                    pass
            finally:
                ended.cancel()
        except TimeoutError:
            return True
        return False

    async def _do(self, child: Child, batch: Sequence[_Waiting]) -> bool:
        """Have a batch done, or leave it to this process. False if the worker ended; raises TimeoutError if it hangs."""
        try:
            child.send(_ENCODER.encode([waiting.job for waiting in batch]))
            for waiting in batch:
                try:
                    async with asyncio.timeout(self._hang_seconds):
                        reply = await child.receive()
                except TimeoutError:
                    waiting.hangs(self._hang_seconds)
                    raise
                if reply is None:
                    return False
                tokens = _REPLY.decode(reply)
                waiting.answer(None if tokens is None else OwnTokenIds(array("i", tokens).tolist()))
            return True
        finally:
            for waiting in batch:
                waiting.answer(None)

    async def _batch(self, ended: asyncio.Future[int]) -> list[_Waiting]:
        """A worker's share of the jobs that wait: a long one alone, or several short ones; none once it has ended."""
        while True:
            first = await self._first(ended)
            if first is None:
                return []
            if not first.tokens.done():  # else its caller went away
                break
        batch = [first]
        share = 1 if first.is_long else min(MAX_BATCH, 1 + self._jobs.qsize() // len(self._working))
        while len(batch) < share and not self._jobs.empty():
            other = self._take()
            if other.is_long:
                self._put(other)
                break
            if not other.tokens.done():
                batch.append(other)
        return batch

    async def _first(self, ended: asyncio.Future[int]) -> _Waiting | None:
        first = asyncio.ensure_future(self._jobs.get())
        try:
            await asyncio.wait((first, ended), return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            if first.done():
                first.result()[-1].answer(None)
            raise
        finally:
            first.cancel()
        return first.result()[-1] if first.done() and not first.cancelled() else None
