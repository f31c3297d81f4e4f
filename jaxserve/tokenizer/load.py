"""Load a checkpoint's tokenizer, alone or together with its chat template."""

from __future__ import annotations

from pathlib import Path

from jaxserve.chat_parsing.registry import Parsers
from jaxserve.errors import CheckpointError
from jaxserve.tokenizer.base import Tokenizer
from jaxserve.tokenizer.chat import ChatTemplate
from jaxserve.tokenizer.control_tokens import ControlTokens
from jaxserve.tokenizer.huggingface import HuggingFaceTokenizer
from jaxserve.tokenizer.responses import load_response_template
from jaxserve.tokenizer.sentencepiece import SentencePieceTokenizer
from jaxserve.tokenizer.texts import TextTools


def load_tokenizer(path: str | Path) -> Tokenizer:
    """The tokenizer of a checkpoint directory (tokenizer.json if there is one, else tokenizer.model) or of one such file.

    Raises CheckpointError, naming what is missing or damaged.
    """
    path = Path(path)
    if path.is_dir():
        for name in ("tokenizer.json", "tokenizer.model"):
            if (path / name).is_file():
                return load_tokenizer(path / name)
        message = f"{path} has no tokenizer: neither tokenizer.json nor tokenizer.model is there"
        older = [name for name in ("vocab.txt", "vocab.json", "merges.txt") if (path / name).is_file()]
        if older:
            message += f"; {' and '.join(older)} can be converted: AutoTokenizer.from_pretrained(...).save_pretrained(...)"
        raise CheckpointError(message)
    if not path.is_file():
        raise CheckpointError(f"tokenizer {path} does not exist")
    if path.suffix == ".json":
        return HuggingFaceTokenizer.from_file(path)
    if path.suffix == ".model":
        return SentencePieceTokenizer.from_file(path)
    raise CheckpointError(f"tokenizer {path} must be a directory, a .json file or a .model file")


def load_tools(
    tokenizer: str, chat_template: str | None, parsers: Parsers | None = None, *, parse_special_tokens: bool = False
) -> TextTools:
    """The tools of a checkpoint. Raises CheckpointError, or ConfigError for parsers.

    Args:
        tokenizer: path of the tokenizer: a directory or a file.
        chat_template: path of the file that replaces its chat template.
        parsers: how to read responses; None for those who only write prompts.
        parse_special_tokens: whether control tokens are recognised in what users, tools and documents bring.
    """
    loaded = load_tokenizer(tokenizer)
    control_tokens = None if parse_special_tokens else ControlTokens.of(loaded)
    template = ChatTemplate.load(tokenizer, chat_template, control_tokens=control_tokens)
    responses = None if parsers is None else load_response_template(tokenizer, loaded, template, parsers)
    return TextTools(loaded, template, responses)
