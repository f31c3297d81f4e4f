"""rollout: prompts as token ids in, sampled sequences with the log-probabilities that they were drawn by out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from jaxserve.engine.events import WeightRange
from jaxserve.errors import InvalidRequestError
from jaxserve.llm import LLM
from jaxserve.outputs import CompletionOutput, RequestOutput
from jaxserve.sampling.params import PROCESSED_LOGPROBS, SamplingParams
from jaxserve.step.plan import Floats
from jaxserve.types import RequestOptions, TokensPrompt

OnRollouts = Callable[[int, "list[Rollout]"], None]


@dataclass(frozen=True, slots=True)
class Rollout:
    """One sampled sequence.

    Attributes:
        prompt_token_ids: the prompt.
        token_ids: all sampled tokens; a token that ended it is among them.
        logprobs: float32, one a token: natural log of the probability that it was drawn with (`logprobs_mode` of the parameters).
        text: of the tokens, without the one that ended it; empty if the engine has no tokenizer.
        finish_reason: "stop", "length", or "abort" if an update of the weights cut it off.
        seed: of its samples.
        weight_versions: which of its tokens are of which weights; None if the engine's were never updated nor named.
    """

    prompt_token_ids: list[int]
    token_ids: list[int]
    logprobs: Floats
    text: str
    finish_reason: str
    seed: int
    weight_versions: list[WeightRange] | None


def rollout(
    llm: LLM,
    prompts: Sequence[Sequence[int]],
    params: SamplingParams | Sequence[SamplingParams],
    *,
    on_rollouts: OnRollouts | None = None,
    adapter: str = "",
) -> list[list[Rollout]]:
    """Sample `params.n` sequences for every prompt; a list of them a prompt, in the prompts' order.

    Args:
        llm: the engine.
        prompts: token ids.
        params: one for all or one a prompt. Their log-probabilities are processed ones unless `logprobs_mode` says otherwise.
        on_rollouts: told of each prompt's sequences when all have ended: (which prompt, its sequences).
        adapter: the name of the one (LoRA) that computes them; empty for the model as it is.

    Raises what `LLM.generate` does, and the error of the first prompt that failed alone.
    """
    listed = [params] * len(prompts) if isinstance(params, SamplingParams) else list(params)
    if len(listed) != len(prompts):
        raise InvalidRequestError(f"{len(listed)} params for {len(prompts)} prompts", param="params")
    asked = [replace(one, logprobs=one.logprobs or 0, logprobs_mode=one.logprobs_mode or PROCESSED_LOGPROBS) for one in listed]
    ended: dict[int, list[Rollout]] = {}

    def take(result: RequestOutput) -> None:
        if result.error is not None:
            raise result.error
        number = int(result.request_id)
        ended[number] = [_rollout(result, output) for output in result.outputs]
        # What is kept of a result are arrays: as objects its log-probabilities are a hundred times as large.
        for output in result.outputs:
            if output.logprobs is not None:
                output.logprobs.clear()
        if on_rollouts is not None:
            on_rollouts(number, ended[number])

    given: list[TokensPrompt] = [{"prompt_token_ids": list(prompt)} for prompt in prompts]
    llm.generate(given, asked, use_tqdm=False, options=RequestOptions(adapter=adapter), on_output=take)
    return [ended[number] for number in range(len(prompts))]


def _rollout(result: RequestOutput, output: CompletionOutput) -> Rollout:
    assert output.logprobs is not None, "they are asked for"
    chosen = [entry[token].logprob for entry, token in zip(output.logprobs, output.token_ids, strict=True)]
    return Rollout(
        prompt_token_ids=result.prompt_token_ids,
        token_ids=output.token_ids,
        logprobs=np.asarray(chosen, np.float32),
        text=output.text,
        finish_reason=output.finish_reason,
        seed=output.seed,
        weight_versions=output.weight_versions,
    )


def score(llm: LLM, sequences: Sequence[tuple[Sequence[int], Sequence[int]]], *, adapter: str = "") -> list[Floats]:
    """float32 log-probabilities of the completion's tokens of each (prompt, completion), by the model's own distribution.

    Both are token ids; a prompt has at least one. `adapter` is as in `rollout`. Raises what `LLM.generate` does, and the error of
    the first that failed alone.
    """
    found = [np.zeros(0, np.float32) for _ in sequences]
    places = [place for place, (_, completion) in enumerate(sequences) if len(completion)]
    wanted: list[TokensPrompt] = [{"prompt_token_ids": [*sequences[place][0], *sequences[place][1]]} for place in places]
    starts = [len(sequences[place][0]) for place in places]
    params = [SamplingParams(max_tokens=0, prompt_logprobs=0, prompt_logprobs_start=start) for start in starts]
    results = llm.generate(wanted, params, use_tqdm=False, options=RequestOptions(adapter=adapter))
    for place, start, result in zip(places, starts, results, strict=True):
        if result.error is not None:
            raise result.error
        assert result.prompt_logprobs is not None, "they are asked for"
        scored = zip(result.prompt_logprobs[start:], result.prompt_token_ids[start:], strict=True)
        found[place] = np.asarray([entry[token].logprob for entry, token in scored if entry is not None], np.float32)
    return found
