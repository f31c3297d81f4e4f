"""An engine of a tiny model whose loop runs in a thread, as a server's does, and what its calls are answered."""

from __future__ import annotations

import queue
from functools import partial
from typing import Any

from jaxserve import SamplingParams
from jaxserve.engine.calls import AnyCall, run_call
from jaxserve.engine.loop import EngineLoop, TurnOutcome
from jaxserve.engine.remote.codec import decoder, encode
from jaxserve.scheduler.request import Update
from tests.support.rollouts import PROMPTS, engine

PATIENCE = 60.0


class Driven:
    """An engine that its loop drives, and what came of its turns."""

    def __init__(self) -> None:
        self.llm = engine("qwen3", 1)
        self.built = self.llm._built
        self.said: queue.Queue[TurnOutcome] = queue.Queue()
        self.loop = EngineLoop(self.built.core, self._said, print)
        self.loop.start()

    def _said(self, outcomes: list[TurnOutcome]) -> None:
        for outcome in outcomes:
            self.said.put(outcome)

    def call(self, call: AnyCall) -> Any:
        sent = decoder(AnyCall).decode(encode(call))  # type: ignore[arg-type]  # a union is a type, too
        return self.loop.call(partial(run_call, call=sent)).result(PATIENCE)

    def add(self, max_tokens: int) -> str:
        params = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
        requests = self.built.intake.prepare(PROMPTS[0], params, "r", self.built.clock.now())
        self.loop.add(requests)
        return requests[0].id

    def finish(self) -> list[Update]:
        """Updates up to the end of the only request."""
        updates: list[Update] = []
        while not updates or (updates[-1].finish_reason is None and updates[-1].error is None):
            outcome = self.said.get(timeout=PATIENCE)
            assert isinstance(outcome, Update)
            updates.append(outcome)
        return updates
