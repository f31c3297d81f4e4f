"""What the endpoints that pool answer."""

from __future__ import annotations

from typing import Any, Literal, NotRequired

from typing_extensions import TypedDict


class PooledUsage(TypedDict):
    """Token counts of a request that generates nothing."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingData(TypedDict):
    """One embedding: numbers, or base64 of little-endian float32."""

    index: int
    object: Literal["embedding"]
    embedding: list[float] | str


class EmbeddingReply(TypedDict):
    """Answer of POST /v1/embeddings."""

    id: str
    object: Literal["list"]
    created: int
    model: str
    data: list[EmbeddingData]
    usage: PooledUsage


class PoolingData(TypedDict):
    """What was pooled of one text."""

    index: int
    object: Literal["pooling"]
    data: list[Any] | str


class PoolingReply(TypedDict):
    """Answer of POST /pooling."""

    id: str
    object: Literal["list"]
    created: int
    model: str
    data: list[PoolingData]
    usage: PooledUsage


class ClassData(TypedDict):
    """The classes of one text, the likeliest named."""

    index: int
    label: str
    probs: list[float]
    num_classes: int


class ClassifyReply(TypedDict):
    """Answer of POST /classify."""

    id: str
    object: Literal["list"]
    created: int
    model: str
    data: list[ClassData]
    usage: PooledUsage


class ScoreData(TypedDict):
    """How relevant one document is."""

    index: int
    object: Literal["score"]
    score: float


class ScoreReply(TypedDict):
    """Answer of POST /score."""

    id: str
    object: Literal["list"]
    created: int
    model: str
    data: list[ScoreData]
    usage: PooledUsage


class RerankDocument(TypedDict):
    """A document as it came."""

    text: str


class RerankResult(TypedDict):
    """One document, at its place by relevance; `index` is its place in the request."""

    index: int
    relevance_score: float
    document: NotRequired[RerankDocument]


class RerankReply(TypedDict):
    """Answer of POST /rerank."""

    id: str
    model: str
    results: list[RerankResult]
    usage: PooledUsage


class CohereEmbeddings(TypedDict, total=False):
    """Embeddings in the forms that were asked for."""

    base64: list[str]
    float: list[list[float]]


class CohereVersion(TypedDict):
    """Of the interface."""

    version: Literal["2"]


class CohereUnits(TypedDict):
    """What is counted."""

    input_tokens: int


class CohereMeta(TypedDict):
    """What there is to say beside embeddings."""

    api_version: CohereVersion
    billed_units: CohereUnits


class CohereReply(TypedDict):
    """Answer of POST /v2/embed."""

    id: str
    response_type: Literal["embeddings_by_type"]
    embeddings: CohereEmbeddings
    texts: list[str]
    meta: CohereMeta
