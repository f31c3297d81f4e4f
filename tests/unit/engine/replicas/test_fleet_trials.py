"""A request that ends engines of a fleet is found; those that were with it in an engine go on."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from jaxserve.engine.replicas.fleet import FleetSettings
from jaxserve.engine.replicas.trials import TRIAL_TOKENS
from jaxserve.errors import EngineKilledError
from tests.unit.engine.replicas.scripted import Bench, ScriptedLink, request

pytestmark = pytest.mark.asyncio


@asynccontextmanager
async def bench(*names: str, **more: Any) -> AsyncIterator[Bench]:
    fleet = Bench(*names, **more)
    try:
        yield fleet
    finally:
        await fleet.fleet.close()


def known(link: ScriptedLink) -> set[str]:
    """Requests that an engine has, by their first names."""
    return {name.partition("~")[0] for name in link.requests}


def run(link: ScriptedLink, tokens: int = TRIAL_TOKENS) -> None:
    """Everything that an engine has gets tokens."""
    for name in list(link.requests):
        for token in range(tokens):
            link.says(name, token)


def in_engines(fleet: Bench) -> dict[str, set[str]]:
    return {name: known(link) for name, link in fleet.links.items() if link.requests}


async def test_suspects_run_apart_from_each_other_and_from_what_is_new() -> None:
    async with bench("a") as fleet:
        for name in ("r1", "r2", "r3", "r4"):
            fleet.fleet.add([request(name)])
        run(fleet.links["a"], 3)
        fleet.links["a"].dies()
        assert fleet.fleet.load().waiting == 4
        fleet.set("a", "b", "c")
        fleet.links["b"].finds()
        assert in_engines(fleet) == {"b": {"r1", "r2"}}, "a half, in the first engine that there is"
        fleet.links["c"].finds()
        for number in range(3):
            fleet.fleet.add([request(f"new{number}")])
        assert known(fleet.links["b"]) == {"r1", "r2"}
        assert known(fleet.links["c"]) == {"new0", "new1", "new2"}
        run(fleet.links["b"])
        assert known(fleet.links["b"]) == {"r1", "r2", "r3", "r4"}, "those that passed run on beside the next"
        run(fleet.links["b"])
        fleet.fleet.add([request("last")])
        assert fleet.fleet.load().waiting == 0
        assert len(fleet.heard.tokens["r4"]) == 3 + TRIAL_TOKENS


async def test_a_request_that_ends_its_engines_is_found_and_the_others_go_on() -> None:
    async with bench("a", "b") as fleet:
        names = [f"r{number}" for number in range(8)]
        for name in names:
            fleet.fleet.add([request(name)])
        poison, deaths = "r5", 0
        while poison not in fleet.heard.refused:
            for link in fleet.links.values():
                if poison in known(link):
                    deaths += 1
                    link.dies()
                    link.finds()
                else:
                    run(link)
        assert isinstance(fleet.heard.refused[poison], EngineKilledError)
        assert deaths <= 2 + 3
        for link in fleet.links.values():
            for name in list(link.requests):
                link.says(name, 1, ends=True)
        assert fleet.heard.ended.keys() == set(names) - {poison}
        assert fleet.heard.refused.keys() == {poison}


async def test_a_request_that_came_alone_ends_two_engines_and_no_third() -> None:
    async with bench("a", "b", "c") as fleet:
        fleet.fleet.add([request("r")])
        fleet.place("r").dies()
        fleet.place("r~1").dies()
        assert isinstance(fleet.heard.refused["r"], EngineKilledError)
        assert not any(link.requests for link in fleet.links.values())


async def test_a_suspect_that_is_aborted_makes_room_for_the_next() -> None:
    async with bench("a", "b") as fleet:
        fleet.set("a")
        for name in ("r1", "r2"):
            fleet.fleet.add([request(name)])
        fleet.links["a"].dies()
        fleet.links["a"].finds()
        assert known(fleet.links["a"]) == {"r1"}
        fleet.fleet.abort(["r1"])
        assert known(fleet.links["a"]) == {"r2"}
        fleet.fleet.abort(["r2"])
        fleet.fleet.add([request("new")])
        assert known(fleet.links["a"]) == {"new"}


async def test_what_hangs_an_engine_is_tried_apart_too() -> None:
    hasty = FleetSettings(hang_seconds=0.2, wait_seconds=20.0)
    async with bench("a", "b", settings=hasty) as fleet:
        for name in ("r1", "r2"):
            fleet.fleet.add([request(name)])
        fleet.set("a")
        link = fleet.links["a"]
        await fleet.until(lambda: known(link) == {"r1", "r2"} or len(known(link)) == 1)
        link.stopped = 0.0
        await fleet.until(lambda: not fleet.fleet.replicas["a"].ready)
        link.stopped = None
        await fleet.until(lambda: len(known(link)) == 1)
