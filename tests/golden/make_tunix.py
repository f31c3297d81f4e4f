"""Writes tests/golden/data/tunix.npz: trees of Tunix's models, as Tunix loads them from tiny seeded checkpoints.

Not run by the tests. Needs google-tunix (0.1.7 made what is there), which is no dependency of the project's:

    python -m tests.golden.make_tunix
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import jax
import numpy as np
from flax import nnx

from tests.support.live import random_tensors, write_checkpoint
from tests.support.tunix_models import MODELS, SEED

OUTPUT = Path(__file__).parent / "data" / "tunix.npz"


def _loaders() -> dict[str, tuple[Any, Callable[..., Any]]]:
    """By the module's name: its configuration, and what loads a checkpoint."""
    from tunix.models.gemma3 import model as gemma3
    from tunix.models.gemma3 import params_safetensors as gemma3_params
    from tunix.models.llama3 import model as llama3
    from tunix.models.llama3 import params as llama3_params
    from tunix.models.qwen2 import model as qwen2
    from tunix.models.qwen2 import params as qwen2_params
    from tunix.models.qwen3 import model as qwen3
    from tunix.models.qwen3 import params as qwen3_params

    return {
        "llama3": (llama3.ModelConfig, llama3_params.create_model_from_safe_tensors),
        "qwen2": (qwen2.ModelConfig, qwen2_params.create_model_from_safe_tensors),
        "qwen3": (qwen3.ModelConfig, qwen3_params.create_model_from_safe_tensors),
        "gemma3": (gemma3.ModelConfig, gemma3_params.create_model_from_safe_tensors),
    }


def main() -> None:
    loaders = _loaders()
    found: dict[str, Any] = {}
    for name, (module, hf, fields) in MODELS.items():
        config, load = loaders[module]
        with TemporaryDirectory() as folder:
            directory = write_checkpoint(Path(folder) / "model", hf, random_tensors(hf, SEED))
            mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]).reshape(1, 1), ("fsdp", "tp"))
            model = load(str(directory), config(**fields), mesh, np.float32)
        for path, variable in nnx.to_flat_state(nnx.state(model, nnx.Param)):
            found[f"{name}/{'.'.join(map(str, path))}"] = np.asarray(variable.get_value())
    np.savez_compressed(OUTPUT, **found)


if __name__ == "__main__":
    main()
