"""Prompts that are computed before the engine is ready, so that the first requests that begin with them find them cached.

A file of one JSON object a line:

    {"messages": [{"role": "system", "content": "You are terse."}], "tenant": "acme", "pin": true}
    {"prompt": "Translate into French: "}
    {"prompt_token_ids": [5, 6, 7]}

Pinned ones stay until the prefix cache is reset; the others until their pages are needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from jaxserve.clock import Clock
from jaxserve.config.fields import CacheConfig
from jaxserve.engine.core import EngineCore
from jaxserve.engine.intake import Intake
from jaxserve.errors import ConfigError, InvalidRequestError, JaxserveError
from jaxserve.executor.programs import CompileProgress
from jaxserve.sampling.params import SamplingParams
from jaxserve.scheduler.request import EngineRequest
from jaxserve.tokenizer.base import Tokenizer
from jaxserve.tokenizer.chat import ChatTemplate
from jaxserve.types import Prompt, RequestOptions, ServiceClass


class WarmPrompt(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One line of the file: exactly one of the first three.

    Attributes:
        prompt: text; special tokens are added as to a request's.
        prompt_token_ids: token ids.
        messages: a conversation, rendered by the chat template without opening an answer.
        tenant: whose requests may find it.
        pin: whether it is never evicted.
    """

    prompt: str | None = None
    prompt_token_ids: list[int] | None = None
    messages: list[dict[str, Any]] | None = None
    tenant: str = ""
    pin: bool = False

    def __post_init__(self) -> None:
        if sum(way is not None for way in (self.prompt, self.prompt_token_ids, self.messages)) != 1:
            raise ValueError("exactly one of prompt, prompt_token_ids and messages must be given")


@dataclass(frozen=True, slots=True)
class WarmLine:
    """A line, and its place for errors: file and number."""

    place: str
    content: WarmPrompt


def read_warm_prompts(config: CacheConfig) -> list[WarmLine]:
    """Read the file, if one is named. Raises ConfigError naming file and line."""
    path = config.warm_prompts
    if path is None:
        return []
    if not config.prefix_caching:
        raise ConfigError("warm_prompts needs prefix_caching, which is off", param="warm_prompts")
    try:
        text = Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(f"warm_prompts: cannot read {path}: {error.strerror}", param="warm_prompts") from error
    lines = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        place = f"{path}, line {number}"
        try:
            lines.append(WarmLine(place, msgspec.json.decode(line, type=WarmPrompt, strict=True)))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise ConfigError(f"warm_prompts: {place}: {error}", param="warm_prompts") from error
    return lines


@dataclass(frozen=True, slots=True)
class Warmer:
    """Computes prompts with an engine that nobody uses yet.

    Attributes:
        max_model_len: tokens of the longest sequence, whose pages no pin may take.
    """

    core: EngineCore
    intake: Intake
    tokenizer: Tokenizer | None
    chat_template: ChatTemplate | None
    clock: Clock
    max_model_len: int

    def warm(self, lines: Sequence[WarmLine], progress: CompileProgress) -> None:
        """Compute every prompt once and hold the pinned ones. Raises ConfigError naming file and line."""
        for done, line in enumerate(lines, 1):
            try:
                self._warm(line)
            except JaxserveError as error:
                raise ConfigError(f"warm_prompts: {line.place}: {error.message}", param="warm_prompts") from error
            progress("warming the prefix cache", done, len(lines))

    def _warm(self, line: WarmLine) -> None:
        cache, content = self.core.scheduler.cache, line.content
        options = RequestOptions(tenant=content.tenant, service_class=ServiceClass.BATCH)
        params = SamplingParams(temperature=0.0, max_tokens=1)
        (request,) = self.intake.prepare(self._prompt(content), params, line.place, self.clock.now(), options)
        if len(request.prompt) < cache.page_size:
            raise InvalidRequestError(
                f"the prompt has {len(request.prompt)} tokens, and only whole pages of {cache.page_size} are cached"
            )
        self._compute(request)
        if content.pin:
            cache.pin(request.cache_root, request.prompt, request.tenant)
            self._check_room()

    def _prompt(self, content: WarmPrompt) -> Prompt:
        if content.prompt_token_ids is not None:
            return {"prompt_token_ids": content.prompt_token_ids}
        if content.prompt is not None:
            return content.prompt
        if self.chat_template is None or self.tokenizer is None:
            raise InvalidRequestError("the model has no chat template for messages")
        tokens = self.chat_template.tokens(self.tokenizer, content.messages or [], add_generation_prompt=False)
        return {"prompt_token_ids": tokens}

    def _compute(self, request: EngineRequest) -> None:
        self.core.add([request])
        while self.core.has_work:
            for update in self.core.step():
                if update.error is not None:
                    raise update.error

    def _check_room(self) -> None:
        """Pins must leave the longest sequence its pages, or it would wait for ever."""
        cache = self.core.scheduler.cache
        left, needed = cache.num_usable - cache.num_pinned, cache.most_pages(self.max_model_len)
        if left < needed:
            raise InvalidRequestError(
                f"{cache.num_pinned} of {cache.num_usable} pages are pinned, which leaves {left}, but a sequence of "
                f"max_model_len {self.max_model_len} needs {needed}; give the cache more memory or lower max_model_len"
            )
