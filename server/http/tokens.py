"""POST /tokenize and /detokenize, GET /tokenizer_info."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, model_validator
from pydantic_core import PydanticCustomError

from jaxserve.engine.client import EngineClient
from jaxserve.tokenizer.base import token_text
from server.chat.asked import AskedChat
from server.chat.prepare import prepare_chat
from server.http import examples
from server.http.conversation import Messages, plain
from server.http.disconnect import until_gone
from server.http.fields import ONE_END, TokenList
from server.http.headers import client_of, context_of
from server.http.openapi import ASKING, answer, failures
from server.http.prompts import tokens_of
from server.http.replies import DetokenizeReply, TokenizeReply, TokenizerInfoReply
from server.http.strict_json import StrictJsonRoute
from server.http.tools import ThinkingFields, ToolFields
from server.requests import check_not_empty, served, template_arguments
from server.tokenizing import counted, decode
from server.unsupported.check import checked

router = APIRouter(route_class=StrictJsonRoute)


class _TokenizeFields(BaseModel):
    model_config = ConfigDict(strict=True)

    model: str | None = None
    return_token_strs: bool | None = Field(None, description="tell each token's own text too")


class TokenizeTextRequest(_TokenizeFields):
    """A text to tokenize."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"prompt": "hi", "return_token_strs": True}]})

    prompt: str
    add_special_tokens: bool | None = Field(None, description="begin with BOS and the like, which is the default")

    @model_validator(mode="before")
    @classmethod
    def _one_kind(cls, value: Any) -> Any:
        if isinstance(value, dict):
            if value.get("messages") is not None:
                raise PydanticCustomError("contradiction", "cannot be given together with prompt", {"param": "messages"})
            if value.get("prompt") is None:
                raise PydanticCustomError("nothing", "is required, or messages", {"param": "prompt"})
        return value


class TokenizeChatRequest(_TokenizeFields, ToolFields, ThinkingFields):
    """A conversation to write as one prompt and tokenize."""

    model_config = ConfigDict(json_schema_extra={**ONE_END, "examples": [{"messages": [{"role": "user", "content": "hi"}]}]})

    messages: Messages
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    @model_validator(mode="before")
    @classmethod
    def _without_unsupported(cls, value: Any) -> Any:
        return checked(value, cls.model_fields, of_prompt=True) if isinstance(value, dict) else value


def _kind(value: Any) -> str:
    given = value if isinstance(value, dict) else {}
    return "chat" if given.get("messages") is not None and given.get("prompt") is None else "text"


TokenizeRequest = Annotated[
    Annotated[TokenizeTextRequest, Tag("text")] | Annotated[TokenizeChatRequest, Tag("chat")], Discriminator(_kind)
]


class DetokenizeRequest(BaseModel):
    """Tokens to write as a text."""

    model_config = ConfigDict(strict=True, json_schema_extra={"examples": [{"tokens": [104, 105]}]})

    model: str | None = None
    tokens: TokenList


@router.post("/tokenize", responses={**answer(TokenizeReply, examples.TOKENS), **failures(ASKING)}, tags=["tokens"])
async def tokenize(body: TokenizeRequest, request: Request) -> TokenizeReply:
    """Tokens of a text, or of a conversation as the model sees it."""
    context = context_of(request)
    client = served(client_of(request), body.model, context)
    tokens = await until_gone(request.receive, counted(_tokens(client, body), context))
    texts = [token_text(client.tokenizer, token) for token in tokens] if body.return_token_strs else None
    return {"count": len(tokens), "max_model_len": client.model.max_model_len, "tokens": tokens, "token_strs": texts}


async def _tokens(client: EngineClient, body: TokenizeTextRequest | TokenizeChatRequest) -> list[int]:
    if isinstance(body, TokenizeTextRequest):
        return await client.encode(body.prompt, add_special_tokens=body.add_special_tokens is not False)
    return await _chat_tokens(client, body)


async def _chat_tokens(client: EngineClient, body: TokenizeChatRequest) -> list[int]:
    check_not_empty(body.messages, "messages")
    arguments = template_arguments(
        body.chat_template_kwargs or {},
        "chat_template_kwargs",
        add_generation_prompt=body.add_generation_prompt,
        continue_final_message=bool(body.continue_final_message),
    )
    asked = AskedChat(
        messages=plain(body.messages), arguments=arguments, tools=body.asked_tools(), thinking=body.asked_thinking()
    )
    return tokens_of((await prepare_chat(client, asked)).prompt)


@router.post("/detokenize", responses={**answer(DetokenizeReply, {"prompt": "hi"}), **failures(ASKING)}, tags=["tokens"])
async def detokenize(body: DetokenizeRequest, request: Request) -> DetokenizeReply:
    """The text of tokens, special ones written out."""
    context = context_of(request)
    client = served(client_of(request), body.model, context)
    return {"prompt": await until_gone(request.receive, counted(decode(client, body.tokens, "tokens"), context))}


@router.get("/tokenizer_info", responses={**answer(TokenizerInfoReply, examples.TOKENIZER), **failures(ASKING)}, tags=["tokens"])
async def tokenizer_info(request: Request) -> TokenizerInfoReply:
    """What a client must know to write prompts itself."""
    client = client_of(request)
    tokenizer = client.tokenizer
    bos, eos = tokenizer.bos_token_id, tokenizer.eos_token_id
    return {
        "tokenizer_class": type(tokenizer).__name__,
        "vocab_size": tokenizer.vocab_size,
        "model_max_length": client.model.max_model_len,
        "bos_token": None if bos is None else token_text(tokenizer, bos),
        "bos_token_id": bos,
        "eos_token": None if eos is None else token_text(tokenizer, eos),
        "eos_token_id": eos,
        "special_tokens": {token_text(tokenizer, token): token for token in sorted(tokenizer.special_token_ids)},
        "chat_template": client.chat_template,
    }
