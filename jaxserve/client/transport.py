"""Sends requests through another transport, again where that helps; for programs that wait in threads."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx

from jaxserve.client.delivered import AnotherAnswerError
from jaxserve.client.sending import Sending, Settings


class RetryTransport(httpx.BaseTransport):
    """A transport of httpx, or of httpx2.

    Args:
        transport: sends each request once.
        sleep: waits for so many seconds.
    """

    def __init__(self, transport: Any, settings: Settings, *, sleep: Callable[[float], None] = time.sleep) -> None:
        if settings.policy.hedge_after is not None:
            raise ValueError("hedge_after is of async_http_client: a thread that waits for an answer cannot be called back")
        self._transport = transport
        self._settings = settings
        self._sleep = sleep
        # An instance of the library's class too, which its client asserts.
        self._stream = type("ResumedStream", (_ResumedStream, settings.library.SyncByteStream), {})

    def handle_request(self, request: Any) -> Any:
        """The first answer that is not to be asked for again, or the last there was."""
        sending = Sending(request, self._settings)
        while True:
            response, failure = None, None
            try:
                response = self._transport.handle_request(sending.request)
                seconds = sending.after_answer(response)
            except self._settings.library.TransportError as error:
                failure, seconds = error, sending.after_failure(error)
            if seconds is None:
                break
            if response is not None:
                response.close()
            self._sleep(seconds)
        if failure is not None:
            raise failure
        assert response is not None
        if sending.keyed and response.status_code < 400:
            response.stream = self._stream(self, sending, response.stream)
        return response

    def resume(self, sending: Sending) -> Any:
        """The body of an answer that broke off, from its start; None if it cannot be had."""
        seconds = sending.after_break()
        while seconds is not None:
            self._sleep(seconds)
            try:
                response = self._transport.handle_request(sending.request)
            except self._settings.library.TransportError as error:
                seconds = sending.after_failure(error)
                continue
            if sending.resumes(response):
                sending.delivered.restart()
                return response.stream
            response.close()
            seconds = sending.after_answer(response)
        return None

    def close(self) -> None:
        self._transport.close()


class _ResumedStream:
    """The body of an answer; where its connection breaks, it goes on over another."""

    def __init__(self, transport: RetryTransport, sending: Sending, stream: Any) -> None:
        self._transport = transport
        self._sending = sending
        self._stream = stream

    def __iter__(self) -> Iterator[bytes]:
        while True:
            try:
                for piece in self._stream:
                    if fresh := self._sending.take(piece):
                        yield fresh
                self._sending.delivered.end()
                return
            except self._sending.broken as error:
                self._close()
                stream = self._transport.resume(self._sending)
                if stream is None:
                    raise
                self._stream, broken = stream, error
            except AnotherAnswerError as error:
                raise broken from error

    def close(self) -> None:
        self._stream.close()

    def _close(self) -> None:
        with contextlib.suppress(*self._sending.broken):
            self._stream.close()
