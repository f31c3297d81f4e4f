"""PoolingParams: what is made of a prompt's hidden states where nothing is generated. Names follow vLLM's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

from jaxserve.errors import InvalidRequestError

PoolingTask = Literal["embed", "token_embed", "classify", "score", "reward"]
PoolingType = Literal["last", "first", "mean"]
POOLING_TASKS: tuple[PoolingTask, ...] = get_args(PoolingTask)
POOLING_TYPES: tuple[PoolingType, ...] = get_args(PoolingType)


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolingParams:
    """What to make of one prompt.

    Attributes:
        task: "embed" for one vector, "token_embed" for one of every token, "classify", "score" and "reward" for what the model's
            head makes of the pooled vector: probabilities of its classes, how relevant, or its outputs as they are.
        pooling: which tokens' hidden states: of the last token, of the first, or the mean of all. None takes the model's.
        dimensions: of an embedding, its first ones are kept, for models that were trained so (Matryoshka); None keeps all.
        use_activation: whether embeddings are normalized to length 1, or a head's outputs become probabilities. None takes the
            model's.

    Raises InvalidRequestError that names the field.
    """

    task: PoolingTask = "embed"
    pooling: PoolingType | None = None
    dimensions: int | None = None
    use_activation: bool | None = None

    def __post_init__(self) -> None:
        _one_of("task", self.task, POOLING_TASKS)
        if self.pooling is not None:
            _one_of("pooling", self.pooling, POOLING_TYPES)
            if self.task == "token_embed":
                raise InvalidRequestError(
                    "pooling has no meaning for token_embed, which gives every token's vector", param="pooling"
                )
        if self.dimensions is not None:
            if not isinstance(self.dimensions, int) or isinstance(self.dimensions, bool) or self.dimensions < 1:
                raise InvalidRequestError(
                    f"dimensions must be an integer of at least 1, got {self.dimensions!r}", param="dimensions"
                )
            if not self.embeds:
                raise InvalidRequestError(f"dimensions are of embeddings, and the task is {self.task}", param="dimensions")
        if not isinstance(self.use_activation, bool | None):
            raise InvalidRequestError(
                f"use_activation must be true, false or null, got {self.use_activation!r}", param="use_activation"
            )

    @property
    def embeds(self) -> bool:
        """Whether it asks for vectors, not for what a head makes of one."""
        return self.task in ("embed", "token_embed")

    @property
    def n(self) -> int:
        """Sequences of a prompt, as SamplingParams has them."""
        return 1

    @property
    def max_tokens(self) -> int:
        """Tokens of an output, as SamplingParams has them."""
        return 0


def _one_of(name: str, value: Any, known: tuple[str, ...]) -> None:
    if value not in known:
        raise InvalidRequestError(f"{name} must be one of {', '.join(known)}, got {value!r}", param=name)
