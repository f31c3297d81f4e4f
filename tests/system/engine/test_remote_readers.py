"""A reader that falls behind, in front of an engine in another process."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from jaxserve.engine.events import Delta
from jaxserve.engine.streams import StreamLimits
from jaxserve.sampling.params import SamplingParams
from tests.support.hash_engine import VOCAB, remote_engine
from tests.support.hash_executor import expected
from tests.support.tiny_checkpoint import write_tiny_checkpoint

PROMPT: Any = {"prompt_token_ids": [72, 101, 108]}


async def test_the_only_slot_goes_to_another_while_a_reader_is_behind(tmp_path: Path) -> None:
    argument: dict[str, Any] = {
        "tokenizer": str(write_tiny_checkpoint(tmp_path / "tiny")),
        "max_num_seqs": 1,
        "step_seconds": 0.01,
    }
    async with remote_engine(**argument) as engine:
        client = await engine.connect(limits=StreamLimits(max_tokens=160))
        slow = client.generate(PROMPT, SamplingParams(max_tokens=150, ignore_eos=True))
        events = [await anext(slow)]
        async with asyncio.timeout(20):
            other = [event async for event in client.generate(PROMPT, SamplingParams(max_tokens=5, ignore_eos=True))]
            assert client.stats().preemptions == 1, "it has not waited for the slow one's end"
            events += [event async for event in slow]
        await client.drain(0.0)
    wanted = expected(PROMPT["prompt_token_ids"], 150, vocab=VOCAB)
    for found, count in ((other, 5), (events, 150)):
        assert [token for event in found if isinstance(event, Delta) for token in event.token_ids] == wanted[:count]
