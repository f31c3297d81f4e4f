"""What one request may bring and ask for, checked before any work is done for it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jaxserve.errors import ContextLengthError, InvalidRequestError
from jaxserve.pooling.params import PoolingParams
from jaxserve.sampling.params import MAX_LISTED_IDS, MAX_LOGPROBS, NOTHING_CHOSEN, SamplingParams
from jaxserve.types import ChatMessage, Prompt

# OpenAI's words, by which other libraries tell such errors: litellm then tries a model of a longer context.
LONGEST = "this model's maximum context length is"

MAX_MESSAGES = 4096
_ANY_TEXT_BYTES, _ANY_TOKEN_BYTES = 2**20, 64  # of a prompt, and of its tokens, where a token may stand for any number of bytes
_LEFT_OUT = 4  # a template may leave out so many times what it keeps of a conversation
_OVERLAP = 4096  # characters after which tokens no longer depend on where a text was cut


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestBounds:
    """Bounds that depend on model and settings; those of single parameters are SamplingParams'. docs/gateway.md lists them all.

    Attributes:
        context: tokens of a prompt and its output.
        sequences: of one request, prompts times `n`: they must fit the waiting queue together (max_waiting).
        logprob_values: log-probabilities of one answer; one sequence as long as the context may always have all of its.
        pooling_bytes: estimated bytes of the vectors in one response, in the encoding that the client asks for.
        token_bytes: bytes of text that a token stands for at most; None for any number.
        default_max_tokens: output tokens of a request that does not say; None for all that the context leaves.
    """

    context: int
    sequences: int
    logprob_values: int
    token_bytes: int | None
    default_max_tokens: int | None = None
    pooling_bytes: int = 100_000_000

    @property
    def text_bytes(self) -> int:
        """Bytes of UTF-8 that a prompt may have: more cannot fit the context, whatever its tokens are."""
        if self.token_bytes is None:
            return max(_ANY_TEXT_BYTES, self.context * _ANY_TOKEN_BYTES)
        return (self.context + 1) * self.token_bytes  # of a prompt that is only scored the last token needs no place

    def check(self, prompts: Sequence[Prompt], params: SamplingParams | PoolingParams) -> None:
        """Raise InvalidRequestError or ContextLengthError for a request of these prompts that takes too much."""
        sampling = NOTHING_CHOSEN if isinstance(params, PoolingParams) else params
        self.check_count(len(prompts), sampling)
        for prompt in prompts:
            self.check_prompt(prompt)
        if not isinstance(params, PoolingParams):
            self._check_logprobs(prompts, params)

    def check_count(self, prompts: int, params: SamplingParams) -> None:
        """Raise InvalidRequestError for too many sequences, or too many listed token ids for so many."""
        sequences = prompts * params.n
        if sequences > self.sequences:
            if prompts == 1:
                raise InvalidRequestError(f"n must be at most {self.sequences} (max_waiting), got {params.n}", param="n")
            raise InvalidRequestError(
                f"prompt holds {prompts} prompts, which with n {params.n} make {sequences} sequences, "
                f"but at most {self.sequences} (max_waiting) can wait together",
                param="prompt",
            )
        lists = {"allowed_token_ids": params.allowed_token_ids or (), "logit_bias": params.logit_bias}
        name, ids = max(lists.items(), key=lambda one: len(one[1]))
        if sequences * len(ids) > MAX_LISTED_IDS:
            raise InvalidRequestError(
                f"{name} has {len(ids)} token ids, which for {sequences} sequences make {sequences * len(ids)}, "
                f"but at most {MAX_LISTED_IDS} are taken",
                param=name,
            )

    def check_prompt(self, prompt: Prompt) -> None:
        """Raise ContextLengthError for a prompt that cannot fit; whatever is no prompt is left for the intake to refuse."""
        fields: Mapping[str, Any] = prompt if isinstance(prompt, Mapping) else {"prompt": prompt}
        ids, text = fields.get("prompt_token_ids"), fields.get("prompt")
        if isinstance(ids, list | tuple):
            self.check_ids(len(ids))
        elif isinstance(text, str):
            self.check_text(text)

    def check_ids(self, count: int, param: str = "prompt") -> None:
        """Raise ContextLengthError for so many token ids that they cannot fit."""
        if count > self.context + 1:
            raise ContextLengthError(
                f"{param} has {count} tokens, but {LONGEST} {self.context} (max_model_len) and one must be left for output: "
                "the prompt is too long",
                param=param,
            )

    def check_text(self, text: str, param: str = "prompt") -> None:
        """Raise ContextLengthError for a text whose tokens cannot fit."""
        self._check_bytes(_utf8_bytes(text), self.text_bytes, param)

    def check_messages(self, messages: Sequence[ChatMessage]) -> None:
        """Raise InvalidRequestError or ContextLengthError for a conversation that no template makes fit."""
        if len(messages) > MAX_MESSAGES:
            raise InvalidRequestError(f"messages must be at most {MAX_MESSAGES}, got {len(messages)}", param="messages")
        total = sum(_utf8_bytes(text) for message in messages for text in _texts_of(message))
        self._check_bytes(total, _LEFT_OUT * self.text_bytes, "messages")

    def end_of(self, text: str, tokens: int) -> str:
        """The part of a text in which its last `tokens` tokens are; all of it where that is not known."""
        if self.token_bytes is None:
            self.check_text(text)
            return text
        most = tokens * self.token_bytes + _OVERLAP
        if len(text) <= most:
            return text
        end = text[-most:]
        return end[max(end.find(" ", 0, _OVERLAP), 0) :]  # words are cut nowhere if that can be

    def check_vectors(self, vectors: int, width: int, value_bytes: float) -> None:
        """Raise InvalidRequestError for a response with too many bytes of vectors.

        Args:
            width: values of a vector.
            value_bytes: of one value in the response, on average.
        """
        size = int(vectors * width * value_bytes)
        if size > self.pooling_bytes:
            raise InvalidRequestError(
                f"prompt makes at least {vectors} vectors of {width} values, about {size} bytes in this encoding, but a response "
                f"may have {self.pooling_bytes} (max_pooling_bytes): send fewer or shorter inputs, ask for encoding_format "
                "base64 if the API has it, or for fewer dimensions if the model allows them",
                param="prompt",
            )

    def _check_bytes(self, size: int, most: int, param: str) -> None:
        if size > most:
            raise ContextLengthError(
                f"{param} has {size} bytes, but {LONGEST} {self.context} (max_model_len): more than {most} bytes "
                "cannot fit: the prompt is too long",
                param=param,
            )

    def _check_logprobs(self, prompts: Sequence[Prompt], params: SamplingParams) -> None:
        most = max(self.logprob_values, self.context * (MAX_LOGPROBS + 1))
        asked = params.max_tokens if params.max_tokens is not None else self.default_max_tokens
        output = self.context if asked is None else min(asked, self.context)
        values = 0
        if params.prompt_logprobs is not None:
            scored = sum(max(self._tokens(prompt) - params.prompt_logprobs_start, 0) for prompt in prompts)
            values += params.n * scored * (params.prompt_logprobs + 1)
        of_prompts = values
        if params.logprobs is not None:
            values += len(prompts) * params.n * output * (params.logprobs + 1)
        if values > most:
            name = "prompt_logprobs" if 2 * of_prompts > values else "logprobs"
            raise InvalidRequestError(
                f"{name} of {getattr(params, name)} makes up to {values} log-probabilities with {len(prompts)} prompts, "
                f"n {params.n} and max_tokens {params.max_tokens}, but an answer may have {most} (max_logprob_values): "
                "ask for fewer at a time",
                param=name,
            )

    def _tokens(self, prompt: Prompt) -> int:
        fields: Mapping[str, Any] = prompt if isinstance(prompt, Mapping) else {"prompt": prompt}
        ids, text = fields.get("prompt_token_ids"), fields.get("prompt")
        size = len(ids) if isinstance(ids, list | tuple) else _utf8_bytes(text) if isinstance(text, str) else 0
        return min(size, self.context)


def _texts_of(message: ChatMessage) -> Iterable[str]:
    if not isinstance(message, Mapping):
        return
    content: Any = message.get("content")
    if isinstance(content, str):
        yield content
    elif isinstance(content, list):
        yield from (part["text"] for part in content if isinstance(part, Mapping) and isinstance(part.get("text"), str))
    yield str(message.get("reasoning_content", ""))  # which templates have under one of its names
    yield from map(str, message.get("tool_calls", ()))


def _utf8_bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode(errors="surrogatepass"))
