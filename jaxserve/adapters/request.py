"""vLLM's LoRARequest."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class LoRARequest:
    """The adapter that computes a prompt, with vLLM's fields.

    Attributes:
        lora_name: its name.
        lora_int_id: vLLM's number of it; names tell adapters apart here.
        lora_path: its directory; it is read when the name, or another directory for it, comes first.
    """

    lora_name: str
    lora_int_id: int
    lora_path: str | Path
