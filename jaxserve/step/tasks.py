"""What a request wants of the model, besides how tokens are chosen. A task is declared once, here or by whoever adds one.

Chunks, prefix hits, preemption and recordings only know which tokens of a prompt are read, with a number for each. What is read
off the model's final hidden states there is the reader's affair (`executor.readers`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from jaxserve.sampling.params import SamplingParams

PROMPT_LOGPROBS = "prompt_logprobs"
POOLED, TOKEN_VECTORS, HEAD = "pooled", "token_vectors", "head"  # readers of an engine that pools (`executor.pooling`)
WHOLE = "whole"  # of one that computes a prompt in one step: both of an embedding and of what a head makes
NOTHING: tuple[int, tuple[int, ...]] = (0, ())


@dataclass(frozen=True, slots=True, eq=False)
class Task:
    """One kind of request.

    Attributes:
        name: as requests say it.
        generates: whether tokens are chosen after the prompt. If not, it ends with the last token that is read, which is the last
            that is computed.
        reader: what reads.
        reads: which tokens of a prompt are read: (prompt, params) -> (first, values); token p is read if first <= p <
            len(values), with values[p].
    """

    name: str
    generates: bool
    reader: str
    reads: Callable[[Sequence[int], SamplingParams], tuple[int, Sequence[int]]]


def _successors(prompt: Sequence[int], params: SamplingParams) -> tuple[int, Sequence[int]]:
    """Log-probabilities are read of the token that follows."""
    return max(0, params.prompt_logprobs_start - 1), prompt[1:]


GENERATE = Task(
    "generate",
    generates=True,
    reader=PROMPT_LOGPROBS,
    reads=lambda prompt, params: NOTHING if params.prompt_logprobs is None else _successors(prompt, params),
)
SCORE = Task("score", generates=False, reader=PROMPT_LOGPROBS, reads=_successors)


def _last(prompt: Sequence[int], params: SamplingParams) -> tuple[int, Sequence[int]]:
    """The tokens before it may come from the prefix cache."""
    return len(prompt) - 1, prompt


def _first(prompt: Sequence[int], params: SamplingParams) -> tuple[int, Sequence[int]]:
    """No token sees those behind it: they need not be computed."""
    return 0, prompt[:1]


def _every(prompt: Sequence[int], params: SamplingParams) -> tuple[int, Sequence[int]]:
    """All are computed: pages keep no hidden states."""
    return 0, prompt


def _marked(places: Callable[[int], Iterable[int]]) -> Callable[[Sequence[int], SamplingParams], tuple[int, Sequence[int]]]:
    """All tokens are computed, for each sees the others; 1 is for those of which the mean is taken."""

    def reads(prompt: Sequence[int], params: SamplingParams) -> tuple[int, Sequence[int]]:
        chosen = frozenset(places(len(prompt)))
        return 0, tuple(int(place in chosen) for place in range(len(prompt)))

    return reads


def pooling_task_name(pooling: str, reader: str) -> str:
    """The name of the task that reads tokens so: "last", "first", "mean" or "all"."""
    return f"{reader}_{pooling}"


POOLING = tuple(
    Task(pooling_task_name(pooling, reader), generates=False, reader=reader, reads=reads)
    for pooling, reads, readers in (
        ("last", _last, (POOLED, HEAD)),
        ("first", _first, (POOLED, HEAD)),
        ("mean", _every, (POOLED, HEAD)),
        ("all", _every, (TOKEN_VECTORS,)),
        ("last", _marked(lambda size: (size - 1,)), (WHOLE,)),
        ("first", _marked(lambda size: (0,)), (WHOLE,)),
        ("mean", _marked(range), (WHOLE,)),
    )
    for reader in readers
)

TASKS: Mapping[str, Task] = MappingProxyType({task.name: task for task in (GENERATE, SCORE, *POOLING)})
