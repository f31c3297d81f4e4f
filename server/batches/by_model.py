"""Lines of a batch that name their models: each is answered by what answers for its own."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from jaxserve.jobs.answers import Answer, NoAnswer
from jaxserve.jobs.lines import Line
from server.batches.answers import LineAnswerer


@dataclass(frozen=True, slots=True)
class ByModel:
    """See LineAnswerer.

    Attributes:
        answerers: by the names of their models. What names no model, or none of them, goes to the first, which refuses it if
            it must.
    """

    answerers: Mapping[Collection[str], LineAnswerer]

    async def answer(self, line: Line) -> Answer | NoAnswer:
        asked = line.body.get("model")
        first = next(iter(self.answerers.values()))
        return await next((one for names, one in self.answerers.items() if asked in names), first).answer(line)

    def committed(self) -> None:
        for one in self.answerers.values():
            one.committed()

    def ended(self) -> None:
        for one in self.answerers.values():
            one.ended()
