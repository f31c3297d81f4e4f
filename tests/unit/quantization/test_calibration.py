"""Calibration text as windows: every second one fits, the others measure."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest

from jaxserve.errors import ConfigError
from jaxserve.quantization.calibration import MAX_WINDOWS, read_calibration
from jaxserve.quantization.checkpoint import open_model
from jaxserve.tokenizer.load import load_tokenizer
from tests.golden.reading import DATA

MODEL = DATA / "llama-linear"
TEXTS = ["the quick brown fox ", "jumps over\nthe lazy dog. " * 3]


def test_lines_are_read_one_after_the_other(tmp_path: Path) -> None:
    path = tmp_path / "text.jsonl"
    path.write_text("\n\n".join(json.dumps({"text": text, "more": 1}) for text in TEXTS))
    with open_model(MODEL) as model:
        calibration = read_calibration(path, model, fewest=8, window=8)
    tokenizer = load_tokenizer(MODEL)
    tokens = [token for text in TEXTS for token in tokenizer.encode(text, add_special_tokens=True)]
    windows = np.array(tokens[: len(tokens) // 8 * 8]).reshape(-1, 8)
    np.testing.assert_array_equal(calibration.fitting, windows[::2])
    np.testing.assert_array_equal(calibration.measuring, windows[1::2])
    assert calibration.digest == hashlib.sha256(path.read_bytes()).hexdigest()


def test_a_text_is_one(tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_text("".join(TEXTS) * 3000)
    with open_model(MODEL) as model:
        calibration = read_calibration(path, model)
    length = min(512, model.config.max_position_embeddings)
    assert calibration.fitting.shape[1] == length
    assert len(calibration.fitting) + len(calibration.measuring) <= 2 * MAX_WINDOWS
    assert len(calibration.fitting) - len(calibration.measuring) in (0, 1)


def test_too_short_a_text_is_told_with_what_is_needed(tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_text("a b c d")
    with open_model(MODEL) as model, pytest.raises(ConfigError, match="has 7 tokens; needed are 40: 20 to fit by, and as many"):
        read_calibration(path, model, fewest=17, window=5)
