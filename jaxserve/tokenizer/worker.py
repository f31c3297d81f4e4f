"""A tokenizer process: takes batches of texts and conversations from its parent, and gives back their tokens."""

from __future__ import annotations

import sys
from array import array
from typing import Any

import msgspec

from jaxserve.children import adopt
from jaxserve.tokenizer.load import load_tools
from jaxserve.tokenizer.texts import TextTools


class WorkerSpec(msgspec.Struct, frozen=True):
    """Whose texts it tokenizes; see `load_tools`."""

    tokenizer: str
    chat_template: str | None
    parse_special_tokens: bool = False


class Encode(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """A text to encode; see TextTools.encode."""

    text: str
    add_special_tokens: bool


class Render(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """A conversation to render; see TextTools.render."""

    messages: list[dict[str, Any]]
    arguments: dict[str, Any]
    max_bytes: int | None


Job = Encode | Render


def main() -> int:
    parent, first = adopt()
    spec = msgspec.msgpack.decode(first, type=WorkerSpec)
    tools = load_tools(spec.tokenizer, spec.chat_template, parse_special_tokens=spec.parse_special_tokens)
    decoder = msgspec.msgpack.Decoder(list[Job])
    parent.send(b"")
    while (content := parent.receive()) is not None:
        for job in decoder.decode(content):  # each by itself, so that the parent knows which one takes long
            parent.send(msgspec.msgpack.encode(_done(tools, job)))
    return 0


def _done(tools: TextTools, job: Job) -> bytes | None:
    """The tokens as int32; None if that failed: the parent will do it itself, and see why."""
    try:
        if isinstance(job, Encode):
            tokens = tools.encode(job.text, add_special_tokens=job.add_special_tokens)
        else:
            tokens = tools.render(job.messages, job.arguments, job.max_bytes)
        return array("i", tokens).tobytes()
    except Exception:
        return None


if __name__ == "__main__":
    sys.exit(main())
