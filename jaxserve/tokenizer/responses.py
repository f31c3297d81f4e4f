"""How a checkpoint's model writes responses: found by what lies beside its tokenizer."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from jaxserve.chat_parsing.registry import Parsers, find_template, read_template_file
from jaxserve.chat_parsing.template import ResponseTemplate
from jaxserve.tokenizer.base import Tokenizer, token_text
from jaxserve.tokenizer.chat import ChatTemplate
from jaxserve.tokenizer.config_files import read_tokenizer_config
from jaxserve.tokenizer.texts import TextTools


def load_response_template(
    path: str | Path, tokenizer: Tokenizer, chat_template: ChatTemplate | None, parsers: Parsers
) -> ResponseTemplate | None:
    """The response template of a checkpoint's directory, or of the directory of a tokenizer file; None where nothing shows one.

    Raises ConfigError for parsers that are not known or do not go together, CheckpointError for a template that is wrong.
    """
    path = Path(path)
    config = read_tokenizer_config(path if path.is_dir() else path.parent)
    own = config.response_template
    if parsers.response_template is not None:
        own = read_template_file(parsers.response_template)
    special = {token_text(tokenizer, token) for token in tokenizer.special_token_ids}
    return find_template(
        "" if chat_template is None else "\n".join(chat_template.sources),
        special | {token.content for token in config.added.values()},
        own=cast("Mapping[str, Any] | None", own),
        tool_call_parser=parsers.tool_call_parser,
        reasoning_parser=parsers.reasoning_parser,
    )


def markup_tokens(tools: TextTools) -> frozenset[int]:
    """The special tokens that a parser of responses must see."""
    if tools.responses is None:
        return frozenset()
    texts = {token: token_text(tools.tokenizer, token) for token in tools.tokenizer.special_token_ids}
    visible = tools.responses.visible_tokens(texts.values())
    return frozenset(token for token, text in texts.items() if text in visible)
