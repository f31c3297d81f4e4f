"""POST /v2/embed: embeddings in Cohere's words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Request, Response
from pydantic import ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from jaxserve.pooling.params import PoolingParams
from jaxserve.pooling.pooler import Pooler
from server.http import examples
from server.http.disconnect import until_gone
from server.http.error_bodies import KserveErrorBody
from server.http.fields import told
from server.http.headers import client_of, context_of
from server.http.numbers import Integer
from server.http.openapi import GENERATING, answer, failures
from server.http.pooling.embeddings import written
from server.http.pooling.protocol import EncodingFormat, PooledFields, Texts
from server.http.pooling.replies import CohereEmbeddings, CohereReply
from server.http.pooling.scores import listed
from server.http.pooling.work import json_answer, work_of
from server.http.strict_json import StrictJsonRoute
from server.requests import admit, named_id
from server.tokenizing import WHOLE_CONTEXT

router = APIRouter(route_class=StrictJsonRoute, tags=["pooling"])

InputType = Literal["search_document", "search_query", "classification", "clustering"]
_KINDS: Mapping[InputType, str] = {"search_document": "document", "search_query": "query"}
"""What models of sentence-transformers call the prompts of such texts; others have one name."""
_Formats = Annotated[list[EncodingFormat], Field(json_schema_extra={"minItems": 1})]


class CohereEmbedRequest(PooledFields):
    """Body of POST /v2/embed."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"input_type": "search_query", "texts": ["17 + 25", "hello"]}]})

    texts: Texts = Field(description="at most 1024 texts")
    input_type: InputType | None = Field(None, description="what the texts are; the model's prompt of that kind goes before them")
    embedding_types: _Formats | None = Field(None, description="base64 for little-endian float32; float by default")
    output_dimension: Integer | None = told("numbers of an embedding, where the model was trained to be cut", minimum=1)
    truncate: Literal["NONE", "END"] = Field("END", description="NONE refuses longer texts, END keeps their beginning")
    max_tokens: Integer | None = told("tokens of a text at most; as many as the model takes by default", minimum=1)

    @model_validator(mode="before")
    @classmethod
    def _texts_alone(cls, value: Any) -> Any:
        for name in ("images", "inputs"):
            if isinstance(value, dict) and value.get(name) is not None:
                raise PydanticCustomError("texts_alone", "is not supported: texts are embedded, no images", {"param": name})
        return value


@router.post("/v2/embed", responses={**answer(CohereReply, examples.COHERE), **failures(GENERATING, KserveErrorBody)})
async def embed(body: CohereEmbedRequest, request: Request) -> Response:
    """The embeddings of texts, as Cohere's clients ask for them."""
    client = admit(client_of(request), body.model, context_of(request))
    texts, most = listed(body.texts, "texts"), min(body.max_tokens or client.model.max_model_len, client.model.max_model_len)
    if body.truncate == "END":
        body = body.model_copy(update={"truncate_prompt_tokens": most if body.max_tokens else WHOLE_CONTEXT})
    kinds: list[EncodingFormat] = list(dict.fromkeys(body.embedding_types or ["float"]))
    work = work_of(client, body, request, kinds, prompt="texts", dimensions="output_dimension")
    params = PoolingParams(dimensions=body.output_dimension, use_activation=body.use_activation)
    pooled = await until_gone(
        request.receive, work.pool(named_id("embd-", body.request_id), _prompted(client.model.pooler, body, texts), params)
    )

    def reply() -> CohereReply:
        embeddings: CohereEmbeddings = {kind: [written(one, kind) for one in pooled.vectors] for kind in kinds}  # type: ignore[misc,assignment]
        return {
            "id": pooled.request_id,
            "response_type": "embeddings_by_type",
            "embeddings": embeddings,
            "texts": texts,
            "meta": {"api_version": {"version": "2"}, "billed_units": {"input_tokens": pooled.tally.prompt}},
        }

    return await json_answer(client, reply, pooled.numbers)


def _prompted(pooler: Pooler | None, body: CohereEmbedRequest, texts: list[str]) -> list[str]:
    if pooler is None:
        return texts
    kind = None if body.input_type is None else _KINDS.get(body.input_type, body.input_type)
    return [pooler.prompted(text, kind if kind in pooler.prompts else None) for text in texts]
