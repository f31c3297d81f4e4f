"""What the ``decoder`` section of a tokenizer.json means for the bytes of a single token."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import tokenizers
from tokenizers import decoders

from jaxserve.errors import CheckpointError
from jaxserve.tokenizer.pieces import byte_token_value

Rewrite = Callable[[str, bool], str]


@dataclass(frozen=True, slots=True)
class DecoderRules:
    """How a token's name becomes bytes.

    Attributes:
        rewrites: applied to the name in order; the second argument says whether the token is the text's first.
        byte_level: names are spelled in the printable alphabet of byte-level BPE.
        byte_fallback: names such as ``<0xE4>`` stand for one byte.
        strips_space: one space is dropped from the start of the text.
    """

    rewrites: tuple[Rewrite, ...]
    byte_level: bool
    byte_fallback: bool
    strips_space: bool

    def piece(self, name: str, *, first: bool) -> bytes:
        """The bytes of the token called `name`, as the first of a text or inside it."""
        for rewrite in self.rewrites:
            name = rewrite(name, first)
        value = byte_token_value(name) if self.byte_fallback else None
        if value is not None:
            piece = bytes([value])
        elif self.byte_level:
            piece = _byte_level_piece(name)
        else:
            piece = name.encode("utf-8")
        return piece.removeprefix(b" ") if self.strips_space and first else piece


def decoder_rules(decoder: Mapping[str, Any] | None) -> DecoderRules:
    """Read a ``decoder`` section. Raises CheckpointError for a decoder, or an order of them, that is not implemented."""
    if decoder is None:
        # Without a decoder, tokens are words: they are joined by spaces.
        return DecoderRules((lambda name, first: name if first else f" {name}",), False, False, False)
    rewrites: list[Rewrite] = []
    steps = _flatten(decoder)
    kinds = [step.get("type") for step in steps]
    strips_space = False
    for i, step in enumerate(steps):
        # Rewriting a name is the same as rewriting its text only as long as names are still names.
        if (rewrite := None if _TEXT.intersection(kinds[:i]) else _rewrite(step)) is not None:
            rewrites.append(rewrite)
            continue
        match step:
            case {"type": "ByteFallback"} if not _TEXT.intersection(kinds[:i]):
                continue
            case {"type": "Fuse"}:
                continue
            case {"type": "Strip", "content": " ", "start": 1, "stop": 0} if "Fuse" in kinds[:i] and not strips_space:
                strips_space = True
            case {"type": "ByteLevel"} if i + 1 == len(steps) and not _TEXT.intersection(kinds[:i]):
                continue
            case _:
                raise CheckpointError(f"tokenizer.json: decoder {decoder} is not supported, because of {step}")
    return DecoderRules(tuple(rewrites), "ByteLevel" in kinds, "ByteFallback" in kinds, strips_space)


_TEXT = frozenset({"ByteFallback", "Fuse", "ByteLevel"})  # behind these, names have become text or bytes


def _rewrite(step: Mapping[str, Any]) -> Rewrite | None:
    """What a step does to each name, whatever is beside it; None if it is not of this kind."""
    match step:
        case {"type": "Replace", "pattern": {"String": str(old)}, "content": str(new)}:
            return lambda name, first: name.replace(old, new)
        case {"type": "Replace", "pattern": {"Regex": str(pattern)}, "content": str(new)}:
            replace = decoders.Replace(tokenizers.Regex(pattern), new)
            return lambda name, first: str(replace.decode([name]))
        case {"type": "Strip", "content": str(content), "start": int(start), "stop": int(stop)}:
            strip = decoders.Strip(content, start, stop)
            return lambda name, first: str(strip.decode([name]))
        case {"type": "WordPiece", "prefix": str(prefix), "cleanup": bool(cleanup)}:
            # A name inside a text is a word of its own, behind a space, unless it begins with the prefix.
            join = decoders.WordPiece(prefix, cleanup)
            return lambda name, first: str(join.decode([name] if first else ["", name]))
        case {"type": "Metaspace", "replacement": str(mark)}:
            drops_first = step.get("prepend_scheme", "always") != "never"
            return lambda name, first: name.replace(mark, "" if first and drops_first else " ")
        case _:
            return None


def _flatten(decoder: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    if decoder.get("type") != "Sequence":
        return [decoder]
    return [step for part in decoder["decoders"] for step in _flatten(part)]


def _byte_level_alphabet() -> dict[str, int]:
    """Byte-level BPE spells a byte as itself if that is printable in Latin-1, or else as a letter from U+0100 on."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [value for value in range(256) if value not in printable]
    return {chr(value): value for value in printable} | {chr(0x100 + i): value for i, value in enumerate(others)}


_BYTE_OF_LETTER = _byte_level_alphabet()


def _byte_level_piece(name: str) -> bytes:
    try:
        return bytes([_BYTE_OF_LETTER[letter] for letter in name])
    except KeyError:
        # A name outside the alphabet, such as that of an added token with a space, is plain text.
        return name.encode("utf-8")
