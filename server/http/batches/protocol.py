"""Bodies of /v1/batches."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from server.http.bodies import URLS
from server.http.files.form import Lifetime

_PAIRS = 16
_Key = Annotated[str, Field(max_length=64)]
_Value = Annotated[str, Field(max_length=512)]


class OutputExpiresAfter(BaseModel):
    """How long output files are kept."""

    model_config = ConfigDict(strict=True)

    anchor: Literal["created_at"] = Field(description="since when seconds count: the output file's creation")
    seconds: Lifetime


class BatchRequest(BaseModel):
    """Body of POST /v1/batches."""

    model_config = ConfigDict(
        strict=True,
        json_schema_extra={
            "examples": [
                {"input_file_id": "file-7d4e", "endpoint": URLS[0], "completion_window": "24h", "metadata": {"night": "1"}}
            ]
        },
    )

    input_file_id: str = Field(description="an uploaded file with the purpose batch")
    endpoint: str = Field(description="the url of its lines", json_schema_extra={"enum": list(URLS)})
    completion_window: Literal["24h"] = Field(description="how long the batch may take")
    metadata: Annotated[dict[_Key, _Value], Field(max_length=_PAIRS)] | None = Field(
        None, description=f"notes of the client's own: at most {_PAIRS}"
    )
    output_expires_after: OutputExpiresAfter | None = None
