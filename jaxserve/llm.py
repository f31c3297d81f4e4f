"""LLM: offline inference in this process, with vLLM's names and shapes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from jaxserve.clock import RealClock
from jaxserve.config.fields import EngineConfig
from jaxserve.engine.build import EngineReport, build_engine
from jaxserve.engine.events import Delta, Event, Finished, PositionLogprobs, Started
from jaxserve.engine.interrupts import HeldInterrupts
from jaxserve.engine.outputs import RequestOutputs
from jaxserve.errors import CheckpointError, InvalidRequestError
from jaxserve.executor.programs import Progress
from jaxserve.outputs import CompletionOutput, RequestOutput, logprob_dict
from jaxserve.sampling.params import SamplingParams
from jaxserve.tokenizer.base import Tokenizer
from jaxserve.types import ChatMessage, Prompt


@dataclass(slots=True)
class _Collected:
    """Events of one sequence, gathered."""

    text: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[PositionLogprobs] = field(default_factory=list)
    finished: Finished | None = None


@dataclass(slots=True)
class _Request:
    """One request of a call."""

    prompt: Prompt
    params: SamplingParams
    outputs: RequestOutputs
    started: Started | None = None
    sequences: list[_Collected] = field(default_factory=list)


class LLM:
    """A model, ready to generate.

    Args:
        model: checkpoint directory, or "pico" for the bundled model.
        progress: told about loading and compiling: (what, done, of how many).
        **settings: any field of EngineConfig's parts, such as `dtype="float32"`,
            `tensor_parallel_size=1`, `max_model_len=2048`, `max_num_seqs=32`.

    Raises ConfigError for an unknown or impossible setting, CheckpointError or UnsupportedModelError for the model.
    """

    def __init__(self, model: str = "pico", *, progress: Progress | None = None, **settings: Any) -> None:
        config = EngineConfig.from_settings({"model": model, **settings})
        self._built = build_engine(config, strict_length=False, clock=RealClock(), progress=progress or _silent)

    @property
    def report(self) -> EngineReport:
        """What was built: model, memory, buckets."""
        return self._built.report

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer. Raises CheckpointError if the checkpoint has none."""
        if self._built.tokenizer is None:
            raise CheckpointError("the checkpoint has no tokenizer; name one with tokenizer=")
        return self._built.tokenizer

    def generate(
        self, prompts: Prompt | Sequence[Prompt], sampling_params: SamplingParams | Sequence[SamplingParams] | None = None
    ) -> list[RequestOutput]:
        """Generate for every prompt; outputs come in the prompts' order.

        Args:
            prompts: a string, {"prompt": str}, {"prompt_token_ids": [...]}, or a list of these.
            sampling_params: one for all, one a prompt, or None for the defaults.

        Raises InvalidRequestError or ContextLengthError, before anything runs, if a prompt or parameter is unfit, and
        EngineDeadError after a step failed.
        """
        listed: list[Prompt] = [prompts] if isinstance(prompts, str | dict) else list(prompts)
        params = _params_for(len(listed), sampling_params)
        core, intake = self._built.core, self._built.intake
        now = self._built.clock.now()
        prepared = [intake.prepare(*item, str(index), now) for index, item in enumerate(zip(listed, params, strict=True))]
        requests: list[_Request] = []
        by_sequence: dict[str, _Request] = {}
        for index, sequences in enumerate(prepared):
            outputs = RequestOutputs(str(index), sequences, self._built.tokenizer, self._built.clock)
            request = _Request(listed[index], params[index], outputs, sequences=[_Collected() for _ in sequences])
            requests.append(request)
            by_sequence.update((sequence.id, request) for sequence in sequences)
        pending = prepared[::-1]
        with HeldInterrupts() as interrupts:
            try:
                while pending or core.has_work:
                    while pending and core.scheduler.has_room(len(pending[-1])):
                        core.add(pending.pop())
                    self._turn(by_sequence)
                    interrupts.release()
            finally:
                core.abort(by_sequence)  # nothing is left of a call that was interrupted
        return [_output(request) for request in requests]

    def chat(
        self,
        messages: Sequence[ChatMessage] | Sequence[Sequence[ChatMessage]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[RequestOutput]:
        """Answer one conversation or a list of them through the model's chat template."""
        template = self._built.chat_template
        if template is None:
            raise InvalidRequestError("the model has no chat template", param="messages")
        conversations: Any = messages if messages and not isinstance(messages[0], Mapping) else [messages]
        prompts: list[Prompt] = []
        for conversation in conversations:
            text = template.render(
                conversation,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=continue_final_message,
                arguments=chat_template_kwargs or {},
            )
            prompts.append({"prompt_token_ids": self.tokenizer.encode(text, add_special_tokens=False)})
        return self.generate(prompts, sampling_params)

    def _turn(self, by_sequence: Mapping[str, _Request]) -> None:
        """One step of the engine."""
        for update in self._built.core.step():
            request = by_sequence.get(update.id)
            if request is None:
                continue
            pushed = request.outputs.push(update)
            self._built.core.abort(pushed.end)
            for event in pushed.events:
                _collect(request, event)


def _collect(request: _Request, event: Event) -> None:
    if isinstance(event, Started):
        request.started = event
        return
    sequence = request.sequences[event.index]
    if isinstance(event, Finished):
        sequence.finished = event
        return
    assert isinstance(event, Delta)
    sequence.text.append(event.text)
    sequence.token_ids += event.token_ids
    sequence.logprobs += event.logprobs or ()


def _output(request: _Request) -> RequestOutput:
    started = request.started
    assert started is not None, "every request starts"
    text = request.prompt if isinstance(request.prompt, str) else request.prompt.get("prompt")
    scores = started.prompt_logprobs
    return RequestOutput(
        request_id=started.request_id,
        prompt=text if isinstance(text, str) else None,
        prompt_token_ids=list(started.prompt_token_ids),
        prompt_logprobs=None if scores is None else [None if score is None else logprob_dict(score) for score in scores],
        outputs=[_completion(index, sequence, request.params) for index, sequence in enumerate(request.sequences)],
        num_cached_tokens=started.cached_tokens,
    )


def _completion(index: int, sequence: _Collected, params: SamplingParams) -> CompletionOutput:
    finished = sequence.finished
    assert finished is not None, "every sequence finishes"
    wanted = params.logprobs is not None
    return CompletionOutput(
        index=index,
        text="".join(sequence.text),
        token_ids=sequence.token_ids,
        cumulative_logprob=sum(position.chosen.logprob for position in sequence.logprobs) if wanted else None,
        logprobs=[logprob_dict(position) for position in sequence.logprobs] if wanted else None,
        finish_reason=str(finished.reason),
        stop_reason=finished.matched,
    )


def _params_for(count: int, given: SamplingParams | Sequence[SamplingParams] | None) -> list[SamplingParams]:
    if given is None or isinstance(given, SamplingParams):
        return [given or SamplingParams()] * count
    if len(given) != count:
        raise InvalidRequestError(f"{len(given)} sampling_params for {count} prompts", param="sampling_params")
    return list(given)


def _silent(what: str, done: int, total: int) -> None:
    """No progress is shown."""
