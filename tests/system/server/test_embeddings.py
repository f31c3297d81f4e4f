"""/v1/embeddings and its relatives of a real server that generates as well, with API keys and two front ends."""

from __future__ import annotations

import base64
import hashlib
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import numpy as np
import openai
import pytest

from jaxserve.proto import inference_pb2 as pb
from jaxserve.proto.inference_pb2_grpc import InferenceStub
from tests.golden.reading import DATA
from tests.support.batches import wait
from tests.support.hash_server import until
from tests.support.serve_process import Process, Served

POOLED = DATA.parent / "pooled"
KEYS = {"acme": 'tenant = "acme"', "daily": 'tenant = "daily"\ndaily_tokens = 20'}
CONTEXT, SIZE = 256, 256
FLAGS = ("--max-num-seqs", "4", "--max-num-batched-tokens", "64", "--max-model-len", str(CONTEXT), "--frontends", "2")
TEXTS = ["17 + 25 =", "hello", "one two three"]
LONG = [5] * 200  # tokens


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("embeddings")
    lines = [f'[[key]]\nsha256 = "{hashlib.sha256(key.encode()).hexdigest()}"\n{more}\n' for key, more in KEYS.items()]
    (path / "keys.toml").write_text("".join(lines))
    return path


@pytest.fixture(scope="module")
def server(served: Served, folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    kept = ("--usage-log", str(folder / "usage.jsonl"), "--state-dir", str(folder / "state"))
    files = ("--keys", str(folder / "keys.toml"), *kept)
    bound = ("--max-pooling-bytes", "1000000")
    yield from served(tmp_path_factory.mktemp("server"), "--model", "pico", "--convert", "embed", *files, *bound, *FLAGS)


@pytest.fixture(scope="module")
def http(server: Process) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.http, timeout=120, headers={"Authorization": "Bearer acme"}) as one:
        yield one


@pytest.fixture(scope="module")
def sdk(server: Process) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.http}/v1", api_key="acme", max_retries=0) as one:
        yield one


def post(http: httpx.Client, path: str, **body: Any) -> dict[str, Any]:
    reply = http.post(path, json=body)
    assert reply.status_code == 200, reply.text
    found: dict[str, Any] = reply.json()
    return found


def test_the_openai_sdk_gets_the_same_vectors_however_it_asks(sdk: openai.OpenAI, http: httpx.Client) -> None:
    reply = sdk.embeddings.create(model="pico", input=TEXTS)  # base64 on the wire, as the SDK asks
    vectors = np.array([one.embedding for one in reply.data])
    assert vectors.shape == (3, SIZE)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, rtol=1e-5)
    assert [one.index for one in reply.data] == [0, 1, 2]
    assert (reply.object, reply.model) == ("list", "pico")
    plain = sdk.embeddings.create(model="pico", input=TEXTS, encoding_format="float")
    np.testing.assert_allclose([one.embedding for one in plain.data], vectors, atol=1e-6)
    ids = [post(http, "/tokenize", prompt=text)["tokens"] for text in TEXTS]
    assert reply.usage.prompt_tokens == reply.usage.total_tokens == sum(map(len, ids))
    given: list[tuple[Any, int]] = [(TEXTS[1], 1), (ids[1], 1), (ids, 0)]
    for sent, place in given:
        same = sdk.embeddings.create(model="pico", input=sent)
        np.testing.assert_allclose(same.data[0].embedding, vectors[place], atol=2e-2)  # in bfloat16, in steps of other sizes


def test_vectors_and_texts_come_from_one_server(sdk: openai.OpenAI, http: httpx.Client) -> None:
    said = sdk.completions.create(model="pico", prompt="17 + 25 =", temperature=0, max_tokens=4).choices[0].text
    assert said
    tokens = post(http, "/pooling", input=TEXTS[0], task="token_embed", use_activation=False)
    every = np.array(tokens["data"][0]["data"])
    assert every.shape == (tokens["usage"]["prompt_tokens"], SIZE)
    coded = post(http, "/pooling", input=TEXTS[0], pooling="mean", use_activation=False, encoding_format="base64")
    mean = np.frombuffer(base64.b64decode(coded["data"][0]["data"]), "<f4")
    np.testing.assert_allclose(mean, every.mean(0), atol=2e-2)


def test_documents_are_ranked_by_their_embeddings(http: httpx.Client) -> None:
    documents = ["hello there", "17 + 25 =", "x"]
    scores = [one["score"] for one in post(http, "/v1/score", text_1=TEXTS[0], text_2=documents)["data"]]
    assert scores[1] == pytest.approx(1.0, abs=1e-3)
    for path in ("/rerank", "/v1/rerank", "/v2/rerank"):
        ranked = post(http, path, model="pico", query=TEXTS[0], documents=documents, top_n=2)
        assert [one["index"] for one in ranked["results"]] == sorted(range(3), key=lambda index: -scores[index])[:2]
        assert ranked["results"][0]["document"] == {"text": documents[1]}
    objects = [{"text": text} for text in documents]
    short = post(http, "/rerank", query=TEXTS[0], documents=objects, return_documents=False)
    assert [set(one) for one in short["results"]] == [{"index", "relevance_score"}] * 3


