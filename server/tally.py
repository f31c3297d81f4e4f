"""Tokens of a request as its events pass."""

from __future__ import annotations

from dataclasses import dataclass

from jaxserve.engine.events import Delta, Event, Started
from server.events import ReadDelta


@dataclass(slots=True)
class Tally:
    """Token counts of one prompt or of several so far. A prompt counts once, however many sequences it has.

    Attributes:
        prompt, cached, completion: tokens of prompts, those of them that were in the prefix cache, tokens of outputs.
        reasoning: of those of outputs, what was thinking, where they were read for it.
        finished: sequences that ended.
        resumed: times that one of them went on in another engine.
    """

    prompt: int = 0
    cached: int = 0
    completion: int = 0
    reasoning: int = 0
    finished: int = 0
    resumed: int = 0

    def add(self, event: Event) -> None:
        if isinstance(event, Delta):
            self.completion += len(event.token_ids)
            if isinstance(event, ReadDelta):
                self.reasoning += event.reasoning_tokens
        elif isinstance(event, Started):
            self.prompt += len(event.prompt_token_ids)
            self.cached += event.cached_tokens
        else:
            self.finished += 1
            self.resumed += event.resumed
