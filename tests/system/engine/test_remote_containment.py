"""One message that cannot be encoded or decoded fails its request; the connection and the other requests stay."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from jaxserve.engine.events import Finished
from jaxserve.engine.frontend import Frontend
from jaxserve.engine.remote.builders import find_builder
from jaxserve.engine.remote.codec import encode
from jaxserve.engine.remote.messages import Add
from jaxserve.engine.remote.process import EngineProcess
from jaxserve.engine.remote.reports import EngineSpec
from jaxserve.errors import ConfigError, InternalError
from jaxserve.sampling.params import SamplingParams
from jaxserve.scheduler.request import EngineRequest
from tests.support.hash_engine import BUILDER, remote_engine
from tests.support.tiny_checkpoint import write_tiny_checkpoint

LONG, SHORT = [7, 8, 9], [5, 6]


async def finished(front: Frontend, prompt: list[int], tokens: int) -> Finished:
    params = SamplingParams(max_tokens=tokens, ignore_eos=True)
    events = [event async for event in front.generate({"prompt_token_ids": prompt}, params)]
    assert isinstance(events[-1], Finished)
    return events[-1]


@pytest.mark.asyncio
@pytest.mark.parametrize("side", ["encode", "decode"])
async def test_a_request_that_cannot_be_sent_fails_alone(side: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add = Add.of

    def of(requests: list[EngineRequest]) -> Add:
        if requests[0].prompt != tuple(SHORT):
            return add(requests)
        if side == "encode":
            return add([replace(requests[0], tenant="\ud800")])
        return Add([one.id for one in requests], msgspec.Raw(encode(["no request"])))

    async with remote_engine(tokenizer=str(write_tiny_checkpoint(tmp_path / "tiny")), step_seconds=0.002) as engine:
        front = await engine.connect()
        monkeypatch.setattr(Add, "of", of)
        long = asyncio.create_task(finished(front, LONG, 100))
        with pytest.raises(InternalError, match="sending it to the engine" if side == "encode" else "decoding it"):
            await finished(front, SHORT, 4)
        assert (await long).usage.completion_tokens == 100
        stats: Any = front.stats()
        assert (stats.active, stats.rejected, stats.finished) == (0, 1, 1)
        await front.drain(0.0)


async def test_an_engine_that_cannot_listen_says_where_and_why(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    tokenizer = str(write_tiny_checkpoint(tmp_path / "tiny"))
    spec = EngineSpec(
        address=f"ipc://{tmp_path}/missing/engine", argument={"tokenizer": tokenizer}, builder=BUILDER, log_level="error"
    )
    process = await EngineProcess.start(spec)
    try:
        with pytest.raises(InternalError, match=r"cannot listen at .*/missing/engine: No such file"):
            await process.ready(lambda *_: None)
    finally:
        await process.kill()
    assert "Traceback" not in capfd.readouterr().err


def test_a_value_that_jax_refuses_when_imported_is_a_config_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "builder_with_jax.py").write_text("raise ValueError(\"invalid truth value 'maybe' for environment 'JAX_X'\")")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match="jax cannot be imported: invalid truth value 'maybe'"):
        find_builder("builder_with_jax:build")
