"""jaxserve in the benchmark's own process: how long random prompts take it."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np

from jaxserve import LLM, SamplingParams
from jaxserve.config.fields import DType, Quantization
from jaxserve.types import TokensPrompt


class InProcess:
    """The engine with dummy weights, for up to `rows` prompts of `prompt` tokens with up to `output` more each."""

    def __init__(
        self,
        directory: Path,
        dtype: DType,
        rows: int,
        prompt: int,
        output: int,
        quantization: Quantization = "none",
        *,
        deterministic: bool = False,
    ) -> None:
        self._rng = np.random.default_rng(0)
        self._prompt = prompt
        self._llm = LLM(
            model=str(directory),
            load_format="dummy",
            dtype=dtype,
            quantization=quantization,
            deterministic=deterministic,
            max_model_len=prompt + output,
            max_num_seqs=rows,
            prefix_caching=False,
        )

    @property
    def weight_bytes(self) -> int:
        return self._llm.report.memory.weights

    def seconds(self, rows: int, output: int) -> float:
        """Wall time of `rows` random prompts with `output` tokens each."""
        tokens = self._rng.integers(3, 32000, (rows, self._prompt)).tolist()
        prompts: list[TokensPrompt] = [{"prompt_token_ids": ids} for ids in tokens]
        start = time.perf_counter()
        self._llm.generate(prompts, SamplingParams(temperature=0.0, max_tokens=output, ignore_eos=True))
        return time.perf_counter() - start
