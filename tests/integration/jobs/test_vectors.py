"""The vectors of a job of embeddings in one file: whose they are, refusals, and what is left of a file that was there."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
import pytest

from jaxserve import batch
from jaxserve.errors import ConfigError
from jaxserve.jobs import vectors
from jaxserve.jobs.vectors import check_vectors, vector_rows, write_vectors
from tests.golden.reading import DATA

MODEL = DATA.parent / "pooled" / "bert-mean"


def line(custom_id: str, *embeddings: Any) -> str:
    data = [{"object": "embedding", "index": index, "embedding": one} for index, one in enumerate(embeddings)]
    body = {"object": "list", "data": data, "model": "m", "usage": {"prompt_tokens": 1, "total_tokens": 1}}
    return json.dumps({"id": "x", "custom_id": custom_id, "response": {"status_code": 200, "body": body}, "error": None}) + "\n"


def encoded(*numbers: float) -> str:
    return base64.b64encode(np.array(numbers, "<f4").tobytes()).decode()


CHAT = (
    json.dumps({"id": "y", "custom_id": "chat", "response": {"status_code": 200, "body": {"choices": []}}, "error": None}) + "\n"
)


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """Three vectors of two lines, and a line of another endpoint between them."""
    path = tmp_path / "results.jsonl"
    path.write_text(line("b", [1.0, 0.25]) + CHAT + line("a\n", encoded(0.5, -3.0), [0.1, 1e-30]))
    return path


IDS = [["b", 0], ["a\n", 0], ["a\n", 1]]
NUMBERS = np.array([[1.0, 0.25], [0.5, -3.0], [0.1, 1e-30]], np.float32)


def test_rows_of_numpy_have_their_names_beside_them(results: Path, tmp_path: Path) -> None:
    path = tmp_path / "vectors.npy"
    path.write_text("was there before")
    assert write_vectors(results, path) == (3, 2)
    got = np.load(path)
    assert (got.dtype, got.tolist()) == (np.float32, NUMBERS.tolist())
    assert [json.loads(name) for name in (tmp_path / "vectors.ids.jsonl").read_text().splitlines()] == IDS
    assert sorted(found.name for found in tmp_path.iterdir()) == ["results.jsonl", "vectors.ids.jsonl", "vectors.npy"]


def test_columns_of_parquet(results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vectors, "GROUP_ROWS", 2)
    path = tmp_path / "vectors.parquet"
    assert write_vectors(results, path) == (3, 2)
    file = pyarrow.parquet.ParquetFile(path)
    assert file.num_row_groups == 2
    table = file.read()
    assert table.column("custom_id").to_pylist() == [name for name, _ in IDS]
    assert table.column("index").to_pylist() == [index for _, index in IDS]
    assert table.column("embedding").to_pylist() == NUMBERS.tolist()
    assert str(table.schema.field("embedding").type) == "fixed_size_list<element: float>[2]"


@pytest.mark.parametrize("name", ["vectors.npy", "vectors.parquet"])
@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (CHAT, "there are no embeddings in"),
        ("", "there are no embeddings in"),
        (line("a", [1.0, 2.0]) + line("b", [1.0]), "they are of different lengths, 1 of 'b' and 2 of those before it"),
    ],
)
def test_what_has_no_array_leaves_the_file_alone(tmp_path: Path, name: str, lines: str, message: str) -> None:
    results, path = tmp_path / "results.jsonl", tmp_path / name
    results.write_text(lines)
    path.write_text("was there before")
    with pytest.raises(ConfigError, match=message) as error:
        write_vectors(results, path)
    assert error.value.param == "vectors"
    assert path.read_text() == "was there before"


def test_a_directory_that_is_not_there_is_told(results: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot write .*nowhere/v.npy: No such file or directory"):
        write_vectors(results, tmp_path / "nowhere" / "v.npy")


def test_other_kinds_of_file_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"vectors must end with .npy or .parquet, got 'v.csv'"):
        check_vectors(Path("v.csv"))
    check_vectors(Path("v.npy"))
    check_vectors(Path("v.parquet"))
    monkeypatch.setattr(vectors, "find_spec", lambda name: None)
    check_vectors(Path("v.npy"))
    with pytest.raises(ConfigError, match=r"need pyarrow: pip install pyarrow"):
        check_vectors(Path("v.parquet"))


def test_a_job_of_embeddings_ends_with_an_array(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As sentence-transformers computes them, of a line of several texts and one in base64; a second run makes another file."""
    monkeypatch.setattr(batch, "set_up_logging", lambda level: None)  # would stay for other tests
    golden = json.loads((MODEL / "pooled.json").read_text())
    texts = golden["texts"]
    bodies: list[dict[str, Any]] = [{"input": texts[:2]}, {"input": texts[2], "encoding_format": "base64"}, {"input": []}]
    requests = [
        {"custom_id": str(number), "method": "POST", "url": "/v1/embeddings", "body": {"model": "bert-mean", **body}}
        for number, body in enumerate(bodies)
    ]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(one) + "\n" for one in requests))
    command = [str(MODEL), "-i", str(tmp_path / "in.jsonl"), "-o", str(tmp_path / "out.jsonl"), "--dtype", "float32"]
    sizes = ["--max-num-batched-tokens", "256", "--max-model-len", "256", "--max-num-seqs", "4"]
    assert batch.main([*command, *sizes, "--vectors", str(tmp_path / "v.npy")]) == 1, "one line has no input"
    assert "vectors:     3 of 32 numbers in" in capsys.readouterr().out
    ids = [json.loads(name) for name in (tmp_path / "v.ids.jsonl").read_text().splitlines()]
    wanted = [golden["embeddings"]["plain"][int(custom_id) * 2 + index] for custom_id, index in ids]
    np.testing.assert_allclose(np.load(tmp_path / "v.npy"), wanted, atol=1e-4, rtol=1e-4)
    assert batch.main([*command, *sizes, "--vectors", str(tmp_path / "v.parquet")]) == 1
    table = pyarrow.parquet.read_table(tmp_path / "v.parquet")
    assert table.column("embedding").to_pylist() == np.load(tmp_path / "v.npy").tolist()
    assert [row.custom_id for row in vector_rows(tmp_path / "out.jsonl")] == [custom_id for custom_id, _ in ids]


def test_a_file_of_the_job_is_no_place_for_vectors(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "in.npy").write_text("{}\n")
    files = ["-i", str(tmp_path / "in.npy"), "-o", str(tmp_path / "out.jsonl")]
    assert batch.main([str(MODEL), *files, "--vectors", str(tmp_path / "in.npy")]) == 2
    assert "input and vectors are one file" in capsys.readouterr().err
