"""A scripted EngineClient: bytes for tokens, and it says back what it was told. For tests of protocol detail only."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, cast

from jaxserve.chat_parsing import ResponseTemplate, find_template
from jaxserve.engine.activity import Lateness
from jaxserve.engine.bounds import RequestBounds
from jaxserve.engine.calls import AbortRequests, EngineCall, Result
from jaxserve.engine.client import EngineStats, ModelInfo, RequestParams
from jaxserve.engine.death import EngineDeath
from jaxserve.engine.events import Delta, Event, Finished, PositionLogprobs, Started, Timing, TokenLogprob, Usage, WeightRange
from jaxserve.errors import (
    ContextLengthError,
    DrainingError,
    InvalidRequestError,
)
from jaxserve.sampling.params import SamplingParams
from jaxserve.tokenizer.control_tokens import MARK
from jaxserve.types import ChatMessage, FinishReason, Prompt, RequestOptions, TokensPrompt, text_of

BOS, EOS, VOCAB = 256, 257, 258
MAX_MODEL_LEN = 512


class ByteTokenizer:
    """A token a byte; BOS is added if `adds_bos`."""

    vocab_size = VOCAB
    eos_token_id = EOS
    bos_token_id = BOS
    special_token_ids = frozenset({BOS, EOS})
    special_token_texts: frozenset[str] = frozenset()  # `encode` knows none
    max_token_bytes = len("</s>")
    marks_each_invalid_byte = False
    adds_bos = False

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return [BOS] * (add_special_tokens and self.adds_bos) + list(text.encode())

    def encode_marked(self, text: str) -> list[int]:
        return self.encode(text.replace(MARK, ""), add_special_tokens=False)

    def encode_pair(self, first: str, second: str) -> list[int]:
        return self.encode(first + second)

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        return b"".join(self.token_bytes(i) for i in token_ids if i < BOS or not skip_special_tokens).decode("utf-8", "replace")

    def token_bytes(self, token_id: int) -> bytes:
        return {BOS: b"<s>", EOS: b"</s>"}.get(token_id) or bytes([token_id])

    def leading_bytes(self, token_id: int) -> tuple[bytes, bool]:
        return self.token_bytes(token_id), False


HERMES = find_template("<tool_call> </think>")  # a way to write thinking and calls, for those who set `response_template`


class ScriptedClient:
    """Says the prompt back token by token, `delay` seconds apart.

    `failure` is raised once `fail_after` tokens are out; `active` and `aborted` hold request ids; `messages` and `arguments`
    are what the chat template last got; `options` are those of every request, `resets` counts the prefix cache's.
    Sequences went on in another engine `resumed` times, and their tokens are of `weight_versions`.
    """

    def __init__(self, *, delay: float = 0.0, failure: Exception | None = None, fail_after: int = 0) -> None:
        self.model = ModelInfo("echo", "EchoForCausalLM", MAX_MODEL_LEN, VOCAB, "float32", 0, 1_700_000_000)
        self.tokenizer = ByteTokenizer()
        self.chat_template: str | None = "{{ messages[-1].content }}"
        self.response_template: ResponseTemplate | None = None
        self.delay = delay
        self.failure = failure
        self.fail_after = fail_after
        self.active: set[str] = set()
        self.aborted: list[str] = []
        self.seen: list[SamplingParams] = []
        self.prompts: list[Prompt] = []
        self.options: list[RequestOptions] = []
        self.rooms: list[tuple[str, int]] = []
        self.resets = 0
        self.resumed = 0
        self.weight_versions: tuple[WeightRange, ...] | None = None
        self.arguments: Mapping[str, Any] = {}
        self.messages: Sequence[ChatMessage] = ()
        self.draining = False
        self.killed = False

    @property
    def bounds(self) -> RequestBounds:
        return RequestBounds(
            context=MAX_MODEL_LEN, sequences=1024, logprob_values=524_288, token_bytes=self.tokenizer.max_token_bytes
        )

    def check_room(self, tenant: str, sequences: int) -> None:
        self.rooms.append((tenant, sequences))

    def room(self, tenant: str, names: Sequence[str], sequences: int) -> AbstractContextManager[None]:
        self.check_room(tenant, len(names) * sequences)
        return nullcontext()

    async def encode(self, text: str, *, add_special_tokens: bool = True, last: int | None = None) -> list[int]:
        if last is None:
            self.bounds.check_text(text)
        return self.tokenizer.encode(text, add_special_tokens=add_special_tokens)

    async def run_long(self, function: Callable[[], Any]) -> Any:
        return await asyncio.to_thread(function)

    async def generate(
        self,
        prompt: Prompt,
        params: RequestParams,
        *,
        request_id: str | None = None,
        options: RequestOptions | None = None,
    ) -> AsyncIterator[Event]:
        assert request_id is not None
        assert options is not None
        assert isinstance(params, SamplingParams)
        self.options.append(options)
        self.prompts.append(prompt)
        self.check_health()
        ids = self._ids(prompt, params)
        self.seen.append(params)
        self.active.add(request_id)
        try:
            async for event in self._events(request_id, ids, params):
                yield event
        except (asyncio.CancelledError, GeneratorExit):
            self.aborted.append(request_id)
            raise
        finally:
            self.active.discard(request_id)

    def _ids(self, prompt: Prompt, params: SamplingParams) -> list[int]:
        if isinstance(prompt, dict) and "prompt_token_ids" in prompt:
            ids = cast(TokensPrompt, prompt)["prompt_token_ids"]
        else:
            ids = self.tokenizer.encode(prompt if isinstance(prompt, str) else prompt["prompt"])
        if any(not 0 <= token < VOCAB for token in ids):
            raise InvalidRequestError(f"prompt has token ids outside [0, {VOCAB})", param="prompt")
        if len(ids) + (params.max_tokens or 1) > MAX_MODEL_LEN:
            raise ContextLengthError(f"prompt has {len(ids)} tokens, but at most {MAX_MODEL_LEN} fit", param="prompt")
        return list(ids)

    async def _events(self, request_id: str, ids: list[int], params: SamplingParams) -> AsyncIterator[Event]:
        prompt_logprobs = None
        if params.prompt_logprobs is not None:
            prompt_logprobs = (None, *(self._position(i, params.prompt_logprobs) for i in ids[1:]))
        yield Started(request_id, tuple(ids), len(ids) // 2, 0.25, prompt_logprobs)
        output, reason, matched = self._output(ids, params)
        for position, token in enumerate(output):
            await asyncio.sleep(self.delay)
            if self.failure is not None and position == self.fail_after:
                raise self.failure
            if self.killed:
                reason, output = FinishReason.ABORT, output[:position]
                break
            for index in range(params.n):
                text = self.tokenizer.decode([token], skip_special_tokens=params.skip_special_tokens)
                logprobs = None if params.logprobs is None else (self._position(token, params.logprobs),)
                yield Delta(request_id, index, text, (token,), position, logprobs)
        usage = Usage(len(ids), len(output), len(ids) // 2)
        for index in range(params.n):
            yield Finished(request_id, index, reason, matched, usage, Timing(0.25, 0.5, 1.0), self.resumed, self.weight_versions)

    def _output(self, ids: list[int], params: SamplingParams) -> tuple[list[int], FinishReason, str | None]:
        limit = params.max_tokens or MAX_MODEL_LEN - len(ids)
        text = self.tokenizer.decode(ids)
        for stop in params.stop:
            if stop in text[:limit]:
                return ids[: text.index(stop)], FinishReason.STOP, stop
        if limit <= len(ids):
            return ids[:limit], FinishReason.LENGTH, None
        return ids, FinishReason.STOP, None

    def _position(self, token: int, count: int) -> PositionLogprobs:
        top = [self._logprob(token, -0.5, 1), *(self._logprob(65 + i, -2.0 - i, 2 + i) for i in range(count))]
        return PositionLogprobs(top[0], tuple(top[:count]))

    def _logprob(self, token: int, logprob: float, rank: int) -> TokenLogprob:
        raw = self.tokenizer.token_bytes(token)
        return TokenLogprob(token, logprob, rank, raw.decode("utf-8", "replace"), raw)

    async def render_chat(self, messages: Sequence[ChatMessage], template_arguments: Mapping[str, Any]) -> Prompt:
        if self.draining:
            raise AssertionError("a draining engine renders nothing")
        if self.chat_template is None:
            raise InvalidRequestError("the model has no chat template", param="messages")
        self.arguments = template_arguments
        self.messages = messages
        return {"prompt_token_ids": self.tokenizer.encode(text_of(messages[-1]))}

    async def abort(self, request_id: str) -> bool:
        return request_id in self.active

    async def reset_prefix_cache(self) -> None:
        self.resets += 1

    async def call(self, call: EngineCall[Result]) -> Result:
        if isinstance(call, AbortRequests):
            self.aborted += self.active.intersection(call.names)
            return cast(Result, None)
        raise AssertionError(f"nothing here answers {call}")

    @property
    def death(self) -> EngineDeath | None:
        return None

    def heartbeat_age(self) -> float:
        return 0.0

    def lateness(self) -> Lateness:
        return Lateness()

    def stats(self) -> EngineStats:
        return EngineStats(len(self.active), 0, 1, 1, 0, len(self.active), 0, len(self.aborted), 0, 0, 0, 0, 0)

    def check_health(self) -> None:
        if self.draining:
            raise DrainingError("the server is shutting down")

    async def drain(self, timeout: float) -> None:
        self.draining = True
        try:
            async with asyncio.timeout(timeout):
                while self.active:
                    await asyncio.sleep(0.01)
        except TimeoutError:
            self.killed = True
            while self.active:
                await asyncio.sleep(0.01)
