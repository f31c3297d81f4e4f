"""What the JSON files beside a tokenizer say: special tokens, added tokens, BOS and EOS."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tokenizers import AddedToken

from jaxserve.errors import CheckpointError

LARGEST_ID = 2**22 - 1  # the largest vocabularies have a tenth of that
_LISTS_OF_SPECIAL_TOKENS = ("additional_special_tokens", "extra_special_tokens")


@dataclass(frozen=True, slots=True)
class TokenizerConfig:
    """The facts a tokenizer needs from tokenizer_config.json and its older companions.

    Attributes:
        named: special tokens by role, such as ``bos_token``.
        extra: special tokens without a role.
        added: tokens added to the vocabulary, by id.
        add_bos_token: whether encoding starts with BOS; None when not said.
        add_eos_token: whether encoding ends with EOS; None when not said.
        legacy: SentencePiece: the word-start mark is also put before the text after a special token.
        bos_token_id: from generation_config.json.
        eos_token_id: from generation_config.json (the first, if several).
        chat_template: as tokenizer_config.json has it: a text, a list of named ones, or None.
        response_template: as tokenizer_config.json has it; see jaxserve.chat_parsing.
    """

    named: Mapping[str, AddedToken] = field(default_factory=dict)
    extra: tuple[AddedToken, ...] = ()
    added: Mapping[int, AddedToken] = field(default_factory=dict)
    add_bos_token: bool | None = None
    add_eos_token: bool | None = None
    legacy: bool = False
    bos_token_id: int | None = None
    eos_token_id: int | None = None
    chat_template: object = None
    response_template: object = None

    @property
    def names(self) -> dict[str, str]:
        """Role -> text of the special token, as chat templates see them."""
        return {role: token.content for role, token in self.named.items()}


def read_tokenizer_config(directory: Path) -> TokenizerConfig:
    """Read the files that are there; none is required. Raises CheckpointError for a file that is not a JSON object."""
    config = read_object(directory / "tokenizer_config.json")
    generation = read_object(directory / "generation_config.json")
    decoder = config.get("added_tokens_decoder", {})
    added = {_id(i, "tokenizer_config.json"): _added_token(token, special=False) for i, token in decoder.items()}
    if not added:
        # Checkpoints from before added_tokens_decoder keep the same facts in two files of their own.
        config |= read_object(directory / "special_tokens_map.json")
    named, extra = _special_tokens(config)
    if not added:
        special = {token.content for token in (*named.values(), *extra)}
        for text, token_id in read_object(directory / "added_tokens.json").items():
            added[_id(token_id, "added_tokens.json")] = AddedToken(text, special=text in special, normalized=text not in special)
    return TokenizerConfig(
        named=named,
        extra=extra,
        added=dict(sorted(added.items())),
        add_bos_token=config.get("add_bos_token"),
        add_eos_token=config.get("add_eos_token"),
        legacy=bool(config.get("legacy", False)),
        bos_token_id=_first_id(generation.get("bos_token_id")),
        eos_token_id=_first_id(generation.get("eos_token_id")),
        chat_template=config.get("chat_template"),
        response_template=config.get("response_template"),
    )


def _special_tokens(config: Mapping[str, Any]) -> tuple[dict[str, AddedToken], tuple[AddedToken, ...]]:
    named = {
        key: _added_token(value, special=True)
        for key, value in config.items()
        if key.endswith("_token") and (isinstance(value, str) or (isinstance(value, dict) and "content" in value))
    }
    extra: list[AddedToken] = []
    for key in _LISTS_OF_SPECIAL_TOKENS:
        values = config.get(key) or ()
        if isinstance(values, dict):
            named |= {role: _added_token(value, special=True) for role, value in values.items()}
        else:
            extra += [_added_token(value, special=True) for value in values]
    return named, tuple(extra)


def _added_token(value: str | Mapping[str, Any], *, special: bool) -> AddedToken:
    if isinstance(value, str):
        return AddedToken(value, special=special, normalized=not special)
    flags = {key: bool(value.get(key, False)) for key in ("lstrip", "rstrip", "single_word")}
    special = special or bool(value.get("special", False))
    return AddedToken(value["content"], special=special, normalized=bool(value.get("normalized", not special)), **flags)


def check_token_id(token_id: int, file: str) -> None:
    """Raise CheckpointError for an id that no tokenizer has: every id up to the largest one takes memory."""
    if not 0 <= token_id <= LARGEST_ID:
        raise CheckpointError(
            f"{file} has a token of the id {token_id}; the largest that is read is {LARGEST_ID}", param="tokenizer"
        )


def _id(value: object, file: str) -> int:
    try:
        token_id = int(str(value))
    except ValueError as error:
        raise CheckpointError(f"{file}: a token's id must be an integer, got {value!r:.80}", param="tokenizer") from error
    check_token_id(token_id, file)
    return token_id


def _first_id(value: Any) -> int | None:
    if isinstance(value, list):
        value = value[0] if value else None
    return value if isinstance(value, int) else None


def read_object(file: Path) -> dict[str, Any]:
    """A file's JSON object; an empty one without the file. Raises CheckpointError for anything else in it."""
    if not file.is_file():
        return {}
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{file} is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{file} must hold a JSON object, not {type(value).__name__}")
    return value
