"""Who answers in a conversation: a server over HTTP, or a model in this process."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Protocol, cast

import httpx
import msgspec

from jaxserve.chat_parsing import ChatParser, ContentDelta, ReasoningDelta
from jaxserve.chat_parsing import Delta as Part
from jaxserve.config.fields import EngineConfig, ModelConfig
from jaxserve.engine.events import Delta, Event
from jaxserve.engine.local import LocalEngine
from jaxserve.errors import ConfigError, InternalError
from jaxserve.executor.programs import CompileProgress
from jaxserve.sampling.params import SamplingParams
from jaxserve.terminal.connections import environment_errors, uses_environment
from jaxserve.terminal.conversation import Sampling
from jaxserve.types import ChatMessage, RequestOptions, TokensPrompt

_CONNECT_SECONDS = 10.0
_TAIL = 512  # tokens at the end of a prompt in which the assistant's turn begins


@dataclass(frozen=True, slots=True)
class Piece:
    """Some text of an answer, how many tokens the answer has by now (0 if nobody counts), and what was thought before it."""

    text: str
    tokens: int
    thought: str = ""


class Speaker(Protocol):
    """Answers."""

    @property
    def name(self) -> str:
        """The model's name."""
        ...

    def answer(self, messages: list[ChatMessage], sampling: Sampling) -> AsyncGenerator[Piece, None]:
        """Stream an answer; closing it stops the model. Raises JaxserveError."""
        ...

    async def close(self) -> None:
        """Let go of everything."""
        ...


class ServerSpeaker:
    """A model behind an OpenAI-compatible server."""

    def __init__(self, client: httpx.AsyncClient, name: str) -> None:
        self._client = client
        self._name = name

    @classmethod
    async def reach(cls, url: str, model: str | None, api_key: str | None) -> ServerSpeaker:
        """Find the server and its model. Raises ConfigError."""
        headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
        timeout = httpx.Timeout(None, connect=_CONNECT_SECONDS)
        with environment_errors(url):
            client = httpx.AsyncClient(base_url=url, headers=headers, timeout=timeout, trust_env=uses_environment(url))
        try:
            reply = await client.get("/v1/models")
            names = [entry["id"] for entry in _content(reply)["data"]]
        except httpx.HTTPError as error:
            await client.aclose()
            raise ConfigError(f"cannot talk to {url}: {error or type(error).__name__}", param="where") from error
        except BaseException:
            await client.aclose()
            raise
        if model is not None and model not in names:
            await client.aclose()
            raise ConfigError(f"model: {url} has {', '.join(names)}, not {model!r}", param="model")
        return cls(client, model or names[0])

    @property
    def name(self) -> str:
        return self._name

    async def answer(self, messages: list[ChatMessage], sampling: Sampling) -> AsyncGenerator[Piece, None]:
        body = {
            "model": self._name,
            "messages": messages,
            "stream": True,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
            **sampling.given(),
        }
        try:
            async with self._client.stream("POST", "/v1/chat/completions", json=body) as reply:
                if reply.status_code != 200:
                    await reply.aread()
                    _content(reply)
                async for line in reply.aiter_lines():
                    if line.startswith("data: ") and line != "data: [DONE]":
                        yield _piece(msgspec.json.decode(line[6:]))
        except httpx.HTTPError as error:
            raise InternalError(f"the server went away: {error or type(error).__name__}") from error

    async def close(self) -> None:
        await self._client.aclose()


class LocalSpeaker:
    """A model in this process."""

    def __init__(self, engine: LocalEngine) -> None:
        self._engine = engine

    @classmethod
    async def load(cls, model: str, progress: CompileProgress) -> LocalSpeaker:
        """Load a checkpoint directory, or the bundled model. Raises what LocalEngine.start raises."""
        return cls(await LocalEngine.start(EngineConfig(model=ModelConfig(model=model)), progress))

    @property
    def name(self) -> str:
        return self._engine.model.name

    async def answer(self, messages: list[ChatMessage], sampling: Sampling) -> AsyncGenerator[Piece, None]:
        prompt = await self._engine.render_chat(messages, {})
        params = SamplingParams(**{"max_tokens": None, **self._engine.model.sampling.given(), **sampling.given()})
        tokens, reader = 0, self._reader(cast(TokensPrompt, prompt)["prompt_token_ids"])
        options = RequestOptions(shows_markup=reader is not None)
        async with aclosing(cast(AsyncGenerator[Event, None], self._engine.generate(prompt, params, options=options))) as events:
            async for event in events:
                if isinstance(event, Delta):
                    tokens += len(event.token_ids)
                    yield Piece(event.text, tokens) if reader is None else _read(reader.feed(event.text), tokens)
        if reader is not None:
            yield _read(reader.finish(), tokens)

    def _reader(self, prompt: list[int]) -> ChatParser | None:
        """What tells thinking from the answer, if the model thinks."""
        template = self._engine.response_template
        if template is None or "reasoning" not in template.fields:
            return None
        tail = self._engine.tokenizer.decode(prompt[-_TAIL:], skip_special_tokens=False)
        return ChatParser(template, prompt=tail, tools=())

    async def close(self) -> None:
        await self._engine.drain(0.0)


def _piece(chunk: Any) -> Piece:
    if "error" in chunk:
        raise InternalError(chunk["error"]["message"])
    usage = chunk.get("usage") or {}
    deltas = [choice["delta"] for choice in chunk["choices"]]
    text, thought = ("".join(delta.get(name) or "" for delta in deltas) for name in ("content", "reasoning"))
    return Piece(text, usage.get("completion_tokens", 0), thought)


def _read(parts: list[Part], tokens: int) -> Piece:
    text = "".join(part.text for part in parts if isinstance(part, ContentDelta))
    return Piece(text, tokens, "".join(part.text for part in parts if isinstance(part, ReasoningDelta)))


def _content(reply: httpx.Response) -> Any:
    """The JSON of a reply. Raises ConfigError with the server's own words if it is an error."""
    try:
        content = msgspec.json.decode(reply.content)
    except msgspec.DecodeError as error:
        raise ConfigError(
            f"{reply.url} is no OpenAI-compatible server: it answered {reply.status_code}", param="where"
        ) from error
    if reply.status_code != 200:
        message = content.get("error", {}).get("message", content) if isinstance(content, dict) else content
        raise ConfigError(f"the server answered {reply.status_code}: {message}", param="where")
    return content
