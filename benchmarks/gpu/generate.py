"""HF transformers' generate on the engine's model: random weights, bfloat16, its default attention, a static batch.

torch must not share the GPU with jax, which takes nearly all memory: this section never starts jax.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any

from benchmarks.gpu.sizes import DTYPE, Sizes
from benchmarks.gpu.tasks import Figure, Task
from jaxserve.models.config import DecoderConfig

REPEATS = 3


def tasks(sizes: Sizes) -> Iterator[Task]:
    """Build the model, then generate for each number of rows."""
    missing = [name for name in ("torch", "transformers") if find_spec(name) is None]
    if missing:
        yield Task({}, lambda: {"skipped": f"not installed: {', '.join(missing)}"})
        return
    import torch  # noqa: PLC0415  (optional)

    device = "cuda" if sizes.platform == "gpu" else "cpu"
    if device == "cuda" and not torch.cuda.is_available():
        yield Task({}, lambda: {"skipped": f"torch {version('torch')} finds no GPU"})
        return
    model = _model(sizes.engine.decoder(), device)
    facts = {"torch": version("torch"), "transformers": version("transformers")}
    facts["attention"] = model.config._attn_implementation
    for rows in sizes.generate_rows:
        yield Task({"rows": rows, "context": sizes.engine.context, **facts}, _timed(model, rows, sizes, device))


def _model(config: DecoderConfig, device: str) -> Any:
    """A Llama of the decoder's sizes, made on the device."""
    import torch  # noqa: PLC0415
    from transformers import LlamaConfig, LlamaForCausalLM  # noqa: PLC0415

    shape = LlamaConfig(
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        num_hidden_layers=config.num_layers,
        num_attention_heads=config.num_heads,
        num_key_value_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        intermediate_size=config.ffn_size,
        max_position_embeddings=config.max_position_embeddings,
        tie_word_embeddings=config.tie_embeddings,
    )
    torch.manual_seed(0)
    torch.set_default_dtype(getattr(torch, DTYPE))
    with torch.device(device):
        return LlamaForCausalLM(shape).eval()


def _timed(model: Any, rows: int, sizes: Sizes, device: str) -> Callable[[], Figure]:
    """Decode seconds a step: what is left of a generation when the time of one with a single new token is taken off."""
    import torch  # noqa: PLC0415

    def generate(count: int) -> float:
        tokens = torch.randint(3, sizes.engine.decoder().vocab_size, (rows, sizes.engine.context), device=device)
        start = time.perf_counter()
        with torch.inference_mode():
            model.generate(
                tokens,
                attention_mask=torch.ones_like(tokens),
                do_sample=False,
                min_new_tokens=count,
                max_new_tokens=count,
                pad_token_id=0,
            )
        if device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - start

    def measure() -> Figure:
        count = sizes.generate_tokens
        generate(2)
        first = [generate(1) for _ in range(REPEATS)]
        whole = [generate(count) for _ in range(REPEATS)]
        step = (statistics.median(whole) - statistics.median(first)) / (count - 1)
        return {
            "seconds": step,
            "tokens_per_second": rows / step,
            "prefill_seconds": statistics.median(first),
            "raw_first": first,
            "raw_whole": whole,
            "new_tokens": count,
        }

    return measure
