"""Forms of uploads, in whatever pieces they come and however odd they are."""

from __future__ import annotations

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxserve.errors import InvalidRequestError
from server.http.files.form import UploadForm

KIND = "multipart/form-data; boundary=b"


def part(headers: str, content: bytes) -> bytes:
    return b"--b\r\n" + headers.encode() + b"\r\n\r\n" + content + b"\r\n"


def named(name: str, content: bytes, filename: str | None = None) -> bytes:
    more = "" if filename is None else f'; filename="{filename}"'
    return part(f'Content-Disposition: form-data; name="{name}"{more}', content)


PURPOSE = named("purpose", b"batch")
FILE = named("file", b"{}\n", "in.jsonl")
END = b"--b--\r\n"
NEARLY = st.lists(st.sampled_from([b"\r\n", b"--b", b"-", b"--", b"x"])).map(b"".join)  # boundaries
LONG = "b" * 999


def read(body: bytes, size: int = 10**9, kind: str = KIND) -> tuple[UploadForm, bytes]:
    """The form, and the file's bytes, of a body that comes in pieces of a size."""
    form = UploadForm(kind)
    content = b"".join([form.feed(body[start : start + size]) for start in range(0, len(body), size)])
    return form, content


def refusal(body: bytes, kind: str = KIND) -> InvalidRequestError:
    with pytest.raises(InvalidRequestError) as refused:
        read(body, kind=kind)[0].fields()
    return refused.value


@pytest.mark.parametrize("size", [1, 2, 7, 10**9])
@pytest.mark.parametrize("body", [PURPOSE + FILE + END, FILE + PURPOSE + END, FILE + PURPOSE + b"--b--"])
def test_fields_and_file_in_any_order_and_any_pieces(body: bytes, size: int) -> None:
    form, content = read(body, size)
    fields = form.fields()
    assert (content, form.filename) == (b"{}\n", "in.jsonl")
    assert (fields.purpose, fields.anchor, fields.seconds) == ("batch", None, None)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    content=st.binary(max_size=60) | st.lists(st.sampled_from([b"\r\n", b"--b", b"-", b"--", b"x"])).map(b"".join), data=st.data()
)
def test_the_files_bytes_come_as_they_were_sent(content: bytes, data: st.DataObject) -> None:
    if b"\r\n--b" in b"\r\n" + content:
        return  # what no client sends: it would have chosen another boundary
    form, found = read(named("file", content, "x") + PURPOSE + END, data.draw(st.integers(1, 20)))
    form.fields()
    assert found == content


def test_what_httpx_sends() -> None:
    request = httpx.Request(
        "POST",
        "http://x",
        data={"purpose": "batch", "expires_after[anchor]": "created_at", "expires_after[seconds]": "3600"},
        files={"file": ("nächte/ü.jsonl", b"a\r\nb")},
    )
    form, content = read(request.read(), 11, request.headers["content-type"])
    fields = form.fields()
    assert (content, form.filename, fields.anchor, fields.seconds) == (b"a\r\nb", "ü.jsonl", "created_at", 3600)


@pytest.mark.parametrize(
    ("given_name", "kept"),
    [
        ("in.jsonl", "in.jsonl"),
        ("../../etc/passwd", "passwd"),
        ("C:\\\\nights\\\\in.jsonl", "in.jsonl"),
        ("", "file"),
        ("folder/", "file"),
        ("x" * 300, "x" * 255),
    ],
)
def test_names_of_files(given_name: str, kept: str) -> None:
    assert read(PURPOSE + named("file", b"x", given_name) + END)[0].filename == kept


def test_a_file_without_a_name_is_one() -> None:
    form, content = read(named("file", b"x") + PURPOSE + END)
    assert (form.filename, content) == ("file", b"x")


def test_what_is_not_known_is_ignored() -> None:
    odd = named("more", b"x" * 10_000, "more.bin") + part("X-Other: 1", b"nothing") + part("Content-Disposition: x", b"y")
    form, content = read(odd + PURPOSE + FILE + odd + END)
    assert (form.fields().purpose, content) == ("batch", b"{}\n")
    assert read(named("purpose", b"vision") + FILE + PURPOSE + END)[0].fields().purpose == "batch"  # the last counts


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({}, "purpose", "is required"),
        ({"purpose": "vision"}, "purpose", "must be 'batch'"),
        ({"purpose": "batch_output"}, "purpose", "must be 'batch'"),
        ({"purpose": "batch", "expires_after[seconds]": "3599"}, "expires_after[seconds]", "3600"),
        ({"purpose": "batch", "expires_after[seconds]": "2592001"}, "expires_after[seconds]", "2592000"),
        ({"purpose": "batch", "expires_after[seconds]": "soon"}, "expires_after[seconds]", "integer"),
        ({"purpose": "batch", "expires_after[seconds]": "9" * 3000}, "expires_after[seconds]", ""),
        ({"purpose": "batch", "expires_after[anchor]": "used_at"}, "expires_after[anchor]", "'created_at'"),
        ({"purpose": "batch", "expires_after[anchor]": "created_at"}, "expires_after[seconds]", "is required"),
    ],
)
def test_wrong_fields_are_refused_by_name(fields: dict[str, str], param: str, words: str) -> None:
    error = refusal(b"".join([FILE, *(named(name, value.encode()) for name, value in fields.items()), END]))
    assert error.param == param
    assert error.message.startswith(param)
    assert words in error.message


def test_no_file_or_two() -> None:
    assert refusal(PURPOSE + END).message == "file is required"
    assert refusal(FILE + FILE + PURPOSE + END).message == "file must be given once"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"--b\r\n",
        FILE + PURPOSE,
        FILE + PURPOSE + b"--b",
        FILE[:-4],
        b'{"purpose": "batch"}',
        b"--c\r\n" + FILE + END,
        b"--b\r\nname without a colon\r\n\r\nx\r\n" + END,
        b"--b\r\n" + b"x" * 20_000 + b": y\r\n\r\n" + END,
        b"--b\r\na: " + b"x" * 20_000 + b"\r\n\r\n" + END,
        b"--b\r\n" + b"a: b\r\n" * 1000 + b"\r\nx\r\n" + END,
        named("purpose", b"x" * 5000) + FILE + END,
        named("purpose", b"\xff") + FILE + END,
        b'--b\r\nContent-Disposition: form-data; name="file"; filename="\xff"\r\n\r\nx\r\n' + PURPOSE + END,
    ],
)
def test_what_is_no_form(body: bytes) -> None:
    assert "form" in refusal(body).message or refusal(body).param == "file"


@pytest.mark.parametrize(
    "kind",
    [
        "",
        "application/json",
        "multipart/form-data",
        "multipart/form-data; boundary=",
        f"multipart/form-data; boundary={'b' * 999}",
    ],
)
def test_content_types(kind: str) -> None:
    assert "form" in refusal(FILE + PURPOSE + END, kind).message
