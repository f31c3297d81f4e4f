"""From events to ModelInferResponses."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

from jaxserve.engine.events import Delta, Event, Finished, PositionLogprobs, Started
from jaxserve.proto import kserve_pb2 as pb
from server.kserve.requests import OUTPUTS, VERSION, Inference
from server.kserve.tensors import numbers, texts
from server.streams import Events

FINAL = "triton_final_response"

_LEAST = -9999.0  # JSON has no -inf
_ONE_A_REQUEST = frozenset({"num_input_tokens"})


@dataclass(slots=True)
class _Sequence:
    pieces: list[str] = field(default_factory=list)  # of its text
    tokens: int = 0
    reason: str = "None"  # Triton's word for none yet
    logprobs: list[PositionLogprobs] = field(default_factory=list)
    cumulative: float = 0.0


class _Replies:
    def __init__(self, inference: Inference) -> None:
        self._inference = inference
        self._sequences = [_Sequence([inference.echo]) for _ in range(inference.job.params.n)]
        self._prompt_tokens = 0

    @property
    def finished(self) -> bool:
        return all(one.reason != "None" for one in self._sequences)

    def add(self, event: Event) -> None:
        if isinstance(event, Started):
            self._prompt_tokens = len(event.prompt_token_ids)
            return
        one = self._sequences[event.index]
        if isinstance(event, Finished):
            one.reason = event.finish_reason.value
        else:
            _extend(one, event)

    def take(self) -> pb.ModelInferResponse:
        """An answer of what came since the last one."""
        answer = pb.ModelInferResponse(model_name=self._inference.client.model.name, model_version=VERSION, id=self._inference.id)
        answer.parameters[FINAL].bool_param = self.finished
        for name in self._inference.outputs:
            size = 1 if name in _ONE_A_REQUEST else len(self._sequences)
            answer.outputs.add(name=name, datatype=OUTPUTS[name], shape=[size])
            answer.raw_output_contents.append(self._contents(name))
        for one in self._sequences:
            one.pieces, one.tokens = [], 0
            one.logprobs.clear()
        return answer

    def _contents(self, name: str) -> bytes:
        sequences = self._sequences
        if name == "text_output":
            return texts(["".join(one.pieces) for one in sequences])
        if name == "finish_reason":
            return texts([one.reason for one in sequences])
        if name == "logprobs":
            return texts([_logprobs(one.logprobs) for one in sequences])
        if name == "cumulative_logprob":
            return numbers("FP32", [max(one.cumulative, _LEAST) for one in sequences])
        if name == "num_output_tokens":
            return numbers("UINT32", [one.tokens for one in sequences])
        return numbers("UINT32", [self._prompt_tokens])


async def answers(inference: Inference, events: Events) -> AsyncGenerator[pb.ModelInferResponse, None]:
    """The answers to a request: one at the end, or if it streams one an event, of which the last has no text.

    Closing it closes the events.
    """
    building = _Replies(inference)
    async with aclosing(events):
        async for _, event in events:
            building.add(event)
            if building.finished or (inference.stream and not isinstance(event, Started)):
                yield building.take()


def _extend(one: _Sequence, event: Delta) -> None:
    one.pieces.append(event.text)
    one.tokens += len(event.token_ids)
    one.logprobs.extend(event.logprobs or ())
    one.cumulative += sum(position.chosen.logprob for position in event.logprobs or ())


def _logprobs(positions: Sequence[PositionLogprobs]) -> str:
    """A JSON list of positions, each an object from token id to what is known of it."""
    return json.dumps(
        [
            {
                token.token_id: {"logprob": max(token.logprob, _LEAST), "rank": token.rank, "decoded_token": token.text}
                for token in (position.chosen, *position.top)
            }
            for position in positions
        ]
    )
