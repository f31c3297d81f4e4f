"""Sends requests through another transport, again where that helps; for programs on asyncio."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import httpx

from jaxserve.client.delivered import AnotherAnswerError
from jaxserve.client.policy import asks_back
from jaxserve.client.sending import Sending, Settings


class AsyncRetryTransport(httpx.AsyncBaseTransport):
    """A transport of httpx, or of httpx2.

    Args:
        transport: sends each request once.
        sleep: waits for so many seconds.
    """

    def __init__(self, transport: Any, settings: Settings, *, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        self._transport = transport
        self._settings = settings
        self._sleep = sleep
        # An instance of the library's class too, which its client asserts.
        self._stream = type("ResumedStream", (_ResumedStream, settings.library.AsyncByteStream), {})

    async def handle_async_request(self, request: Any) -> Any:
        """The first answer that is not to be asked for again, or the last there was."""
        sending = Sending(request, self._settings)
        while True:
            response, failure = None, None
            try:
                response = await self._send(sending)
                seconds = sending.after_answer(response)
            except self._settings.library.TransportError as error:
                failure, seconds = error, sending.after_failure(error)
            if seconds is None:
                break
            if response is not None:
                await response.aclose()
            await self._sleep(seconds)
        if failure is not None:
            raise failure
        assert response is not None
        if sending.keyed and response.status_code < 400:
            response.stream = self._stream(self, sending, response.stream)
        return response

    async def resume(self, sending: Sending) -> Any:
        """The body of an answer that broke off, from its start; None if it cannot be had."""
        seconds = sending.after_break()
        while seconds is not None:
            await self._sleep(seconds)
            try:
                response = await self._transport.handle_async_request(sending.request)
            except self._settings.library.TransportError as error:
                seconds = sending.after_failure(error)
                continue
            if sending.resumes(response):
                sending.delivered.restart()
                return response.stream
            await response.aclose()
            seconds = sending.after_answer(response)
        return None

    async def aclose(self) -> None:
        await self._transport.aclose()

    async def _send(self, sending: Sending) -> Any:
        """Send it once, or hedged. Then the request is the one whose answer was taken."""
        after = self._settings.policy.hedge_after
        if after is None or not sending.keyed:
            return await self._transport.handle_async_request(sending.request)
        requests = sending.twins()
        tasks = [asyncio.create_task(self._transport.handle_async_request(requests[0]))]
        try:
            await asyncio.wait(tasks, timeout=after)
            if not tasks[0].done() and self._settings.budget.take():
                tasks.append(asyncio.create_task(self._transport.handle_async_request(requests[1])))
            best = await _first_good(tasks)
        except BaseException:
            await asyncio.gather(*map(_give_up, tasks))
            raise
        await asyncio.gather(*(_give_up(task) for task in tasks if task is not best))
        sending.request = requests[tasks.index(best)]
        return best.result()


async def _first_good(tasks: list[asyncio.Task[Any]]) -> asyncio.Task[Any]:
    """The task that is first done with an answer that stands; the last one if there is none."""
    waiting = set(tasks)
    while True:
        done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            if task.exception() is None and asks_back(task.result().status_code, task.result().headers) is None:
                return task
        if not waiting:
            return done.pop()


async def _give_up(task: asyncio.Task[Any]) -> None:
    task.cancel()
    await asyncio.wait((task,))
    if not task.cancelled() and task.exception() is None:
        await task.result().aclose()


class _ResumedStream:
    """The body of an answer; where its connection breaks, it goes on over another."""

    def __init__(self, transport: AsyncRetryTransport, sending: Sending, stream: Any) -> None:
        self._transport = transport
        self._sending = sending
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while True:
            try:
                async for piece in self._stream:
                    if fresh := self._sending.take(piece):
                        yield fresh
                self._sending.delivered.end()
                return
            except self._sending.broken as error:
                await self._close()
                stream = await self._transport.resume(self._sending)
                if stream is None:
                    raise
                self._stream, broken = stream, error
            except AnotherAnswerError as error:
                raise broken from error

    async def aclose(self) -> None:
        await self._stream.aclose()

    async def _close(self) -> None:
        with contextlib.suppress(*self._sending.broken):
            await self._stream.aclose()
