"""Export a training checkpoint as a Hugging Face folder: ``python examples/pico/export.py --work build/pico``."""

import argparse
import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from model import Config
from numpy.typing import NDArray
from safetensors.numpy import save_file
from tokenizer import BOS, EOS, PAD, SPECIAL_TOKENS, save_tokenizer
from tokenizers import Tokenizer


def load_checkpoint(folder: Path) -> tuple[dict[str, NDArray[np.float32]], dict[str, Any]]:
    """The parameters of the last checkpoint, without the optimizer's state, and its figures."""
    with np.load(folder / "checkpoint.npz") as file:
        weights = {name: file[name] for name in file.files if name.startswith("model.")}
        return weights, json.loads(str(file["meta"]))


def hf_config(config: Config) -> dict[str, Any]:
    """The contents of ``config.json``."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_hidden_layers,
        "num_attention_heads": config.num_attention_heads,
        "num_key_value_heads": config.num_key_value_heads,
        "head_dim": config.head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": config.max_position_embeddings,
        "rms_norm_eps": config.rms_norm_eps,
        "rope_theta": config.rope_theta,
        "rope_scaling": None,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "mlp_bias": False,
        "tie_word_embeddings": True,
        "initializer_range": 0.02,
        "pretraining_tp": 1,
        "use_cache": True,
        "bos_token_id": SPECIAL_TOKENS.index(BOS),
        "eos_token_id": SPECIAL_TOKENS.index(EOS),
        "pad_token_id": SPECIAL_TOKENS.index(PAD),
        "torch_dtype": "bfloat16",
    }


def export(work: Path, out: Path) -> None:
    """Write weights, configuration and tokenizer of the checkpoint in ``work`` to ``out``."""
    weights, meta = load_checkpoint(work)
    config = Config(**meta["config"])
    out.mkdir(parents=True, exist_ok=True)
    tensors = {name: np.ascontiguousarray(w.astype(ml_dtypes.bfloat16)) for name, w in weights.items()}
    save_file(tensors, out / "model.new", metadata={"format": "pt"})
    (out / "model.new").chmod(0o644)
    (out / "model.new").replace(out / "model.safetensors")  # whoever has the old file open keeps a whole one
    (out / "config.json").write_text(json.dumps(hf_config(config), indent=2) + "\n")
    generation = {k: v for k, v in hf_config(config).items() if k.endswith("_token_id")} | {"do_sample": False}
    (out / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n")
    tokenizer = Tokenizer.from_file(str(work / "tokenizer.json"))
    save_tokenizer(tokenizer, out, config.max_position_embeddings)
    run = {k: round(meta[k], 4) for k in ("step", "tokens", "seconds", "loss")}
    run["args"] = {k: v for k, v in meta["args"].items() if k not in ("work", "init")}
    if "init" in meta:
        run["init"] = meta["init"]
    (out / "training.json").write_text(json.dumps(run, indent=2) + "\n")
    print(f"{sum(t.size for t in tensors.values()):,} parameters after {meta['step']:,} steps written to {out}")


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, default=Path("build/pico"), help="folder of train.py")
    parser.add_argument("--out", type=Path, default=Path("jaxserve/assets/pico"))
    args = parser.parse_args()
    export(args.work, args.out)


if __name__ == "__main__":
    main()
