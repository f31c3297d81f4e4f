"""Engines of tiny models whose weights a test has as arrays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jaxserve import LLM
from jaxserve.types import Prompt
from tests.support.families import hf_config
from tests.support.live import Tensors, on_devices, random_tensors

SETTINGS: dict[str, Any] = {
    "dtype": "float32",
    "max_num_seqs": 4,
    "before_ready": "fewest",
    "max_num_batched_tokens": 16,
    "page_size": 4,
    "num_pages": 64,
    "late_compiles": "raise",
    "record_steps": 0,
}
PROMPTS: list[Prompt] = [{"prompt_token_ids": [3, 17, 42, 99, 7, 250, 11, 5, 8]}, {"prompt_token_ids": [200, 1, 1, 60, 42]}]


def weights(family: str, seed: int) -> Tensors:
    return random_tensors(hf_config(family), seed)


def engine(family: str, seed: int, **settings: Any) -> LLM:
    return LLM.from_params(hf_config(family), on_devices(weights(family, seed)), **{**SETTINGS, **settings})


def from_disk(directory: Path, **settings: Any) -> LLM:
    return LLM(str(directory), **{**SETTINGS, **settings})
