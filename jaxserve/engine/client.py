"""EngineClient: the one interface through which servers reach an engine, whichever process or thread it lives in."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from jaxserve.chat_parsing.template import ResponseTemplate
from jaxserve.engine.activity import Lateness
from jaxserve.engine.bounds import RequestBounds
from jaxserve.engine.calls import EngineCall
from jaxserve.engine.death import EngineDeath
from jaxserve.engine.events import Event
from jaxserve.pooling.params import PoolingParams
from jaxserve.pooling.pooler import Pooler
from jaxserve.sampling.defaults import NO_DEFAULTS, SamplingDefaults
from jaxserve.sampling.params import SamplingParams
from jaxserve.tokenizer.base import Tokenizer
from jaxserve.types import ChatMessage, Prompt, RequestOptions

Result = TypeVar("Result")


RequestParams = SamplingParams | PoolingParams
"""What is to be made of a prompt: text, or what PoolingParams say."""


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What clients may know of the served model.

    Attributes:
        name: the name that answers carry, and requests may use.
        architecture: the Hugging Face architecture name.
        max_model_len: longest prompt plus output in tokens.
        vocab_size: number of token ids the model scores.
        dtype: dtype of weights and KV cache.
        parameters: number of parameters.
        created: Unix time at which the engine was started.
        tokenizer: absolute path of its tokenizer, a directory or a file; empty where it is not known.
        sampling: what requests that do not say how to sample get.
        aliases: further names that requests may use.
        takes_adapters: whether requests may name adapters (LoRA) over it.
        generates: whether it is served to generate text.
        pooler: what is made of its hidden states; None for nothing.
        fingerprint: of weights and configuration; the same model elsewhere has the same. Empty where it is not known.
    """

    name: str
    architecture: str
    max_model_len: int
    vocab_size: int
    dtype: str
    parameters: int
    created: int
    tokenizer: str = ""
    sampling: SamplingDefaults = NO_DEFAULTS
    aliases: tuple[str, ...] = ()
    fingerprint: str = ""
    takes_adapters: bool = False
    generates: bool = True
    pooler: Pooler | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """All names that requests may use."""
        return (self.name, *self.aliases)


@dataclass(frozen=True, slots=True)
class EngineStats:
    """Load at one instant, and requests since the start: received == finished + aborted + rejected + active.

    `running` and `waiting` count sequences, of which a request has `n`; `pages_free` of `pages_total` pages are free. Since the
    start, `preemptions` took the pages of running sequences and `lost_tokens` computed tokens with them; of the
    `prefix_queried_tokens` of sequences that started, `prefix_hit_tokens` were in the prefix cache. A page has
    `page_size` tokens. The engine of a fleet that has most sequences has `imbalance` times the mean; 0 where nothing runs, and
    without a fleet.
    """

    running: int
    waiting: int
    pages_total: int
    pages_free: int
    received: int
    active: int
    finished: int
    aborted: int
    rejected: int
    preemptions: int
    lost_tokens: int
    prefix_queried_tokens: int
    prefix_hit_tokens: int
    page_size: int = 0
    imbalance: float = 0.0


class EngineClient(Protocol):
    """An engine as an asyncio program sees it. Every method raises only JaxserveError."""

    @property
    def model(self) -> ModelInfo:
        """The served model."""
        ...

    @property
    def tokenizer(self) -> Tokenizer:
        """The served model's tokenizer (thread-safe)."""
        ...

    @property
    def chat_template(self) -> str | None:
        """The Jinja template by which `render_chat` writes conversations; None if there is none."""
        ...

    @property
    def response_template(self) -> ResponseTemplate | None:
        """How to read what the model answers in a chat; None where that is not known."""
        ...

    @property
    def bounds(self) -> RequestBounds:
        """What one request may bring and ask for; `generate`, `encode` and `render_chat` refuse more."""
        ...

    def check_room(self, tenant: str, sequences: int) -> None:
        """Raise QueueFullError if so many sequences more of a tenant cannot wait beside its own that wait already."""
        ...

    def room(self, tenant: str, names: Sequence[str], sequences: int) -> AbstractContextManager[None]:
        """Keep room in the waiting queue for requests of these names, so many sequences each, until they come or it is left.

        Raises QueueFullError as `check_room` does.
        """
        ...

    def generate(
        self,
        prompt: Prompt,
        params: RequestParams,
        *,
        request_id: str | None = None,
        options: RequestOptions | None = None,
    ) -> AsyncIterator[Event]:
        """Run one request: yields Started, Deltas, and one Finished per sequence (params.n of them), then ends.

        With PoolingParams there are no Deltas, and the Finished has what was pooled.

        `options` say whose request it is and what it may take; None is nobody's, of the engine's default class.

        Raises InvalidRequestError, ContextLengthError, QueueFullError, OverloadedError, DeadlineError, DrainingError or
        EngineDeadError before the first event. In mid-stream it raises DeadlineError where `timeout` ends the request, and
        InternalError or EngineDeadError for a failure inside the engine. An error ends all sequences of the request and no
        other request, unless it is EngineDeadError. Closing the iterator (aclose, or cancelling the task that reads it)
        aborts the request and frees its pages at the next step.
        """
        ...

    async def encode(self, text: str, *, add_special_tokens: bool = True, last: int | None = None) -> list[int]:
        """Tokens of a text, with BOS and the like if wanted.

        Raises InvalidRequestError for a text that is not valid Unicode, ContextLengthError for one that cannot fit the context.
        With `last` no text is too long: only its end is looked at, and as many of the tokens as are wanted are among those given.
        """
        ...

    async def run_long(self, function: Callable[[], Result]) -> Result:
        """Run a function that takes long, such as one that writes a long answer, off the event loop; one such at a time."""
        ...

    async def render_chat(self, messages: Sequence[ChatMessage], template_arguments: Mapping[str, Any]) -> Prompt:
        """Apply the checkpoint's chat template. Raises InvalidRequestError if there is none or it refuses the messages.

        Raises ContextLengthError for a conversation that cannot fit the context.
        """
        ...

    async def abort(self, request_id: str) -> bool:
        """Abort a request by id; False if it is not active."""
        ...

    async def reset_prefix_cache(self) -> None:
        """Forget every cached prefix, pinned ones too; what runs goes on. Raises EngineDeadError."""
        ...

    async def call(self, call: EngineCall[Result]) -> Result:
        """Run one of `jaxserve.engine.calls` between two of the engine's turns. Raises EngineDeadError, or what the call does."""
        ...

    def stats(self) -> EngineStats:
        """The load now."""
        ...

    def heartbeat_age(self) -> float:
        """Seconds since the engine's loop is known to have turned; above a second, a step hangs or the engine is gone."""
        ...

    def lateness(self) -> Lateness:
        """How late the engine is; a second and more means that it hangs, or that nothing is heard of it."""
        ...

    @property
    def death(self) -> EngineDeath | None:
        """The latest death of an engine that is known of, for operators; None if there was none."""
        ...

    def check_health(self) -> None:
        """Raise EngineDeadError or DrainingError unless requests are accepted."""
        ...

    async def drain(self, timeout: float) -> None:
        """Accept nothing new, let what runs finish, abort the rest after `timeout` seconds."""
        ...
