"""What a served model offers besides text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from jaxserve.errors import InvalidRequestError
from jaxserve.pooling.params import PoolingParams, PoolingTask, PoolingType

EMBEDS: tuple[PoolingTask, ...] = ("embed", "token_embed")
CLASSIFIES: tuple[PoolingTask, ...] = ("classify", "reward")
SCORES: tuple[PoolingTask, ...] = ("classify", "score", "reward")

Activation = Literal["sigmoid", "softmax", "none"]
"""What becomes of a head's outputs: each a probability by itself, all together, or what they are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pooler:
    """What is made of hidden states unless a request says otherwise. Plain data: front ends have it, too.

    Attributes:
        tasks: that requests may ask for.
        hidden_size: E, numbers of a vector.
        pooling: whose hidden states.
        normalizes: whether embeddings have length 1.
        matryoshka: lengths that embeddings may be cut to; empty for any; None for none.
        labels: of the classes, one for each output of the head; empty without a head.
        activation: of the head's outputs.
        prompts: texts that go before texts of a kind, by the kind's name ("query").
        default_prompt: the kind of texts of which none is named; None for none.
        lowercases: whether texts are made lower case before they are tokenized.
        whole: whether a prompt is computed in one step, and what comes of it is pooled already.
    """

    tasks: tuple[PoolingTask, ...]
    hidden_size: int
    pooling: PoolingType = "last"
    normalizes: bool = True
    matryoshka: tuple[int, ...] | None = None
    labels: tuple[str, ...] = ()
    activation: Activation = "softmax"
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt: str | None = None
    lowercases: bool = False
    whole: bool = False

    def check(self, params: PoolingParams) -> None:
        """Raise InvalidRequestError, naming the field, for what the model does not offer."""
        if params.task not in self.tasks:
            raise InvalidRequestError(f"task {params.task}: this model is served for {', '.join(self.tasks)}", param="task")
        wanted = params.dimensions
        if wanted is None or wanted == self.hidden_size:
            return
        if self.matryoshka is None:
            raise InvalidRequestError(
                f"dimensions is {wanted}, but this model's embeddings have {self.hidden_size} and cannot be cut: it declares "
                "no matryoshka_dimensions",
                param="dimensions",
            )
        if wanted > self.hidden_size:
            raise InvalidRequestError(f"dimensions must be at most {self.hidden_size}, got {wanted}", param="dimensions")
        if self.matryoshka and wanted not in self.matryoshka:
            known = ", ".join(map(str, self.matryoshka))
            raise InvalidRequestError(f"dimensions must be one of {known}, got {wanted}", param="dimensions")

    def pooling_of(self, params: PoolingParams) -> str:
        """Which hidden states a request wants: a PoolingType, or "all"."""
        return "all" if params.task == "token_embed" else params.pooling or self.pooling

    def width_of(self, params: PoolingParams) -> int:
        """Values of one vector that a request gets."""
        return (params.dimensions or self.hidden_size) if params.embeds else len(self.labels)

    def prompted(self, text: str, kind: str | None = None) -> str:
        """A text as it is tokenized, behind the prompt of a kind; None for the default kind. Raises InvalidRequestError."""
        kind = self.default_prompt if kind is None else kind
        if kind is not None and kind not in self.prompts:
            known = ", ".join(self.prompts) or "none"
            raise InvalidRequestError(
                f"prompt_name {kind!r} is not declared by the model; there are: {known}", param="prompt_name"
            )
        whole = text if kind is None else self.prompts[kind] + text
        return whole.lower() if self.lowercases else whole


def require_pooler(pooler: Pooler | None, params: PoolingParams) -> Pooler:
    """The pooler, if it does what is asked. Raises InvalidRequestError."""
    if pooler is None:
        raise InvalidRequestError(
            f"task {params.task}: this model is served to generate text; an embedding model, a reranker or a classifier can do "
            "it, or any model with --convert embed",
            param="model",
        )
    pooler.check(params)
    return pooler
