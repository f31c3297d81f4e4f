"""An upload's form, read as it comes: multipart/form-data with one file and a few fields."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from jaxserve.errors import InvalidRequestError
from server.http.failures import from_validation
from server.http.numbers import NUMERAL, integer

SHORTEST_LIFETIME, LONGEST_LIFETIME = 3600, 30 * 86400  # seconds, as OpenAI has them
OVERHEAD = 64 * 2**10  # bytes of a body besides those of the file
_LONGEST_FIELD = 4096
_LONGEST_NAME = 255
_FILE = "file"

Lifetime = Annotated[
    int, Field(ge=SHORTEST_LIFETIME, le=LONGEST_LIFETIME), BeforeValidator(integer), Field(json_schema_extra={NUMERAL: True})
]


class UploadFields(BaseModel):
    """What an upload says besides the file. Texts, as forms have them."""

    model_config = ConfigDict(populate_by_name=True)

    purpose: Literal["batch"] = Field(description="what the file is for")
    anchor: Literal["created_at"] | None = Field(None, alias="expires_after[anchor]", description="since when seconds count")
    seconds: Lifetime | None = Field(None, alias="expires_after[seconds]", description="how long the file is kept")


# Of POST /v1/files, in the document of the API: the framework would have to read the form to describe it.
REQUEST_BODY: Mapping[str, Any] = {
    "required": True,
    "content": {
        "multipart/form-data": {
            "schema": {
                "title": "Upload",
                "type": "object",
                "required": [_FILE, "purpose"],
                "dependentRequired": {
                    "expires_after[anchor]": ["expires_after[seconds]"],
                    "expires_after[seconds]": ["expires_after[anchor]"],
                },
                "properties": {
                    _FILE: {"type": "string", "format": "binary", "description": "JSON Lines, one request a line"},
                    "purpose": {"type": "string", "enum": ["batch"], "description": "what the file is for"},
                    "expires_after[anchor]": {
                        "type": "string",
                        "enum": ["created_at"],
                        "description": "since when seconds count",
                    },
                    "expires_after[seconds]": {
                        "type": "integer",
                        "minimum": SHORTEST_LIFETIME,
                        "maximum": LONGEST_LIFETIME,
                        "description": "how long the file is kept",
                    },
                },
            }
        }
    },
}


class UploadForm:
    """Takes a body apart, piece by piece. Raises InvalidRequestError for what is no such form.

    Attributes:
        filename: what the client calls the file, without folders; known once its first byte is.
    """

    def __init__(self, content_type: str) -> None:
        kind, options = parse_options_header(content_type)
        boundary = options.get(b"boundary", b"")
        if kind != b"multipart/form-data" or not boundary:
            raise InvalidRequestError("the body must be a form with a file and its purpose, sent as multipart/form-data")
        try:
            self._parser = MultipartParser(
                boundary,
                {
                    "on_part_begin": self._on_part,
                    "on_header_field": self._on_header_name,
                    "on_header_value": self._on_header_value,
                    "on_header_end": self._on_header,
                    "on_headers_finished": self._on_content,
                    "on_part_data": self._on_data,
                    "on_end": self._on_end,
                },
            )
        except FormParserError as error:
            raise _damaged(error) from error
        self.filename: str | None = None
        self._fields: dict[str, bytearray] = {}
        self._file = bytearray()  # what has come since it was last taken
        self._target: bytearray | None = None
        self._header = (bytearray(), bytearray())
        self._disposition = b""
        self._ended = False

    def feed(self, data: bytes) -> bytes:
        """Read on. Returns what belongs to the file."""
        try:
            self._parser.write(data)
        except FormParserError as error:
            raise _damaged(error) from error
        piece = bytes(self._file)
        self._file.clear()
        return piece

    def fields(self) -> UploadFields:
        if not self._ended:
            raise InvalidRequestError("the form breaks off before its end")
        try:
            given = {name: bytes(value).decode() for name, value in self._fields.items()}
        except UnicodeDecodeError as error:
            raise InvalidRequestError("the form's fields must be UTF-8") from error
        if self.filename is None:
            raise InvalidRequestError("file is required", param=_FILE)
        try:
            fields = UploadFields.model_validate(given)
        except ValidationError as error:
            complaints = [{**one, "loc": ("body", *one["loc"])} for one in error.errors(include_url=False)]
            raise from_validation(complaints, given) from error
        if fields.anchor is not None and fields.seconds is None:
            raise InvalidRequestError("expires_after[seconds] is required with an anchor", param="expires_after[seconds]")
        return fields

    def _on_part(self) -> None:
        self._disposition = b""

    def _on_header_name(self, data: bytes, start: int, end: int) -> None:
        self._read_header(self._header[0], data[start:end])

    def _on_header_value(self, data: bytes, start: int, end: int) -> None:
        self._read_header(self._header[1], data[start:end])

    def _read_header(self, read: bytearray, data: bytes) -> None:
        read.extend(data)
        if len(read) > _LONGEST_FIELD:
            raise InvalidRequestError(f"a header of the form is longer than {_LONGEST_FIELD} bytes")

    def _on_header(self) -> None:
        name, value = self._header
        if name.lower() == b"content-disposition":
            self._disposition = bytes(value)
        name.clear()
        value.clear()

    def _on_content(self) -> None:
        _, options = parse_options_header(self._disposition.decode("latin-1"))
        name = options.get(b"name", b"").decode("utf-8", "replace")
        if name == _FILE:
            if self.filename is not None:
                raise InvalidRequestError("file must be given once", param=_FILE)
            self.filename = _plain_name(options.get(b"filename", b""))
            self._target = self._file
        elif name in _KNOWN:
            self._target = self._fields[name] = bytearray()  # of a field given twice, the last counts
        else:
            self._target = None

    def _on_data(self, data: bytes, start: int, end: int) -> None:
        if self._target is None:
            return
        self._target.extend(data[start:end])
        if self._target is not self._file and len(self._target) > _LONGEST_FIELD:
            raise InvalidRequestError(f"a field of the form is longer than {_LONGEST_FIELD} bytes")

    def _on_end(self) -> None:
        self._ended = True


_KNOWN = frozenset(field.alias or name for name, field in UploadFields.model_fields.items())


def _plain_name(name: bytes) -> str:
    """A file's name without folders, not too long; "file" for none."""
    try:
        text = name.decode()
    except UnicodeDecodeError as error:
        raise InvalidRequestError("the file's name must be UTF-8", param=_FILE) from error
    return text.replace("\\", "/").rpartition("/")[2][:_LONGEST_NAME] or _FILE


def _damaged(error: FormParserError) -> InvalidRequestError:
    return InvalidRequestError(f"the form cannot be read: {error}")
