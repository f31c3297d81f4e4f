"""A front end's connection, to a bare socket in an engine's place."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import zmq

from jaxserve.engine.remote.connection import BURST, Connection

PATIENCE = 10.0
MANY = 3 * BURST + 1
ARRIVAL = 0.05  # seconds in which what is sent within a machine arrives, mostly


class Peer:
    """The socket that a connection leads to, and what came out of the connection."""

    def __init__(self, address: str) -> None:
        self.context = zmq.Context()
        self.router = self.context.socket(zmq.ROUTER)
        self.router.bind(address)
        self.address = address
        self.taken: list[bytes] = []

    def greeted(self, take: Callable[[bytes], None] | None = None) -> tuple[Connection, bytes]:
        """A connection that has sent "hello", and its name."""
        connection = Connection(self.context, self.address, take or self.taken.append)
        connection.send(b"hello")
        name, content = self.router.recv_multipart()
        assert content == b"hello"
        return connection, name

    def say(self, name: bytes, count: int) -> list[bytes]:
        """Send so many messages; they arrive before anything else happens in the event loop. Returns them."""
        said = [str(number).encode() for number in range(count)]
        for content in said:
            self.router.send_multipart((name, content))
        time.sleep(ARRIVAL)
        return said


@pytest.fixture
def peer(tmp_path: Path) -> Iterator[Peer]:
    peer = Peer(f"ipc://{tmp_path}/engine")
    yield peer
    peer.context.destroy(linger=0)


async def until(done: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not done():
            await asyncio.sleep(0.001)


async def test_what_waits_is_taken_in_bursts_between_which_others_run(peer: Peer) -> None:
    turns = [0]  # messages of each turn of the event loop
    taken: list[bytes] = []

    def take(content: bytes) -> None:
        taken.append(content)
        turns[-1] += 1

    connection, name = peer.greeted(take)
    said = peer.say(name, MANY)
    async with asyncio.timeout(PATIENCE):
        while len(taken) < MANY:
            await asyncio.sleep(0)
            turns.append(0)
    assert taken == said
    assert max(turns) <= BURST
    connection.close()


async def test_a_message_that_came_before_one_is_sent_is_taken(peer: Peer) -> None:
    """Sending takes the word of it from the descriptor."""
    connection, name = peer.greeted()
    await asyncio.sleep(ARRIVAL)
    said = peer.say(name, 1)
    connection.send(b"more")
    await until(lambda: peer.taken == said)
    connection.close()


async def test_all_that_was_said_is_taken_before_the_end(peer: Peer) -> None:
    connection, name = peer.greeted()
    said = peer.say(name, MANY)
    peer.router.close()
    time.sleep(ARRIVAL)
    async with asyncio.timeout(PATIENCE):
        await connection.ended()
    assert peer.taken == said
    connection.close()


async def test_what_take_raises_ends_it(peer: Peer) -> None:
    def take(content: bytes) -> None:
        peer.taken.append(content)
        raise ValueError(content)

    connection, name = peer.greeted(take)
    peer.say(name, 2)
    with pytest.raises(ValueError, match="0"):
        async with asyncio.timeout(PATIENCE):
            await connection.ended()
    await asyncio.sleep(ARRIVAL)
    assert peer.taken == [b"0"]
    connection.close()


async def test_a_closed_one_takes_nothing_more(peer: Peer) -> None:
    connection, name = peer.greeted()
    peer.say(name, MANY)
    await until(lambda: bool(peer.taken))
    taken = len(peer.taken)
    connection.close()
    await asyncio.sleep(ARRIVAL)
    assert len(peer.taken) == taken
