"""The server under load: what it serves, its vocabulary, its own metrics, and one streamed completion."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Any

import msgspec

from jaxserve.errors import ConfigError
from jaxserve.load.connection import Connections, Reply
from jaxserve.load.outcome import RequestOutcome
from jaxserve.load.settings import LoadConfig

_SAMPLE = (
    "The quick brown fox jumps over the lazy dog while 12 engineers measure how long it takes to answer 345 questions. "
    "Prompts should look like text: words, numbers such as 6789, names, and a little punctuation; nothing that a model never saw."
)
_SETUP_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Served:
    """What the server says of the model under load."""

    model: str
    max_model_len: int
    vocabulary: tuple[int, ...]


class Target:
    """A server reached over kept connections."""

    def __init__(self, config: LoadConfig) -> None:
        self._config = config
        self._connections = Connections(config.base_url)
        self._headers = {"Content-Type": "application/json", "Accept": "text/event-stream, application/json"}
        if config.api_key is not None:
            self._headers["Authorization"] = f"Bearer {config.api_key}"

    async def look(self) -> Served:
        """Ask for the model, its context and token ids of ordinary text.

        Raises ConfigError if the server cannot be reached or does not serve what is asked for.
        """
        config = self._config
        models = {entry["id"]: entry for entry in (await self._json("GET", "/v1/models"))["data"]}
        name = config.model or next(iter(models), "")
        if name not in models:
            raise ConfigError(f"model: the server has {', '.join(models) or 'none'}, not {name!r}", param="model")
        length = config.max_model_len or models[name].get("max_model_len")
        if not isinstance(length, int):
            raise ConfigError("max_model_len: the server does not tell it, so it must be given", param="max_model_len")
        sample = {"model": name, "prompt": _SAMPLE, "add_special_tokens": False}
        tokens = (await self._json("POST", "/tokenize", sample))["tokens"]
        return Served(name, length, tuple(sorted(set(tokens))))

    async def metrics(self) -> str | None:
        status, body = await self._get("/metrics")
        return body.decode() if status == 200 else None

    async def complete(self, model: str, tokens: list[int], outcome: RequestOutcome) -> Reply | None:
        """Stream one completion into the outcome. Returns the head of the reply, None without one."""
        request = outcome.request
        body = {
            "model": model,
            "prompt": tokens,
            "max_tokens": request.output_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
            "service_class": str(request.service_class),
        }
        for name in ("queue_timeout", "timeout"):
            if getattr(request, name) is not None:
                body[name] = getattr(request, name)
        headers = {**self._headers, "X-Tenant": request.tenant}
        stream = _Stream(outcome)
        outcome.sent, outcome.error, outcome.status, outcome.pieces = time.perf_counter(), None, 0, []
        try:
            async with asyncio.timeout(self._config.request_timeout_s):
                reply = await self._connections.exchange(
                    "POST", "/v1/completions", headers, msgspec.json.encode(body), stream.feed
                )
        except TimeoutError:
            outcome.error = "client_timeout"
            return None
        except OSError as error:
            outcome.error = f"network: {error}"
            return None
        finally:
            outcome.ended = time.perf_counter()
        outcome.status = reply.status
        stream.finish(reply)
        return reply

    def close(self) -> None:
        self._connections.close()

    async def _json(self, method: str, path: str, body: Any = None) -> Any:
        payload = b"" if body is None else msgspec.json.encode(body)
        status, answer = await self._get(path, method, payload)
        if status != 200:
            raise ConfigError(
                f"base_url: {path} of {self._config.base_url} answered {status}: {answer[:200]!r}", param="base_url"
            )
        try:
            return msgspec.json.decode(answer)
        except msgspec.DecodeError as error:
            raise ConfigError(f"base_url: {path} of {self._config.base_url} is not JSON: {error}", param="base_url") from error

    async def _get(self, path: str, method: str = "GET", payload: bytes = b"") -> tuple[int, bytes]:
        pieces: list[bytes] = []
        try:
            async with asyncio.timeout(_SETUP_SECONDS):
                reply = await self._connections.exchange(
                    method, path, self._headers, payload, lambda piece, _: pieces.append(piece)
                )
        except (OSError, TimeoutError) as error:
            reason = str(error) or "no answer"
            raise ConfigError(f"base_url: cannot talk to {self._config.base_url}: {reason}", param="base_url") from error
        return reply.status, b"".join(pieces)


class _Stream:
    def __init__(self, outcome: RequestOutcome) -> None:
        self._outcome = outcome
        self._rest = b""
        self._ended = False

    def feed(self, piece: bytes, now: float) -> None:
        *events, self._rest = (self._rest + piece).split(b"\n\n")
        for event in events:
            if event.startswith(b"data: "):
                self._take(event[6:], now)

    def finish(self, reply: Reply) -> None:
        outcome = self._outcome
        if reply.status != 200:
            outcome.error = _code(self._rest) or f"http_{reply.status}"
        elif outcome.error is None and not self._ended:
            outcome.error = "cut_off"

    def _take(self, data: bytes, now: float) -> None:
        outcome = self._outcome
        if data == b"[DONE]":
            self._ended = True
            return
        chunk = msgspec.json.decode(data)
        if "error" in chunk:
            outcome.error = _code(data) or "error"
            return
        if chunk["choices"]:
            outcome.pieces.append(now)
        usage = chunk.get("usage")
        if usage:
            outcome.prompt_tokens, outcome.output_tokens = usage["prompt_tokens"], usage["completion_tokens"]
            outcome.cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)


def _code(body: bytes) -> str | None:
    try:
        return str(msgspec.json.decode(body)["error"]["code"])
    except (msgspec.DecodeError, KeyError, TypeError):
        return None
