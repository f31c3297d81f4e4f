"""Weights that another process sends reach every engine of a fleet, or the fleet says that they did not."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from jaxserve.config.fields import CacheConfig, CompileConfig, EngineConfig, ModelConfig, SchedulerConfig
from jaxserve.engine.calls import FinishUpdate, OpenTransfer, PutPiece, StartUpdate, WeightSums, WorldSize
from jaxserve.engine.remote.reports import MODEL_BUILDER
from jaxserve.engine.replicas.fleet import FleetSettings
from jaxserve.errors import ConflictError, EngineDeadError
from jaxserve.weights.live.pieces import pieces_of
from tests.support.hash_engine import engine_fleet
from tests.support.live import random_tensors, write_checkpoint
from tests.support.tiny_checkpoint import write_tiny_checkpoint

pytestmark = pytest.mark.asyncio

PATIENT = FleetSettings(hang_seconds=60.0, wait_seconds=60.0)


async def test_all_engines_of_a_fleet_get_what_is_sent(tmp_path: Path) -> None:
    directory = write_tiny_checkpoint(tmp_path / "tiny", context=32)
    hf: dict[str, Any] = json.loads((directory / "config.json").read_text())
    write_checkpoint(directory, hf, random_tensors(hf, 1))
    config = EngineConfig(
        model=ModelConfig(model=str(directory)),
        cache=CacheConfig(page_size=4, num_pages=32),
        scheduler=SchedulerConfig(max_num_seqs=2, max_num_batched_tokens=16),
        compile=CompileConfig(before_ready="fewest"),
    )
    two = random_tensors(hf, 2)
    dtypes, shapes = [str(array.dtype) for array in two.values()], [list(array.shape) for array in two.values()]
    *most, last = pieces_of(two.items(), 4000)
    async with engine_fleet(2, PATIENT, builder=MODEL_BUILDER, **asdict(config)) as fleet:
        call = fleet.front.call
        assert await call(WorldSize()) == [1, 1]
        await call(OpenTransfer())
        await call(StartUpdate("u", list(two), dtypes, shapes))
        for piece in most:
            await call(PutPiece("u", piece))
        with pytest.raises(ConflictError, match="not all of it"):
            await call(FinishUpdate("u", 2))
        before = await call(WeightSums())
        assert before[0] == before[1]
        assert (await call(PutPiece("u", last))).version is None
        assert (await call(FinishUpdate("u", 2))).version == 2
        after = await call(WeightSums())
        assert after[0] == after[1]
        assert after[0].keys() == before[0].keys()
        assert after[0] != before[0]

        await call(StartUpdate("v", list(two), dtypes, shapes))
        await fleet.engines[0].process.kill()
        with pytest.raises(EngineDeadError):  # it was lost meanwhile, or is not there
            await call(FinishUpdate("v", 3))
        with pytest.raises(EngineDeadError, match="not all replicas are there"):
            await call(OpenTransfer())