def test_cohere_s_words(http: httpx.Client) -> None:
    vectors = [one["embedding"] for one in post(http, "/v1/embeddings", input=TEXTS)["data"]]
    asked = {"model": "pico", "texts": TEXTS, "input_type": "search_query"}
    reply = post(http, "/v2/embed", **asked, embedding_types=["float", "base64"])
    np.testing.assert_allclose(reply["embeddings"]["float"], vectors, atol=2e-2)
    coded = np.frombuffer(base64.b64decode(reply["embeddings"]["base64"][1]), "<f4")
    np.testing.assert_allclose(coded, reply["embeddings"]["float"][1], atol=1e-7)
    assert (reply["texts"], reply["response_type"]) == (TEXTS, "embeddings_by_type")
    long = {**asked, "texts": ["seven words are in this short text " * 200]}
    for most, tokens in (({}, CONTEXT), ({"max_tokens": 7}, 7), ({"max_tokens": 999}, CONTEXT)):
        assert post(http, "/v2/embed", **long, **most)["meta"]["billed_units"] == {"input_tokens": tokens}
    for change, words in (
        ({**long, "truncate": "NONE"}, "maximum context length"),
        ({**asked, "truncate": "START"}, "truncate"),
        ({**asked, "texts": []}, "texts must not be empty"),
        ({**asked, "output_dimension": 8}, "no matryoshka_dimensions"),
        ({**asked, "images": ["data:"]}, "images"),
        ({**asked, "texts": ["a"] * 160, "embedding_types": ["float", "base64"]}, "texts makes at least 160 vectors of 256"),
    ):
        refused = http.post("/v2/embed", json=change)
        assert refused.status_code == 400
        assert words in refused.text


def test_a_long_text_is_cut_where_that_is_asked(http: httpx.Client) -> None:
    text = "seven words are in this short text " * 200
    assert post(http, "/v1/embeddings", input=text, truncate_prompt_tokens=-1)["usage"]["prompt_tokens"] == CONTEXT
    assert post(http, "/v1/embeddings", input=text, truncate_prompt_tokens=7)["usage"]["prompt_tokens"] == 7


@pytest.mark.parametrize(
    ("path", "body", "param", "words"),
    [
        ("/v1/embeddings", {}, "input", "required"),
        ("/v1/embeddings", {"input": ""}, "input", "must not be empty"),
        ("/v1/embeddings", {"input": []}, "input", "must not be empty"),
        ("/v1/embeddings", {"input": ["a", ""]}, "input[1]", "must not be empty"),
        ("/v1/embeddings", {"input": [[5, 99999]]}, "input", "has 99999: token ids are integers from 0"),
        ("/v1/embeddings", {"input": ["a"] * 1025}, "input", "at most 1024"),
        ("/v1/embeddings", {"input": "a b " * 400}, "input", f"maximum context length is {CONTEXT}"),
        ("/v1/embeddings", {"input": "a", "dimensions": 64}, "dimensions", "no matryoshka_dimensions"),
        ("/v1/embeddings", {"input": "a", "dimensions": 0}, "dimensions", "at least 1"),
        ("/v1/embeddings", {"input": "a", "encoding_format": "hex"}, "encoding_format", "float"),
        ("/v1/embeddings", {"input": "a", "truncate_prompt_tokens": 257}, "truncate_prompt_tokens", "between 1 and 256"),
        ("/v1/embeddings", {"input": "a", "stream": True}, "stream", "must not be true"),
        ("/v1/embeddings", {"input": "a", "prompt_name": "query"}, "prompt_name", "not declared"),
        ("/classify", {"input": "a"}, "task", "served for embed, token_embed"),
        ("/pooling", {"input": "a", "task": "score"}, "task", "served for embed, token_embed"),
        ("/pooling", {"input": [LONG], "task": "token_embed"}, "input", "may have 1000000 (max_pooling_bytes)"),
        ("/pooling", {"input": [LONG] * 4, "task": "token_embed", "encoding_format": "base64"}, "input", "max_pooling_bytes"),
        ("/v1/embeddings", {"input": ["a"] * 200}, "input", "send fewer or shorter inputs"),
        ("/score", {"text_1": ["a", "b"], "text_2": ["c"]}, "queries", "they are 2 and 1"),
        ("/rerank", {"query": "a", "documents": []}, "documents", "must not be empty"),
        ("/rerank", {"query": "a", "documents": ["b", ""]}, "documents[1]", "must not be empty"),
    ],
)
def test_what_cannot_be_pooled_is_refused_by_name(
    http: httpx.Client, path: str, body: dict[str, Any], param: str, words: str
) -> None:
    reply = http.post(path, json=body)
    assert reply.status_code == 400, reply.text
    error = reply.json()["error"]
    assert error["param"] == param, error
    assert words in error["message"]


