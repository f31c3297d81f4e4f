"""Lengths of prompts and outputs that nobody asked for: the simulator's, or what the server's context has room for."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from jaxserve.config.flags import from_flags
from jaxserve.workload.settings import WorkloadConfig

LENGTHS = ("prompt_tokens", "output_tokens")
_USUAL = WorkloadConfig()
CUT = f"{_USUAL.prompt_tokens} in and {_USUAL.output_tokens} out, less where the context is short"

# Of a context, what typical prompts and outputs may take: lengths are spread, and longer ones are to fit too.
_PROMPT_SHARE, _OUTPUT_SHARE = 2, 8


def workload_without(free: Collection[str], settings: Mapping[str, Any]) -> WorkloadConfig:
    """The workload of flags that may leave lengths open: those have their usual values for now. Raises ConfigError."""
    return from_flags(WorkloadConfig, {**settings, **{name: getattr(_USUAL, name) for name in free}})


def cut_to_context(workload: WorkloadConfig, free: Collection[str], max_model_len: int) -> WorkloadConfig:
    """The workload with the lengths of `free` cut so that prompts and outputs fit into a context, a shared prefix included.

    Args:
        workload: with the usual lengths for those that are free.
        free: names of LENGTHS that nobody asked for.
        max_model_len: tokens of the context.
    """
    if workload.trace is not None:
        return workload
    room = max_model_len - workload.prefix_tokens
    prompt, output = workload.prompt_tokens, workload.output_tokens
    if "output_tokens" in free:
        output = max(1, min(output, room // _OUTPUT_SHARE if "prompt_tokens" in free else room - prompt))
    if "prompt_tokens" in free:
        prompt = max(1, min(prompt, room // _PROMPT_SHARE if "output_tokens" in free else room - output))
    return replace(workload, prompt_tokens=prompt, output_tokens=output)
