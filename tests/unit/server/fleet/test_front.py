"""What an ingress's process and its parent say to each other."""

from __future__ import annotations

import asyncio
import socket
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from jaxserve.children import receive_frame, send_frame
from jaxserve.errors import EngineDeadError
from server.fleet.front import FrontAsks, SharedWay, Told, ToldReplicas, decode_from_front
from server.fleet.ray_watch import RayServices
from server.gateway.messages import Share
from server.processes.specs import FleetSpec


async def test_messages_larger_than_the_sockets_buffer_arrive_whole() -> None:
    """While nobody reads, and the socket does not block: the event loop's writer keeps what does not fit."""
    here, there = socket.socketpair()
    _, writer = await asyncio.open_connection(sock=here)
    shared = SharedWay(partial(send_frame, writer))
    sent = [Share("t", "acme", "k", place, [bytes([place]) * 3_000_000]) for place in range(3)]
    asking = [asyncio.create_task(shared.ask(message)) for message in sent]
    await asyncio.sleep(0)
    parents_reader, parents_writer = await asyncio.open_connection(sock=there)
    for message in sent:
        content = await receive_frame(parents_reader)
        assert content is not None
        asked = decode_from_front(content)
        assert isinstance(asked, FrontAsks)
        assert asked.message == message
        shared.take(Told(asked.number, reply=None))
    replies = await asyncio.gather(*asking, return_exceptions=True)
    assert ["gave no answer" in str(reply) for reply in replies] == [True] * 3
    for end in (writer, parents_writer):
        end.close()
        await end.wait_closed()


@pytest.mark.parametrize("loses", ["the ingress's actor", "GCS at 127.0.0.1:1"])
async def test_an_ingress_that_lost_ray_ends_and_says_so(loses: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server.fleet.ray_watch.LOOK_SECONDS", 0.0)
    here, there = socket.socketpair()
    reader, writer = await asyncio.open_connection(sock=here)
    explained: list[tuple[str, bool]] = []
    host: Any = SimpleNamespace(explain=lambda error, final: explained.append((error.message, final)))
    ray = RayServices({} if "actor" in loses else {"GCS": "127.0.0.1:1"})
    engines = ToldReplicas(FleetSpec(routing={}, pools=[], key=""), reader, SharedWay(lambda content: None), host, ray)
    if "actor" in loses:
        there.close()
    with pytest.raises(EngineDeadError, match=f"the fleet has lost {loses}: it ends"):
        await engines.run()
    assert explained == [(f"the fleet has lost {loses}: it ends", True)]
    there.close()
    writer.close()
