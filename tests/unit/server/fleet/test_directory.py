"""The directory holds what replicas told it lately, and says when that changes."""

from __future__ import annotations

import asyncio

from server.fleet.directory import LEASE_SECONDS, Directory, Listing


class Time:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def listing(name: str, address: str = "tcp://127.0.0.1:1") -> Listing:
    return Listing(name, address, "default", 1.0)


def test_replicas_come_and_go() -> None:
    async def run() -> None:
        directory = Directory("d", Time())
        assert directory.edition().listings == ()
        directory.tell(listing("b"))
        directory.tell(listing("a"))
        first = directory.edition()
        assert [one.replica for one in first.listings] == ["a", "b"]
        directory.tell(listing("a"))
        assert directory.edition() == first  # nothing new
        directory.leave("a")
        directory.tell(listing("a"))  # a word that was on its way
        directory.leave("unknown")
        assert [one.replica for one in directory.edition().listings] == ["b"]
        directory.tell(listing("b", "tcp://127.0.0.1:2"))
        assert directory.edition().listings[0].address == "tcp://127.0.0.1:2"

    asyncio.run(run())


def test_a_silent_replica_is_struck_off() -> None:
    async def run() -> None:
        time = Time()
        directory = Directory("d", time)
        directory.tell(listing("a"))
        directory.tell(listing("b"))
        time.now += LEASE_SECONDS - 1.0
        directory.tell(listing("b"))
        time.now += 2.0
        assert [one.replica for one in directory.edition().listings] == ["b"]

    asyncio.run(run())


def test_a_new_directory_is_not_whole_before_every_replica_had_the_time_to_speak() -> None:
    async def run() -> None:
        time = Time()
        directory = Directory("d", time)
        directory.tell(listing("a"))
        before = directory.edition()
        assert not before.whole
        time.now += LEASE_SECONDS
        directory.tell(listing("a"))
        after = directory.edition()
        assert after.whole
        assert after.number != before.number  # who waits for a change hears of it
        assert Directory("e", time).edition().number != Directory("f", time).edition().number

    asyncio.run(run())


def test_a_change_wakes_all_who_wait() -> None:
    async def run() -> None:
        directory = Directory("d", Time())
        known = directory.edition().number
        waiting = [asyncio.create_task(directory.next_edition(known, 30.0)) for _ in range(3)]
        await asyncio.sleep(0)
        directory.tell(listing("a"))
        for edition in await asyncio.wait_for(asyncio.gather(*waiting), 10.0):
            assert [one.replica for one in edition.listings] == ["a"]
        same = await directory.next_edition(directory.edition().number, 0.01)
        assert same == directory.edition()

    asyncio.run(run())