def test_the_encoding_asked_for_decides_the_size(http: httpx.Client) -> None:
    body = {"input": [LONG], "task": "token_embed", "encoding_format": "base64"}
    (one,) = post(http, "/pooling", **body)["data"]
    assert len(base64.b64decode(one["data"])) == len(LONG) * SIZE * 4


def billed(folder: Path, tenant: str) -> list[dict[str, Any]]:
    log = folder / "usage.jsonl"
    lines = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    return [line for line in lines if line["tenant"] == tenant]


def test_keys_limits_and_usage_hold(http: httpx.Client, folder: Path) -> None:
    assert http.post("/v1/embeddings", json={"input": "a"}, headers={"Authorization": "Bearer nobody"}).status_code == 401
    daily = {"Authorization": "Bearer daily"}
    spent = [http.post("/v1/embeddings", json={"input": TEXTS[0] * 2}, headers=daily).status_code for _ in range(4)]
    assert spent[0] == 200
    assert 429 in spent
    keyed = {"Idempotency-Key": "once"}
    first, again = (http.post("/v1/embeddings", json={"input": "a"}, headers=keyed) for _ in range(2))
    assert first.json() == again.json()
    until(lambda: billed(folder, "daily"))
    lines = billed(folder, "daily")
    assert lines[0]["prompt_tokens"] > 0
    assert lines[0]["completion_tokens"] == 0


@pytest.fixture(scope="module")
def reranking(served: Served, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    words = {"architectures": ["Qwen3ForSequenceClassification"], "classifier_from_token": ["to", "te"]}
    flags = ("--model", str(POOLED / "qwen3-reranker"), "--hf-overrides", json.dumps(words), "--dtype", "float32")
    yield from served(tmp_path_factory.mktemp("reranker"), *flags, "--max-num-seqs", "4", "--max-num-batched-tokens", "32")


@pytest.fixture(scope="module")
def reranker(reranking: Process) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=reranking.http, timeout=120) as http:
        yield http


def test_a_reranker_scores_pairs_and_generates_nothing(reranker: httpx.Client) -> None:
    golden = json.loads((POOLED / "qwen3-reranker" / "pooled.json").read_text())
    queries, documents = (list(texts) for texts in zip(*golden["pairs"], strict=True))
    scores = post(reranker, "/score", queries=queries, documents=documents)["data"]
    np.testing.assert_allclose([one["score"] for one in scores], golden["scores"], atol=1e-4)
    (best,) = post(reranker, "/rerank", query=queries[0], documents=[documents[0], "x"], top_n=1)["results"]
    assert best["index"] in (0, 1)
    (told,) = post(reranker, "/classify", input=queries[0] + documents[0])["data"]
    assert (told["label"], told["num_classes"]) == ("te", 1)
    assert told["probs"] == pytest.approx(golden["scores"][:1], abs=1e-4)
    for path, body in (("/v1/completions", {"prompt": "a"}), ("/v1/embeddings", {"input": "a"})):
        reply = reranker.post(path, json=body)
        assert reply.status_code == 400
        assert "this model is served" in reply.json()["error"]["message"]


def test_embeddings_come_from_batches(sdk: openai.OpenAI) -> None:
    lines = [
        {"custom_id": str(index), "method": "POST", "url": "/v1/embeddings", "body": {"input": text}}
        for index, text in enumerate(TEXTS)
    ]
    file = io.BytesIO("\n".join(map(json.dumps, lines)).encode())
    sent = sdk.files.create(file=("in.jsonl", file), purpose="batch")
    batch = wait(sdk, sdk.batches.create(input_file_id=sent.id, endpoint="/v1/embeddings", completion_window="24h"))
    assert batch.status == "completed", batch
    rows = [json.loads(line) for line in sdk.files.content(batch.output_file_id or "").text.splitlines()]
    assert {row["custom_id"] for row in rows} == {"0", "1", "2"}
    assert all(len(row["response"]["body"]["data"][0]["embedding"]) == SIZE for row in rows)


def pooled(server: Process, key: str = "acme", **fields: Any) -> pb.PoolResponse:
    with grpc.insecure_channel(server.grpc) as channel:
        metadata = [("authorization", f"Bearer {key}")]
        response: pb.PoolResponse = InferenceStub(channel).Pool(pb.PoolRequest(**fields), timeout=120, metadata=metadata)
        return response


