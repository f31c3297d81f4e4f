"""Clients of a soaked server: HTTP, gRPC, and those who leave in mid-stream. What goes wrong is kept, not raised."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import grpc

from benchmarks.load.schedule import LEFT, Ask, Kind
from jaxserve.load.connection import Connections
from jaxserve.proto import inference_pb2 as pb

PATIENCE_SECONDS = 120.0
_CHANNELS = 4
_GENERATE = "/jaxserve.v1.Inference/Generate"  # messages stay bytes
_PIECES_BEFORE_LEAVING = 2
_EVENT, _ERROR, _END = b"data: ", b'data: {"error"', b"[DONE]"
_CODE = re.compile(rb'"code":\s*"(\w+)"')


@dataclass(slots=True)
class Answer:
    """What became of a request. Times are seconds of `time.perf_counter`.

    Attributes:
        ask: what was asked.
        due: when it should have been sent.
        pieces: when each piece of text came.
        ended: when it was over; 0 while it is not.
        error: what went wrong: the status and the server's code, or what the network said; empty if nothing did.
        left: whether its client went away, as it was to.
    """

    ask: Ask
    due: float
    pieces: list[float] = field(default_factory=list)
    ended: float = 0.0
    error: str = ""
    left: bool = False

    @property
    def ttft(self) -> float | None:
        """Seconds from when it was due to the first piece; None where pieces do not come as they are made."""
        return self.pieces[0] - self.due if self.pieces and self.ask.kind is not Kind.WHOLE else None

    @property
    def gaps(self) -> list[float]:
        """Seconds between pieces; none of several sequences, whose pieces come beside each other."""
        if self.ask.kind in (Kind.WHOLE, Kind.SEVERAL):
            return []
        return [later - earlier for earlier, later in zip(self.pieces, self.pieces[1:], strict=False)]


_FORM = "[ a-zA-F]{512,}"  # longer than any output


class Left(Exception):
    """The client goes away."""


class Clients:
    """Send requests to one server.

    Args:
        http: its base URL.
        address: host and port of its gRPC.
        model: as it calls it.
    """

    def __init__(self, http: str, address: str, model: str) -> None:
        self._connections = Connections(http)
        options = [("grpc.use_local_subchannel_pool", 1)]
        self._channels = [grpc.aio.insecure_channel(address, options=options) for _ in range(_CHANNELS)]
        self._generates = [channel.unary_stream(_GENERATE, None, None) for channel in self._channels]
        self._model = model

    async def send(self, answer: Answer, prompt: list[int]) -> None:
        """Send a request and fill in what becomes of it."""
        one = self._grpc if answer.ask.kind in (Kind.GRPC, Kind.GRPC_LEFT) else self._http
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                await self._until_left(one, answer, prompt)
        except Left:
            answer.left = True
        except TimeoutError:
            answer.error = "client_timeout"
        except grpc.aio.AioRpcError as error:
            answer.error = f"grpc {error.code().name}"
        except OSError as error:
            answer.error = f"network: {error}"
        answer.ended = time.perf_counter()

    async def close(self) -> None:
        """Close the connections."""
        self._connections.close()
        for channel in self._channels:
            await channel.close(None)

    async def _until_left(
        self, one: Callable[[Answer, list[int], asyncio.Event], Awaitable[None]], answer: Answer, prompt: list[int]
    ) -> None:
        """Raises Left when it is a request whose client goes away, and has seen enough."""
        enough = asyncio.Event()
        exchange = asyncio.ensure_future(one(answer, prompt, enough))
        if answer.ask.kind not in LEFT:
            await exchange
            return
        leaving = asyncio.ensure_future(enough.wait())
        try:
            await asyncio.wait((exchange, leaving), return_when=asyncio.FIRST_COMPLETED)
            if not exchange.done():
                raise Left
            exchange.result()
        finally:
            leaving.cancel()
            exchange.cancel()
            await asyncio.gather(leaving, exchange, return_exceptions=True)

    def _came(self, answer: Answer, when: float, enough: asyncio.Event) -> None:
        answer.pieces.append(when)
        if len(answer.pieces) >= _PIECES_BEFORE_LEAVING:
            enough.set()

    async def _http(self, answer: Answer, prompt: list[int], enough: asyncio.Event) -> None:
        ask, body = answer.ask, bytearray()
        stream = ask.kind is not Kind.WHOLE
        asked: dict[str, Any] = {
            "model": self._model,
            "prompt": prompt,
            "max_tokens": ask.output,
            "ignore_eos": True,
            "n": ask.sequences,
            "temperature": 0.8 if ask.sequences > 1 else 0.0,
            "stream": stream,
            "service_class": str(ask.service_class),
        }

        if ask.kind is Kind.FORM:
            asked |= {"regex": _FORM, "temperature": 0.8}

        def came(piece: bytes, when: float) -> None:
            body.extend(piece)
            if _EVENT in piece or not stream:
                self._came(answer, when, enough)

        headers = {"Content-Type": "application/json", "X-Tenant": ask.tenant}
        reply = await self._connections.exchange("POST", "/v1/completions", headers, json.dumps(asked).encode(), came)
        whole = bytes(body)
        if reply.status != 200:
            answer.pieces.clear()
            answer.error = f"{reply.status} {code(whole)}"
        elif stream and _ERROR in whole:
            answer.error = f"stream {code(whole)}"
        elif stream and not whole.rstrip().endswith(_END):
            answer.error = "cut off"

    async def _grpc(self, answer: Answer, prompt: list[int], enough: asyncio.Event) -> None:
        ask = answer.ask
        request = pb.GenerateRequest(
            tokens=pb.TokenIds(ids=prompt),
            sampling=pb.Sampling(temperature=0.0),
            stopping=pb.Stopping(max_tokens=ask.output, ignore_eos=True),
            service_class=str(ask.service_class),
        )
        call = self._generates[ask.number % _CHANNELS](request.SerializeToString(), metadata=(("x-tenant", ask.tenant),))
        try:
            async for message in call:
                if pb.GenerateEvent.FromString(message).HasField("delta"):
                    self._came(answer, time.perf_counter(), enough)
        finally:
            call.cancel()


def code(body: bytes) -> str:
    """The code of the error that a body ends with; empty if it tells none."""
    found = _CODE.findall(body)
    return found[-1].decode() if found else ""
