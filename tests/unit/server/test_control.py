"""Calls and notices between supervisor and front ends, over a real socket."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from jaxserve.config.keys_file import TenantLimits
from jaxserve.errors import ConfigError, DrainingError, EngineDeadError, InternalError, JaxserveError, RateLimitError
from server.gateway.messages import Claim, Claimed, Forget, Peek, Release, Reply
from server.processes.control import Control, answer_calls, notify
from server.processes.specs import DrainServer, EngineGone, Home, Notice, Question, StartFailed

PATIENCE = 10.0


def claim(key: str) -> Claim:
    return Claim("0.0", "token", "account", "scope", key, b"\x00")


class Supervisor:
    """Answers with who asked what, and keeps what it was told."""

    def __init__(self) -> None:
        self.drained: list[str] = []
        self.failures: list[JaxserveError] = []
        self.later: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()

    def serve(self, name: str, question: Question) -> Reply | Awaitable[Reply] | None:
        if isinstance(question, Release):
            return self.later
        if isinstance(question, DrainServer):
            self.drained.append(name)
            return None
        if isinstance(question, StartFailed):
            self.failures.append(question.error)
            return None
        if isinstance(question, Peek):
            raise RateLimitError(f"{name} asked too often", param="tokens", retry_after=2.5)
        if isinstance(question, Claim):
            return Claimed("new", name + question.key)
        raise RuntimeError("a bug")


@asynccontextmanager
async def both_ends() -> AsyncIterator[tuple[Control, asyncio.StreamWriter, Supervisor, list[Notice]]]:
    supervisor, notices = Supervisor(), list[Notice]()
    ours, theirs = socket.socketpair()
    reader, writer = await asyncio.open_connection(sock=ours)
    control = Control(*await asyncio.open_connection(sock=theirs), notices.append)
    answering = asyncio.create_task(answer_calls(reader, writer, "0.0", supervisor.serve))
    try:
        async with asyncio.timeout(PATIENCE):
            yield control, writer, supervisor, notices
    finally:
        writer.close()
        await asyncio.gather(answering, control.gone())
        control._writer.close()


async def test_calls_side_by_side() -> None:
    async with both_ends() as (control, _, _, _):
        answers = await asyncio.gather(*(control.call(claim(str(number))) for number in range(100)))
        assert answers == [Claimed("new", f"0.0{number}") for number in range(100)]


async def test_errors_keep_their_class() -> None:
    async with both_ends() as (control, _, _, _):
        with pytest.raises(RateLimitError, match=r"0.0 asked too often") as refused:
            await control.call(Peek("acme", TenantLimits()))
        assert (refused.value.param, refused.value.retry_after) == ("tokens", 2.5)
        with pytest.raises(InternalError, match="a bug"):
            await control.call(Forget("0.0"))


async def test_an_answer_that_comes_later_holds_nobody_up() -> None:
    async with both_ends() as (control, _, supervisor, _):
        waiting = [asyncio.create_task(control.call(Release("token", "scope", "key"))) for _ in range(2)]
        assert await control.call(claim("1")) == Claimed("new", "0.01")
        supervisor.later.set_result(Claimed("other"))
        assert await asyncio.gather(*waiting) == [Claimed("other")] * 2
        supervisor.later = asyncio.get_running_loop().create_future()
        supervisor.later.set_exception(RateLimitError("too often", retry_after=2.5))
        with pytest.raises(RateLimitError, match="too often"):
            await control.call(Release("token", "scope", "key"))


class Nonsense(msgspec.Struct, frozen=True, tag=True):
    """Nothing that a supervisor knows."""


@pytest.mark.parametrize("question", [Nonsense(), [], b"", Claim("0.0", "token", "account", "scope", 5, b"")])  # type: ignore[arg-type]
async def test_what_is_no_question_is_refused_and_the_next_one_answered(question: Any) -> None:
    async with both_ends() as (control, _, _, _):
        with pytest.raises(InternalError, match=r"the supervisor did not understand 0.0: "):
            await control.call(question)
        assert await control.call(claim("1")) == Claimed("new", "0.01")


async def test_notices_and_words_that_need_no_answer() -> None:
    async with both_ends() as (control, writer, supervisor, notices):
        notify(writer, Home(engine="ipc://x", metrics="/m", error=EngineDeadError("lost", retry_after=1.0)))
        notify(writer, EngineGone(EngineDeadError("it is started again")))
        control.tell(DrainServer())
        assert await control.call(StartFailed(ConfigError("no such port", param="port"))) is None
        home, gone = notices
        assert isinstance(home, Home)
        assert isinstance(gone, EngineGone)
        assert (home.engine, home.metrics, gone.error.message) == ("ipc://x", "/m", "it is started again")
        assert (type(home.error), home.error and home.error.retry_after) == (EngineDeadError, 1.0)
        assert supervisor.drained == ["0.0"]
        assert [(type(error), error.param) for error in supervisor.failures] == [(ConfigError, "port")]


async def test_a_caller_that_went_away_is_passed_over() -> None:
    async with both_ends() as (control, _, _, _):
        calling = asyncio.create_task(control.call(claim("1")))
        await asyncio.sleep(0)
        calling.cancel()
        assert await control.call(claim("2")) == Claimed("new", "0.02")


async def test_without_a_supervisor_calls_end() -> None:
    async with both_ends() as (control, writer, _, _):
        calling = asyncio.create_task(control.call(claim("1")))
        await asyncio.sleep(0)
        writer.transport.abort()
        with pytest.raises(DrainingError, match="the supervisor is gone"):
            await calling
        await control.gone()
        with pytest.raises(DrainingError, match="the supervisor is gone"):
            await control.call(claim("1"))