def texts(*given: str) -> list[pb.PoolInput]:
    return [pb.PoolInput(text=text) for text in given]


def test_grpc_gives_the_same_vectors(server: Process, http: httpx.Client) -> None:
    wanted = [one["embedding"] for one in post(http, "/v1/embeddings", input=TEXTS)["data"]]
    ids = post(http, "/tokenize", prompt=TEXTS[0])["tokens"]
    reply = pooled(server, request_id="mine", inputs=[*texts(*TEXTS), pb.PoolInput(tokens=pb.TokenIds(ids=ids))])
    for vector, embedding in zip(reply.vectors, [*wanted, wanted[0]], strict=True):
        assert vector.rows == 1
        np.testing.assert_allclose(vector.values, embedding, atol=2e-2)  # in bfloat16, in steps of other sizes
    assert (reply.request_id, reply.model, list(reply.labels)) == ("mine", "pico", [])
    assert reply.usage.prompt_tokens > 2 * len(ids)
    (tokens,) = pooled(server, inputs=texts(TEXTS[0]), task="token_embed").vectors
    assert (tokens.rows, len(tokens.values)) == (len(ids), len(ids) * SIZE)
    (cut,) = pooled(server, inputs=texts("one two three four " * 200), truncate_prompt_tokens=5, use_activation=False).vectors
    (same,) = pooled(server, inputs=texts("one two three four " * 4), truncate_prompt_tokens=5, use_activation=False).vectors
    np.testing.assert_allclose(cut.values, same.values, atol=2e-2)


def test_kserve_of_a_model_that_generates_as_well(http: httpx.Client) -> None:
    """Text, unless a task is named."""
    wanted = [one["embedding"] for one in post(http, "/v1/embeddings", input=TEXTS)["data"]]
    tensor = {"name": "text_input", "datatype": "BYTES", "shape": [3], "data": TEXTS}
    (output,) = post(http, "/v2/models/pico/infer", inputs=[tensor], parameters={"task": "embed"})["outputs"]
    np.testing.assert_allclose(np.reshape(output["data"], output["shape"]), wanted, atol=2e-2)
    assert post(http, "/v2/models/pico/generate", text_input=TEXTS[0], temperature=0, max_tokens=2)["text_output"]


def test_grpc_scores_pairs(reranking: Process) -> None:
    golden = json.loads((POOLED / "qwen3-reranker" / "pooled.json").read_text())
    inputs = [pb.PoolInput(pair=pb.TextPair(first=first, second=second)) for first, second in golden["pairs"]]
    reply = pooled(reranking, inputs=inputs, task="score")
    np.testing.assert_allclose([vector.values[0] for vector in reply.vectors], golden["scores"], atol=1e-4)
    assert list(pooled(reranking, inputs=texts("a")).labels) == ["te"]


@pytest.mark.parametrize(
    ("fields", "code", "words"),
    [
        ({}, "INVALID_ARGUMENT", "inputs must not be empty"),
        ({"inputs": texts(*["a"] * 1025)}, "INVALID_ARGUMENT", "inputs must be at most 1024 values"),
        ({"inputs": [pb.PoolInput()]}, "INVALID_ARGUMENT", r"inputs\[0\] is empty: one of text, tokens and pair"),
        ({"inputs": texts("a", "")}, "INVALID_ARGUMENT", r"inputs\[1\].text must not be empty"),
        ({"inputs": texts("a"), "task": "sing"}, "INVALID_ARGUMENT", "task must be one of"),
        ({"inputs": texts("a"), "task": "classify"}, "INVALID_ARGUMENT", "classify"),
        ({"inputs": texts("a"), "dimensions": 8}, "INVALID_ARGUMENT", "dimensions"),
        ({"inputs": texts("a"), "prompt_name": "query"}, "INVALID_ARGUMENT", "prompt_name"),
        ({"inputs": texts("a " * 2000)}, "INVALID_ARGUMENT", "inputs"),
        ({"inputs": texts(*["a b " * 60] * 40), "task": "token_embed"}, "INVALID_ARGUMENT", "max_pooling_bytes"),
        ({"inputs": texts("a"), "truncate_prompt_tokens": 0}, "INVALID_ARGUMENT", "truncate_prompt_tokens must be -1 or"),
        ({"inputs": texts("a"), "model": "other"}, "NOT_FOUND", "'other' is not served here"),
        ({"inputs": texts("a"), "key": "nobody"}, "UNAUTHENTICATED", "key"),
    ],
)
def test_what_cannot_be_pooled_is_refused_over_grpc(server: Process, fields: dict[str, Any], code: str, words: str) -> None:
    with pytest.raises(grpc.RpcError, match=words) as refused:
        pooled(server, **fields)
    assert refused.value.code().name == code
