"""Lines of one batch that name several models."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from jaxserve.jobs.answers import Answer
from jaxserve.jobs.lines import Line
from server.batches.by_model import ByModel


@dataclass
class Named:
    """Answers with its name."""

    name: str
    told: list[str] = field(default_factory=list)

    async def answer(self, line: Line) -> Answer:
        return Answer(200, self.name, {})

    def committed(self) -> None:
        self.told.append("committed")

    def ended(self) -> None:
        self.told.append("ended")


@pytest.mark.parametrize(
    ("body", "answers"),
    [
        ({"model": "b"}, "second"),
        ({"model": "c"}, "second"),
        ({"model": "a"}, "first"),
        ({}, "first"),
        ({"model": ["b"]}, "first"),
    ],
)
async def test_a_line_is_answered_for_the_model_that_it_names(body: dict[str, Any], answers: str) -> None:
    first, second = Named("first"), Named("second")
    both = ByModel({("a",): first, ("b", "c"): second})
    assert await both.answer(Line(1, "r", "/v1/completions", body)) == Answer(200, answers, {})
    both.committed()
    both.ended()
    assert first.told == second.told == ["committed", "ended"]
