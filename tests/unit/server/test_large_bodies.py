"""Large bodies are read one after another, and others have the event loop for as long in between."""

import asyncio
import time
from itertools import pairwise

import pytest

from server.http.strict_json import LARGE, LargeBodies

READING = 0.02  # seconds


@pytest.mark.parametrize(("size", "share"), [(LARGE, 0.5), (LARGE - 1, 0.0)])
async def test_others_have_the_loop_for_as_long_as_it_was_held(size: int, share: float) -> None:
    bodies, held = LargeBodies(), []

    async def read() -> None:
        await bodies.turn(size)
        began = time.perf_counter()
        time.sleep(READING)
        held.append((began, time.perf_counter()))
        await asyncio.sleep(0)

    await asyncio.gather(*(read() for _ in range(5)))
    held.sort()
    free = [after - before for (_, before), (after, _) in pairwise(held)]
    assert len(held) == 5
    assert (min(free) >= READING / 2) == (share > 0), "the clock of a loop is coarse"


async def test_a_client_that_goes_while_it_waits_keeps_nobody() -> None:
    bodies = LargeBodies()
    await bodies.turn(LARGE)
    gone = asyncio.create_task(bodies.turn(LARGE))
    await asyncio.sleep(0)
    gone.cancel()
    await asyncio.gather(gone, return_exceptions=True)
    assert gone.done()
    await asyncio.wait_for(bodies.turn(LARGE), 5)  # raises TimeoutError if the one that went has the turn for ever
