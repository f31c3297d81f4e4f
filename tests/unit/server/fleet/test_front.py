"""What an ingress's process and its parent say to each other."""

from __future__ import annotations

import asyncio
import socket
from functools import partial

from jaxserve.children import receive_frame, send_frame
from server.fleet.front import FrontAsks, SharedWay, Told, decode_from_front
from server.gateway.messages import Share


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
