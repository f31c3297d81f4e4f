"""Calibration text as windows of tokens: some to choose and to fit by, others to measure with."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from jaxserve.errors import ConfigError
from jaxserve.quantization.checkpoint import Model
from jaxserve.tokenizer.load import load_tokenizer

Windows = npt.NDArray[np.int32]
"""Tokens [N, T], each window a text of its own."""
WINDOW = 512  # tokens
MAX_WINDOWS = 256
FEWEST = 2048  # tokens from which a perplexity says something


@dataclass(frozen=True, slots=True)
class Calibration:
    """Every second window is fitted by, the others measure.

    Attributes:
        digest: SHA-256 of the file.
    """

    digest: str
    fitting: Windows
    measuring: Windows


def read_calibration(path: Path, model: Model, fewest: int = FEWEST, window: int = WINDOW) -> Calibration:
    """Tokens of a text file, or of the "text" of every line of a .jsonl file, one after the other.

    Args:
        path: of the file.
        model: whose tokenizer it is.
        fewest: tokens that must be there to fit by.
        window: tokens of a window, unless the model sees fewer.

    Raises:
        ConfigError: a file that cannot be read, or has too few tokens.
        CheckpointError: the model has no tokenizer.
    """
    try:
        data = path.read_bytes()
        texts = _texts(path, data.decode("utf-8"))
    except OSError as error:
        raise ConfigError(f"calibration: cannot read {path}: {error.strerror}", param="calibration") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"calibration: {path} is not UTF-8: {error.reason}", param="calibration") from error
    tokenizer = load_tokenizer(model.path)
    tokens = np.array([token for text in texts for token in tokenizer.encode(text, add_special_tokens=True)], np.int32)
    length = min(window, model.config.max_position_embeddings)
    needed = 2 * -(-fewest // length) * length
    if len(tokens) < needed:
        raise ConfigError(
            f"calibration: {path} has {len(tokens)} tokens; needed are {needed}: {needed // 2} to fit by, and as many to measure",
            param="calibration",
        )
    windows = tokens[: len(tokens) // length * length].reshape(-1, length)[: 2 * MAX_WINDOWS]
    return Calibration(hashlib.sha256(data).hexdigest(), windows[::2], windows[1::2])


def _texts(path: Path, text: str) -> list[str]:
    if path.suffix != ".jsonl":
        return [text]
    texts = []
    for number, line in enumerate(text.splitlines(), 1):
        try:
            document = json.loads(line) if line.strip() else {"text": ""}
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"calibration: {path}, line {number} is not JSON: {error}", param="calibration") from error
        if not isinstance(document, dict) or not isinstance(document.get("text"), str):
            raise ConfigError(f'calibration: {path}, line {number} has no "text"', param="calibration")
        texts.append(document["text"])
    return texts
