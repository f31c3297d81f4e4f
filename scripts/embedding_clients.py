"""Embedding clients of unmodified libraries on a running server: `python scripts/embedding_clients.py http://127.0.0.1:8000`.

Each gets vectors, or documents in their order, which must be those that plain requests get. The server serves a model that
embeds.
A line is printed for each library; the exit status tells whether all were right.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import Any

import httpx
import numpy as np

TEXTS = ["a cat sits on the mat", "the stock market fell", "there is a cat on a mat", "prices of shares went down"]
SCORES = [5.0, 0.0, 0.0, 4.0]  # of these with the first, the second, the third and the first: cats are cats
LEAST_COSINE = 0.999  # steps of other sizes round otherwise


class Server:
    """What plain requests get."""

    def __init__(self, url: str, model: str, key: str) -> None:
        self.url, self.model, self.key = url, model, key
        self._http = httpx.Client(base_url=url, headers={"Authorization": f"Bearer {key}"}, timeout=120)

    def vectors(self) -> list[list[float]]:
        reply = self._http.post("/v1/embeddings", json={"model": self.model, "input": TEXTS}).raise_for_status().json()
        return [one["embedding"] for one in reply["data"]]

    def order(self) -> list[int]:
        asked = {"model": self.model, "query": TEXTS[0], "documents": TEXTS}
        results = self._http.post("/rerank", json=asked).raise_for_status().json()["results"]
        return [one["index"] for one in results]


class Wrong(Exception):
    """A library did not get what it should."""


def expect_vectors(found: Sequence[Sequence[float]], wanted: Sequence[Sequence[float]]) -> None:
    for got, want in zip(np.array(found), np.array(wanted), strict=True):
        cosine = got @ want / (np.linalg.norm(got) * np.linalg.norm(want))
        if not cosine > LEAST_COSINE:
            raise Wrong(f"a cosine of {cosine} with what plain requests get")


def with_openai(server: Server) -> None:
    """Base64 on the wire, as the SDK asks."""
    import openai

    with openai.OpenAI(base_url=f"{server.url}/v1", api_key=server.key) as client:
        data = client.embeddings.create(model=server.model, input=TEXTS).data
        expect_vectors([one.embedding for one in data], server.vectors())


def with_cohere(server: Server) -> None:
    """Embeddings and ranks."""
    import cohere

    client = cohere.ClientV2(api_key=server.key, base_url=server.url)
    reply = client.embed(model=server.model, texts=TEXTS, input_type="search_document", embedding_types=["float"])
    expect_vectors(reply.embeddings.float_ or [], server.vectors())
    ranked = client.rerank(model=server.model, query=TEXTS[0], documents=TEXTS, top_n=2)
    if [one.index for one in ranked.results] != server.order()[:2]:
        raise Wrong(f"ranks {[one.index for one in ranked.results]} for {server.order()}")


def with_langchain(server: Server) -> None:
    """Documents and a query."""
    from langchain_openai import OpenAIEmbeddings

    given: Any = {"base_url": f"{server.url}/v1", "api_key": server.key, "check_embedding_ctx_length": False}
    embeddings = OpenAIEmbeddings(model=server.model, **given)
    expect_vectors(embeddings.embed_documents(TEXTS), server.vectors())
    expect_vectors([embeddings.embed_query(TEXTS[0])], server.vectors()[:1])


def with_llama_index(server: Server) -> None:
    """Texts of a batch and one alone."""
    from llama_index.embeddings.openai_like import OpenAILikeEmbedding

    embedding = OpenAILikeEmbedding(model_name=server.model, api_base=f"{server.url}/v1", api_key=server.key)
    expect_vectors(embedding.get_text_embedding_batch(TEXTS), server.vectors())
    expect_vectors([embedding.get_query_embedding(TEXTS[0])], server.vectors()[:1])


def with_mteb(server: Server) -> None:
    """A task of similarity over texts that are here: its score is that of the plain vectors."""
    import mteb
    import openai
    from datasets import Dataset, DatasetDict
    from mteb.models.abs_encoder import AbsEncoder

    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key=server.key)

    class Served(AbsEncoder):  # type: ignore[misc]
        """Texts through the server."""

        def __init__(self) -> None:
            self.mteb_model_meta = mteb.models.ModelMeta.create_empty({"name": "served/model", "revision": "1"})

        def encode(self, inputs: Any, **more: Any) -> Any:
            texts = [text for batch in inputs for text in batch["text"]]
            return np.array([one.embedding for one in client.embeddings.create(model=server.model, input=texts).data])

    class Cats(mteb.abstasks.AbsTaskSTS):  # type: ignore[misc, name-defined]
        """Pairs of the texts."""

        metadata = mteb.TaskMetadata(
            name="Cats",
            description="similar texts",
            dataset={"path": "local", "revision": "1"},
            type="STS",
            category="t2t",
            modalities=["text"],
            eval_splits=["test"],
            eval_langs=["eng-Latn"],
            main_score="cosine_spearman",
            date=("2026-01-01", "2026-01-02"),
            domains=["Written"],
            task_subtypes=[],
            license="mit",
            annotations_creators="derived",
            dialect=[],
            sample_creation="created",
            reference=None,
            bibtex_citation="",
        )
        min_score, max_score = 0, 5

        def load_data(self, *given: Any, **more: Any) -> None:
            pairs = {"sentence1": TEXTS, "sentence2": [*TEXTS[1:], TEXTS[0]], "score": SCORES}
            self.dataset = DatasetDict({"test": Dataset.from_dict(pairs)})
            self.data_loaded = True

    result = mteb.evaluate(Served(), [Cats()], cache=None, show_progress_bar=False)
    found = result.task_results[0].scores["test"][0]["cosine_pearson"]
    vectors = np.array(server.vectors())
    cosines = np.sum(vectors * np.roll(vectors, -1, axis=0), axis=1)
    wanted = float(np.corrcoef(cosines, SCORES)[0, 1])
    if not abs(found - wanted) < 0.01:
        raise Wrong(f"a correlation of {found} for {wanted}")


LIBRARIES: dict[str, Callable[[Server], None]] = {
    "openai": with_openai,
    "cohere": with_cohere,
    "langchain": with_langchain,
    "llama-index": with_llama_index,
    "mteb": with_mteb,
}


def main() -> int:
    """Run the libraries that were named, or all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("libraries", nargs="*", default=list(LIBRARIES), metavar="library", help=", ".join(LIBRARIES))
    parser.add_argument("--model", help="its name; the first that the server lists")
    parser.add_argument("--api-key", default="none")
    given = parser.parse_args()
    url, key = given.url.rstrip("/"), given.api_key
    listed = httpx.get(f"{url}/v1/models", headers={"Authorization": f"Bearer {key}"}, timeout=60).raise_for_status().json()
    server, wrong = Server(url, given.model or listed["data"][0]["id"], key), 0
    for name in given.libraries:
        try:
            LIBRARIES[name](server)
        except Exception as error:  # whatever a library raises is what its users get
            print(f"{name}: {type(error).__name__}: {error}")
            wrong += 1
        else:
            print(f"{name}: right")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
