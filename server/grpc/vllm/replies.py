"""From events to vLLM's GenerateResponses."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial

from jaxserve.engine.client import EngineClient
from jaxserve.engine.events import Delta, Finished, PositionLogprobs, Started
from jaxserve.proto import vllm_engine_pb2 as pb
from server.streams import Events


@dataclass(slots=True)
class _Sequence:
    """What is not told yet of one sequence."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[PositionLogprobs] = field(default_factory=list)
    opened: bool = False  # whether its log-probabilities of the prompt were told


async def responses(
    client: EngineClient, events: Events, sequences: int, *, stream: bool
) -> AsyncGenerator[pb.GenerateResponse, None]:
    """One Complete a sequence with all of it; with `stream` a chunk for each event before it, and less in it.

    Closing it closes the events.
    """
    open_sequences = [_Sequence() for _ in range(sequences)]
    async with aclosing(events):
        async for _, event in events:
            if isinstance(event, Started):
                started = event
                continue
            one = open_sequences[event.index]
            if isinstance(event, Finished):
                complete = partial(_complete, one, started, event)
                long = started.prompt_logprobs is not None or bool(one.logprobs)
                yield pb.GenerateResponse(complete=await client.run_long(complete) if long else complete())
                continue
            one.tokens.extend(event.token_ids)
            one.logprobs.extend(event.logprobs or ())
            if stream:
                chunk = partial(_chunk, one, started, event)
                long = started.prompt_logprobs is not None and not one.opened
                yield pb.GenerateResponse(chunk=await client.run_long(chunk) if long else chunk())
                one.tokens.clear()
                one.logprobs.clear()


def _chunk(one: _Sequence, started: Started, event: Delta) -> pb.GenerateStreamChunk:
    return pb.GenerateStreamChunk(
        token_ids=one.tokens,
        prompt_tokens=len(started.prompt_token_ids),
        completion_tokens=len(one.tokens),
        cached_tokens=started.cached_tokens,
        output_logprobs=_output_logprobs(one.logprobs),
        input_logprobs=_input_logprobs(one, started),
        index=event.index,
    )


def _complete(one: _Sequence, started: Started, event: Finished) -> pb.GenerateComplete:
    message = pb.GenerateComplete(
        output_ids=one.tokens,
        finish_reason=event.finish_reason.value,
        prompt_tokens=len(started.prompt_token_ids),
        completion_tokens=event.usage.completion_tokens,
        cached_tokens=started.cached_tokens,
        output_logprobs=_output_logprobs(one.logprobs),
        input_logprobs=_input_logprobs(one, started),
        index=event.index,
    )
    if isinstance(event.matched, str):
        message.matched_stop_str = event.matched
    elif event.matched is not None:
        message.matched_token_id = event.matched
    return message


def _output_logprobs(positions: Sequence[PositionLogprobs]) -> pb.OutputLogProbs | None:
    if not positions:
        return None
    return pb.OutputLogProbs(
        token_logprobs=[position.chosen.logprob for position in positions],
        token_ids=[position.chosen.token_id for position in positions],
        top_logprobs=_top(positions),
    )


def _input_logprobs(one: _Sequence, started: Started) -> pb.InputLogProbs | None:
    """The prompt's, once a sequence."""
    if started.prompt_logprobs is None or one.opened:
        return None
    one.opened = True
    positions = started.prompt_logprobs
    return pb.InputLogProbs(
        token_logprobs=[pb.InputTokenLogProb(value=None if at is None else at.chosen.logprob) for at in positions],
        token_ids=started.prompt_token_ids,
        top_logprobs=_top(positions),
    )


def _top(positions: Iterable[PositionLogprobs | None]) -> list[pb.TopLogProbs]:
    """Alternatives at each position: none at the prompt's first, nor where none were asked for."""
    return [
        pb.TopLogProbs()
        if position is None
        else pb.TopLogProbs(
            values=[token.logprob for token in position.top], token_ids=[token.token_id for token in position.top]
        )
        for position in positions
    ]
