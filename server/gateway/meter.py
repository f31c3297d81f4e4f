"""Counts the tokens of a job as they are delivered, for the bill."""

from __future__ import annotations

from collections.abc import Callable

from jaxserve.engine.events import Delta, Event, Finished, Started
from server.gateway.usage import UsageEvent

_Place = tuple[int, int]  # prompt and sequence


class Meter:
    """What one job delivers.

    Events pass on their way to the transport. When the transport has taken what was made of them, `handed` counts them as
    delivered. What is still on its way when a stream breaks off was not delivered.

    Args:
        new_event: an empty usage event for a prompt and a sequence.
    """

    def __init__(self, new_event: Callable[[int, int], UsageEvent], write: Callable[[UsageEvent], None]) -> None:
        self._new_event = new_event
        self._write = write
        self._on_its_way: dict[_Place, UsageEvent] = {}
        self._open: set[_Place] = set()

    def passed(self, prompt: int, event: Event, sequences: int) -> None:
        """An event of a prompt, which has so many sequences, is on its way."""
        if isinstance(event, Started):
            self._open.update((prompt, index) for index in range(sequences))
            usage = self._new_event(prompt, 0)
            # The prompt is paid for whether or not anything made of it is delivered: it is computed.
            usage.prompt_tokens, usage.cached_tokens = len(event.prompt_token_ids), event.cached_tokens
            self._write(usage)
            return
        place = (prompt, event.index)
        known = self._on_its_way.get(place)
        if known is None:
            known = self._on_its_way[place] = self._new_event(*place)
        if isinstance(event, Delta):
            known.completion_tokens += len(event.token_ids)
        elif isinstance(event, Finished):
            known.final, known.reason = True, event.finish_reason.value

    def handed(self) -> None:
        for place, usage in self._on_its_way.items():
            if usage.final:
                self._open.discard(place)
            self._write(usage)
        self._on_its_way.clear()

    def broke_off(self) -> None:
        self._on_its_way.clear()

    def close(self, reason: str) -> None:
        """The call is over: sequences whose end was not delivered have ended for this reason."""
        for place in sorted(self._open):
            usage = self._new_event(*place)
            usage.final, usage.reason = True, reason
            self._write(usage)
        self._on_its_way.clear()
        self._open.clear()
