"""Load a checkpoint's tokenizer together with its chat template."""

from __future__ import annotations

from jaxserve.tokenizer.chat import ChatTemplate
from jaxserve.tokenizer.load import load_tokenizer
from jaxserve.tokenizer.texts import TextTools


def load_tools(tokenizer: str, chat_template: str | None) -> TextTools:
    """The tools of a checkpoint. Raises CheckpointError.

    Args:
        tokenizer: path of the tokenizer: a directory or a file.
        chat_template: path of the file that replaces its chat template.
    """
    return TextTools(load_tokenizer(tokenizer), ChatTemplate.load(tokenizer, chat_template))
