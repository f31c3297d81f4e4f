"""Log-likelihoods of many continuations: what begins alike is computed once, and so is what differs in its last token alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from jaxserve.engine.build import BuiltEngine
from jaxserve.engine.events import Event, Started
from jaxserve.engine.outputs import RequestOutputs
from jaxserve.engine.prompt_logprobs import PromptLogprobs
from jaxserve.engine.routed_experts import RoutedExperts
from jaxserve.engine.turns import Turns
from jaxserve.errors import CancelledRequestError, InvalidRequestError, JaxserveError
from jaxserve.offline import drive
from jaxserve.outputs import LikelihoodOutput
from jaxserve.sampling.params import MAX_LOGPROBS, SamplingParams
from jaxserve.scheduler.request import EngineRequest
from jaxserve.step.plan import LogprobRows
from jaxserve.terminal.progress_bar import UseTqdm
from jaxserve.tokenizer.base import Tokenizer
from jaxserve.types import RequestOptions

AT_ONCE = 8192  # requests that are prepared together

Tokens = tuple[int, ...]
Pair = tuple[str | Sequence[int], str | Sequence[int]]
"""A context and its continuation, each as text or as token ids."""
OnLikelihood = Callable[[LikelihoodOutput], None]


@dataclass(slots=True)
class Seen:
    """Tokens that are computed once for all pairs that have them before their last one.

    Attributes:
        tokens: all but the last token of the pairs, which the model need not see.
        start: where the first continuation starts.
        endings: last token -> numbers of the pairs that end with it.
    """

    tokens: Tokens
    start: int
    endings: dict[int, list[int]] = field(default_factory=dict)

    @property
    def ending(self) -> int:
        """The one that is asked for; others are looked for among the likeliest tokens."""
        return next(iter(self.endings))


@dataclass(frozen=True, slots=True)
class Scores:
    """What was read of a request's tokens, the last row for the ending that it asked for; or what it failed with."""

    seen: Seen
    rows: LogprobRows | None
    cached: int
    error: JaxserveError | None


@dataclass(slots=True)
class ScoredRequest:
    """A prompt to score; see OfflineRequest."""

    seen: Seen
    engine_requests: list[EngineRequest]
    outputs: RequestOutputs
    output: Scores | None = None
    started: Started | None = None

    def take(self, event: Event) -> None:
        if isinstance(event, Started):
            self.started = event

    def end(self, routed: RoutedExperts | None) -> int:
        started, error = self.started, self.outputs.error
        scores = None if started is None else started.prompt_logprobs
        if error is None and not isinstance(scores, PromptLogprobs):
            error = CancelledRequestError("the request was aborted")
        rows = scores.rows() if isinstance(scores, PromptLogprobs) and error is None else None
        self.output = Scores(self.seen, rows, 0 if started is None else started.cached_tokens, error)
        self.started = None
        return 0


