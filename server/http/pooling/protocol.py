"""Bodies of the endpoints that pool, in OpenAI's, vLLM's, Cohere's and Jina's words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from jaxserve.pooling.params import PoolingTask, PoolingType
from server.http.fields import RequestFields, told
from server.http.numbers import Integer
from server.http.protocol import PromptField
from server.http.unions import described
from server.requests import MAX_PROMPTS
from server.unsupported.check import checked

EncodingFormat = Literal["float", "base64"]
_Text = Annotated[str, Field(json_schema_extra={"minLength": 1})]
Texts = Annotated[list[_Text], Field(json_schema_extra={"minItems": 1, "maxItems": MAX_PROMPTS})]


class _Document(BaseModel):
    model_config = ConfigDict(strict=True)

    text: _Text


Documents = Annotated[
    list[_Text | _Document], Field(json_schema_extra={"minItems": 1, "maxItems": MAX_PROMPTS}), described("a list of texts")
]
SomeTexts = Annotated[_Text | Texts, described("a string or a list of strings")]
_PAIRS: Mapping[str, tuple[str, ...]] = {"queries": ("text_1", "data_1"), "documents": ("text_2", "data_2")}


class PooledFields(RequestFields):
    """Fields that all of them know by one name."""

    user: str | None = Field(None, description="a tag of the client's own, without effect")
    truncate_prompt_tokens: Integer | None = told(
        "keep only so many tokens at the beginning of a text; -1 keeps what the context has room for", minimum=-1
    )
    use_activation: bool | None = Field(
        None, description="normalize embeddings, make probabilities of outputs; as the model says by default"
    )

    @model_validator(mode="before")
    @classmethod
    def _without_unsupported(cls, value: Any) -> Any:
        return checked(value, cls.model_fields.keys()) if isinstance(value, dict) else value

    @model_validator(mode="after")
    def _comes_whole(self) -> PooledFields:
        if self.stream:
            raise PydanticCustomError("no_stream", "must not be true: the answer comes as a whole", {"param": "stream"})
        return self


class EmbeddingRequest(PooledFields):
    """Body of POST /v1/embeddings."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"input": ["17 + 25", "hello"], "encoding_format": "float"}]})

    input: PromptField = Field(description="one text, or at most 1024 of them")
    encoding_format: EncodingFormat | None = Field(None, description="base64 for little-endian float32; float by default")
    dimensions: Integer | None = told("numbers of an embedding, where the model was trained to be cut (Matryoshka)", minimum=1)
    prompt_name: str | None = Field(None, description="which of the model's own prompts goes before texts")


class PoolingRequest(EmbeddingRequest):
    """Body of POST /pooling."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"input": "17 + 25", "task": "token_embed"}]})

    task: PoolingTask | None = Field(None, description="embed by default, where the model embeds; else classify")
    pooling: PoolingType | None = Field(None, description="whose hidden states; as the model says by default")


class ClassifyRequest(PooledFields):
    """Body of POST /classify."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"input": ["good", "bad"]}]})

    input: PromptField = Field(description="one text, or at most 1024 of them")


class ScoreRequest(PooledFields):
    """Body of POST /score."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"queries": "17 + 25", "documents": ["42", "hello"]}]})

    queries: SomeTexts = Field(description="one text, or as many as documents; also text_1 or data_1")
    documents: SomeTexts = Field(description="texts; also text_2 or data_2")

    @model_validator(mode="before")
    @classmethod
    def _older_names(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        for name, older in _PAIRS.items():
            for other in older:
                if name not in value and other in value:
                    value = {name: value[other], **{key: item for key, item in value.items() if key != other}}
        return value


class RerankRequest(PooledFields):
    """Body of POST /rerank."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"query": "17 + 25", "documents": ["hello", "42"], "top_n": 1}]})

    query: _Text = Field(description="what documents are compared with")
    documents: Documents = Field(description="texts, or objects with a text; at most 1024")
    top_n: Integer | None = told("tell only so many, the most relevant; all by default", minimum=0)
    return_documents: bool | None = Field(None, description="tell the documents' texts, which is the default")
