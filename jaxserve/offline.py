"""Requests of a call of the offline API: driven by its thread, turn by turn, until all have their outputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from jaxserve.engine.build import BuiltEngine
from jaxserve.engine.events import Delta, Event, Finished, PositionLogprobs, Started
from jaxserve.engine.interrupts import HeldInterrupts
from jaxserve.engine.outputs import RequestOutputs
from jaxserve.engine.pooled import PooledOutputs
from jaxserve.engine.routed_experts import RoutedExperts
from jaxserve.engine.turns import Turns
from jaxserve.errors import CancelledRequestError, InvalidRequestError, RefusedError
from jaxserve.jax_settings import caller_settings, engine_settings
from jaxserve.outputs import CompletionOutput, PoolingOutput, PoolingRequestOutput, RequestOutput, logprob_dict
from jaxserve.pooling.params import PoolingParams
from jaxserve.sampling.params import SamplingParams
from jaxserve.scheduler.request import EngineRequest
from jaxserve.terminal.progress_bar import UseTqdm, progress_bar
from jaxserve.types import Prompt, RequestOptions

OnOutput = Callable[[Any], None]
Setting = TypeVar("Setting", SamplingParams, PoolingParams, RequestOptions)


class OfflineRequest(Protocol):
    """One request of a call.

    Attributes:
        engine_requests: its sequences.
        outputs: what makes events of the engine's updates.
        output: what the caller gets, once the request is done.
    """

    engine_requests: list[EngineRequest]
    output: Any

    @property
    def outputs(self) -> RequestOutputs | PooledOutputs: ...

    def take(self, event: Event) -> None:
        """Keep what an event brings."""
        ...

    def end(self, routed: RoutedExperts | None) -> int:
        """There is no more to come: make `output`, and say how many tokens were generated."""
        ...


@dataclass(slots=True)
class Collected:
    """What came of one sequence."""

    text: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[PositionLogprobs] = field(default_factory=list)
    finished: Finished | None = None


@dataclass(slots=True)
class TextRequest:
    """A prompt to generate for; see OfflineRequest."""

    prompt: Prompt
    params: SamplingParams
    engine_requests: list[EngineRequest]
    outputs: RequestOutputs
    sequences: list[Collected]
    started: Started | None = None
    output: RequestOutput | None = None

    def take(self, event: Event) -> None:
        if isinstance(event, Started):
            self.started = event
            return
        sequence = self.sequences[event.index]
        if isinstance(event, Finished):
            sequence.finished = event
            return
        assert isinstance(event, Delta)
        sequence.text.append(event.text)
        sequence.token_ids += event.token_ids
        sequence.logprobs += event.logprobs or ()

    def end(self, routed: RoutedExperts | None) -> int:
        self.output = _output(self, routed)
        self.sequences.clear()  # whoever is told may keep less of it than we would
        return sum(len(one.token_ids) for one in self.output.outputs)


@dataclass(slots=True)
class PooledRequest:
    """A prompt to pool; see OfflineRequest."""

    engine_requests: list[EngineRequest]
    outputs: PooledOutputs
    finished: Finished | None = None
    output: PoolingRequestOutput[PoolingOutput] | None = None

    def take(self, event: Event) -> None:
        if isinstance(event, Finished):
            self.finished = event

    def end(self, routed: RoutedExperts | None) -> int:
        finished, error = self.finished, self.outputs.error
        pooled = None if finished is None else finished.pooled
        if pooled is None and error is None:
            error = CancelledRequestError("the request was aborted")
        self.output = PoolingRequestOutput(
            request_id=self.outputs.request_id,
            outputs=None if pooled is None else PoolingOutput(pooled),
            prompt_token_ids=list(self.engine_requests[0].prompt),
            num_cached_tokens=0 if finished is None else finished.usage.cached_tokens,
            error=error,
        )
        return 0


def for_each(count: int, given: Setting | Sequence[Setting] | None, default: Setting, name: str) -> list[Setting]:
    """What each of so many prompts gets. Raises InvalidRequestError."""
    if given is None:
        return [default] * count
    if isinstance(given, SamplingParams | PoolingParams | RequestOptions):
        return [given] * count
    listed = list(given)
    if len(listed) != count:
        raise InvalidRequestError(f"{len(listed)} {name} for {count} prompts", param=name)
    return listed


def prepare_text(
    built: BuiltEngine, prompts: Sequence[Prompt], params: Sequence[SamplingParams], options: Sequence[RequestOptions]
) -> list[TextRequest]:
    """The requests of a call. Raises as Intake.prepare."""
    now, requests = built.clock.now(), []
    for index, (prompt, wanted, option) in enumerate(zip(prompts, params, options, strict=True)):
        sequences = built.intake.prepare(prompt, wanted, str(index), now, option)
        outputs = RequestOutputs(str(index), sequences, built.tokenizer, built.clock)
        requests.append(TextRequest(prompt, wanted, sequences, outputs, [Collected() for _ in sequences]))
    return requests


@engine_settings()
def drive(
    built: BuiltEngine,
    turns: Turns,
    requests: Sequence[OfflineRequest],
    use_tqdm: UseTqdm,
    on_output: OnOutput | None = None,
) -> None:
    """Run requests to their ends, whose outputs then are there; see LLM.generate."""
    by_sequence = {sequence: request for request in requests for sequence in request.outputs.ids}
    core, pending = built.core, list(requests[::-1])
    bars = progress_bar(use_tqdm, len(requests), built.clock)
    with bars as bar, turns.driven(), HeldInterrupts() as interrupts:

        def ended(request: OfflineRequest) -> None:
            if request.output is not None:  # updates of a sequence that ended may still come
                return
            generated = request.end(built.routed)
            bar.ended(len(request.engine_requests[0].prompt), generated)
            if on_output is not None:
                with caller_settings():
                    on_output(request.output)

        try:
            while pending or core.has_work:
                while pending and core.scheduler.has_room(pending[-1].engine_requests):
                    _add(built, pending.pop(), ended)
                _turn(built, by_sequence, ended)
                bar.turned()
                turns.serve()
                interrupts.release()
        finally:
            core.abort(by_sequence)  # nothing is left of a call that was interrupted
            if built.routed is not None:
                built.routed.drop()
            core.give_up_waiting()


def _add(built: BuiltEngine, request: OfflineRequest, ended: Callable[[OfflineRequest], None]) -> None:
    try:
        built.core.add(request.engine_requests)
    except RefusedError as error:
        request.outputs.fail(error)
        ended(request)


def _turn(built: BuiltEngine, by_sequence: Mapping[str, OfflineRequest], ended: Callable[[OfflineRequest], None]) -> None:
    for update in built.core.step():
        request = by_sequence.get(update.id)
        if request is None:
            continue
        pushed = request.outputs.push(update)
        built.core.abort(pushed.end)
        for event in pushed.events:
            request.take(event)
        if request.outputs.done:
            ended(request)
    built.core.tell()


def _output(request: TextRequest, routed: RoutedExperts | None) -> RequestOutput:
    started, error = request.started, request.outputs.error
    assert started is not None or error is not None, "every request starts or fails"
    text = request.prompt if isinstance(request.prompt, str) else request.prompt.get("prompt")
    scores = started.prompt_logprobs if started is not None else None
    return RequestOutput(
        request_id=request.outputs.request_id,
        prompt=text if isinstance(text, str) else None,
        prompt_token_ids=list(request.engine_requests[0].prompt),
        prompt_logprobs=None if scores is None else [None if score is None else logprob_dict(score) for score in scores],
        outputs=[_completion(index, sequence, request, routed) for index, sequence in enumerate(request.sequences)],
        num_cached_tokens=started.cached_tokens if started is not None else 0,
        error=error,
    )


def _completion(index: int, sequence: Collected, request: TextRequest, routed: RoutedExperts | None) -> CompletionOutput:
    finished = sequence.finished
    assert finished is not None or request.outputs.error is not None, "every sequence finishes or fails"
    wanted, name = request.params.logprobs is not None, request.engine_requests[index].id
    computed = len(request.engine_requests[index].prompt) + len(sequence.token_ids) - 1
    return CompletionOutput(
        index=index,
        text="".join(sequence.text),
        token_ids=sequence.token_ids,
        cumulative_logprob=sum(position.chosen.logprob for position in sequence.logprobs) if wanted else None,
        logprobs=[logprob_dict(position) for position in sequence.logprobs] if wanted else None,
        finish_reason=str(finished.finish_reason) if finished is not None else "error",
        stop_reason=finished.matched if finished is not None else None,
        seed=request.engine_requests[index].seed,
        num_given_tokens=len(request.engine_requests[index].output),
        weight_versions=None if finished is None or finished.weight_versions is None else list(finished.weight_versions),
        routed_experts=None if routed is None else routed.take(name, computed),
    )
