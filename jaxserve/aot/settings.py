"""What to compile, and for what."""

from __future__ import annotations

from dataclasses import dataclass

from jaxserve.config.check import check_types
from jaxserve.config.fields import require_at_least, setting
from jaxserve.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetConfig:
    """A model and the machine that it will run on."""

    model: str = setting("llama-3-8b", "checkpoint directory, or a shape that jaxserve.plan knows", positional=True)
    target: str = setting("h100:1", "GPU and how many of them: a100, h100, h200 or b200, as in h100:8")
    tp: int = setting(1, "GPUs that share every layer")
    rows: str = setting("32", "decode steps to compile: numbers of rows, as in 1,32,256")
    tokens: str = setting("2048", "steps with prompts to compile: numbers of tokens, as in 512,2048; 'none' for none")
    layers: int | None = setting(None, "compile the model's first layers only: a quick look")
    max_num_seqs: int = setting(256, "sequences in one step at most")
    max_model_len: int | None = setting(None, "longest prompt plus output in tokens; the model's own limit by default")
    page_size: int = setting(16, "tokens a page")
    gpu_memory_fraction: float = setting(0.9, "share of GPU memory that weights, workspace and KV cache may take")

    def __post_init__(self) -> None:
        check_types(self)
        for name in ("tp", "max_num_seqs", "page_size"):
            require_at_least(name, getattr(self, name), 1)
        if self.layers is not None:
            require_at_least("layers", self.layers, 1)
        if self.max_model_len is not None:
            require_at_least("max_model_len", self.max_model_len, 2)
        if not 0.0 < self.gpu_memory_fraction <= 1.0:
            raise ConfigError(
                f"gpu_memory_fraction must be in (0, 1], got {self.gpu_memory_fraction}", param="gpu_memory_fraction"
            )
        rows, tokens = self.decode_rows, self.prompt_tokens
        if not rows and not tokens:
            raise ConfigError("nothing to compile: rows and tokens are both 'none'", param="rows")
        most = max((*rows, 0))
        if most > self.max_num_seqs:
            raise ConfigError(f"rows names {most}, more than max_num_seqs, which is {self.max_num_seqs}", param="rows")

    @property
    def decode_rows(self) -> tuple[int, ...]:
        """Rows of the decode steps."""
        return _numbers("rows", self.rows)

    @property
    def prompt_tokens(self) -> tuple[int, ...]:
        """Tokens of the steps with prompts."""
        return _numbers("tokens", self.tokens)


def _numbers(name: str, text: str) -> tuple[int, ...]:
    if text == "none":
        return ()
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise ConfigError(f"{name} must be numbers above 0 with commas, or 'none', got {text!r}", param=name)
    return tuple(sorted({int(part) for part in parts}))