class Likelihoods:
    """One call: pairs in, an output a pair, told as it is known.

    Args:
        pairs: (tokens of context and continuation, where the continuation starts).
    """

    def __init__(
        self, built: BuiltEngine, pairs: Sequence[tuple[Tokens, int]], options: RequestOptions, on_output: OnLikelihood | None
    ) -> None:
        self._built, self._pairs, self._options, self._on_output = built, pairs, options, on_output
        self._outputs: list[LikelihoodOutput | None] = [None] * len(pairs)
        self._late: list[Seen] = []  # with endings that were not among the likeliest tokens

    def run(self, turns: Turns, use_tqdm: UseTqdm) -> list[LikelihoodOutput]:
        """Raises as LLM.generate."""
        wanted = group(self._pairs)
        while wanted:
            for begin in range(0, len(wanted), AT_ONCE):
                requests = [self._request(str(number), seen) for number, seen in enumerate(wanted[begin : begin + AT_ONCE])]
                drive(self._built, turns, requests, use_tqdm, self._answer)
            wanted, self._late = self._late, []
        return [output for output in self._outputs if output is not None]

    def _request(self, name: str, seen: Seen) -> ScoredRequest:
        built = self._built
        params = SamplingParams(
            max_tokens=0,
            temperature=0.0,
            prompt_logprobs=MAX_LOGPROBS if len(seen.endings) > 1 else 0,
            prompt_logprobs_start=seen.start,
        )
        sequences = built.intake.prepare(
            {"prompt_token_ids": [*seen.tokens, seen.ending]}, params, name, built.clock.now(), self._options
        )
        return ScoredRequest(seen, sequences, RequestOutputs(name, sequences, None, built.clock))

    def _answer(self, scores: Scores) -> None:
        seen, cached = scores.seen, scores.cached
        for ending, members in seen.endings.items():
            last = None if scores.rows is None else _last(scores.rows, ending, asked=ending == seen.ending)
            if last is None and scores.error is None:
                self._late.append(Seen(seen.tokens, seen.start, {ending: members}))
                continue
            for member in members:
                self._tell(member, scores, last, cached)
                cached = len(seen.tokens) + 1  # of the next ones all was computed for this one

    def _tell(self, number: int, scores: Scores, last: tuple[float, bool] | None, cached: int) -> None:
        tokens, start = self._pairs[number]
        values, greedy = [], False
        if scores.rows is not None and last is not None:
            begin = start - scores.seen.start
            values = [*scores.rows.chosen[begin:-1].tolist(), last[0]]
            greedy = last[1] and bool((scores.rows.rank[begin:-1] == 1).all())
        output = LikelihoodOutput(
            request_id=str(number),
            logprob=sum(values),
            is_greedy=greedy,
            token_ids=list(tokens[start:]),
            token_logprobs=values,
            num_prompt_tokens=len(tokens),
            num_cached_tokens=cached,
            error=scores.error,
        )
        self._outputs[number] = output
        if self._on_output is not None:
            self._on_output(output)


def _last(rows: LogprobRows, ending: int, *, asked: bool) -> tuple[float, bool] | None:
    """The log-probability of an ending, and whether none is likelier; None for one that was not read."""
    if asked:
        return float(rows.chosen[-1]), bool(rows.rank[-1] == 1)
    places = (rows.top_ids[-1] == ending).nonzero()[0]
    if not len(places):
        return None
    found = float(rows.top[-1][places[0]])
    return found, found >= float(rows.top[-1].max())


def group(pairs: Iterable[tuple[Tokens, int]]) -> list[Seen]:
    """What is to be computed for (tokens, where the continuation starts) pairs, which are numbered from 0.

    Those that begin alike are neighbours: what they share is computed once and still in the cache for the next one.
    """
    found: dict[Tokens, Seen] = {}
    for number, (tokens, start) in enumerate(pairs):
        seen = found.setdefault(tokens[:-1], Seen(tokens[:-1], start))
        seen.start = min(seen.start, start)
        seen.endings.setdefault(tokens[-1], []).append(number)
    return [found[tokens] for tokens in sorted(found)]


def tokens_of(pair: Pair, tokenizer: Tokenizer | None) -> tuple[Tokens, int]:
    """The tokens of context and continuation, and where the latter starts: behind the tokens of the context alone.

    Texts are one text when they become tokens; spaces at the end of a context begin its continuation, as lm-eval has it. Of a
    continuation without a context the first token is the context.

    Raises InvalidRequestError: nothing is left of the continuation, or one is text and the other tokens.
    """
    context, continuation = pair
    if isinstance(context, str) != isinstance(continuation, str):
        raise InvalidRequestError("a context and its continuation must both be texts, or both token ids", param="pairs")
    if isinstance(context, str) and isinstance(continuation, str):
        if tokenizer is None:
            raise InvalidRequestError("texts need a tokenizer, and there is none", param="pairs")
        kept = context.rstrip()
        whole = tuple(tokenizer.encode(context + continuation))
        start = len(tokenizer.encode(kept)) if kept else 1
    else:
        whole, start = (*map(int, context), *map(int, continuation)), max(len(context), 1)
    if start >= len(whole):
        raise InvalidRequestError("a continuation has no token of its own behind its context", param="pairs")
    return whole, start
