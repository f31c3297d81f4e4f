"""Makes the golden checkpoints and what transformers computes from them: python -m tests.golden.make [NAME ...]

Needs the `parity` extra. Each case of cases.py becomes data/NAME/: config.json, safetensors, tokenizer.json (so that
the directory is a whole checkpoint), greedy.json and logits.npz. Prompts whose greedy continuation comes near a tie are
drawn again: float32 sums in another order must not change an argmax, nor which tokens an indexer chooses.
"""

from __future__ import annotations

import json
import shutil
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.overrides import TorchFunctionMode
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

from tests.golden.cases import BASE, CASES, Case
from tests.golden.quantize import quantize

DATA = Path(__file__).parent / "data"
LENGTHS = (1, 2, 3, 5, 7, 11, 15, 16, 17, 23, 31, 32, 33, 47, 60, 64, 90)
FULL = LENGTHS.index(60)  # the prompt whose logits are kept at every position
NEW_TOKENS = 64
CLEAR = 5e-3  # smallest gap between the best two logits of any greedy step
APART = 2e-5  # smallest gap between the last score that an indexer chooses and the next
ROUNDING = 6e-5  # largest part of the tests' tolerance that float32 may cost the reference itself


class Choices(TorchFunctionMode):  # type: ignore[misc]  # torch need not be there
    """Sees how far apart the scores [B, S, T] of indexers are between what they choose and what they do not.

    Attributes:
        gap: the smallest.
    """

    def __init__(self) -> None:
        super().__init__()
        self.gap = float("inf")

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.topk and args[0].ndim == 3 and args[1] < args[0].shape[-1]:
            last, following = torch.topk(args[0], args[1] + 1).values[..., -2:].unbind(-1)
            seen = following > torch.finfo(torch.float32).min / 2  # by the causal mask
            self.gap = min([self.gap, *(last - following)[seen].tolist()])
        return func(*args, **(kwargs or {}))


def make(case: Case) -> None:
    """Write one case's directory."""
    directory = DATA / case.name
    shutil.rmtree(directory, ignore_errors=True)
    config = model_config(case)
    kind = AutoModelForCausalLM if case.within is None else AutoModelForImageTextToText
    model = kind.from_config(config, attn_implementation="eager", dtype=torch.float32)
    randomize(model, case.seed)
    model.to(getattr(torch, case.dtype))
    model.save_pretrained(directory, max_shard_size=case.shard_size)
    (directory / "generation_config.json").unlink(missing_ok=True)
    if case.stored != "plain":
        quantize(directory, case.stored)
    for file in directory.glob("*.safetensors"):
        file.chmod(0o644)
    write_config(directory / "config.json", case)
    write_tokenizer(directory, config.get_text_config().vocab_size)

    model = reference_model(directory, kind)
    rng = np.random.default_rng(case.seed)
    prompts, greedy, last, gaps = [], [], [], []
    for length in LENGTHS:
        prompt, tokens, logits, gap = clear_prompt(model, rng, length if length >= case.shortest else length + case.shortest - 1)
        prompts.append(prompt)
        greedy.append(tokens)
        last.append(logits)
        gaps.append(gap)
    (directory / "greedy.json").write_text(
        json.dumps({"prompts": prompts, "greedy": greedy, "full": FULL}, separators=(",", ":")) + "\n"
    )
    full = prompt_logits(model, prompts[FULL])
    np.savez_compressed(directory / "logits.npz", last=np.stack(last), full=full)
    kinds = len({token for tokens in greedy for token in tokens})
    rounding = rounding_error(model, prompts[FULL], full) if case.stored == "plain" else 0.0
    print(
        f"{case.name}: logits deviate {full.std():.2f}, by {rounding:.1e} from those of float64,"
        f" least gap {min(gaps):.4f}, {kinds} tokens in use"
    )
    if rounding > ROUNDING:
        raise RuntimeError(f"{case.name} depends on how float32 is rounded: choose another seed")


def model_config(case: Case) -> Any:
    """As transformers has it; of a decoder within a model that sees, that model's."""
    known = AutoConfig.for_model(case.model_type)
    base = {name: value for name, value in BASE.items() if hasattr(known, name)}
    own = {**base, **case.config, "initializer_range": 0.2}
    if case.within is None:
        return AutoConfig.for_model(case.model_type, **own)
    beside = {name: value for name, value in case.within.items() if name != "model_type"}
    return AutoConfig.for_model(case.within["model_type"], text_config={**own, "model_type": case.model_type}, **beside)


def randomize(model: Any, seed: int) -> None:
    """Weights that make every part matter: also biases and norms differ from their neutral values."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if name.endswith("norm.weight"):
                parameter.add_(0.2 * noise)  # to what is neutral: 1, or 0 where weights are stored less 1
            elif name.endswith("A_log"):
                parameter.copy_(-2 + noise)  # states that fade slowly, and others
            elif parameter.ndim == 1:
                parameter.copy_(0.3 * noise)
            elif "lm_head" in name or "embed" in name:
                parameter.copy_(0.6 * noise)
            else:
                inputs = parameter.shape[-1] if "conv1d" in name else parameter.shape[1]
                parameter.copy_(1.5 * noise * inputs**-0.5)
        for name, buffer in model.named_buffers():
            if name.endswith(("e_score_correction_bias", "expert_bias")):
                buffer.copy_(0.3 * torch.randn(buffer.shape, generator=generator))
            elif name.endswith("layer_scalar"):
                buffer.copy_(1 + 0.3 * torch.randn(buffer.shape, generator=generator))


def write_config(path: Path, case: Case) -> None:
    """Rewrite config.json in the layout of the case's transformers version."""
    config = json.loads(path.read_text())
    if case.layout == 4:
        decoder = config if case.within is None else config["text_config"]
        rope = decoder.pop("rope_parameters")
        decoder["rope_theta"] = rope.pop("rope_theta")
        decoder["rope_scaling"] = None if rope["rope_type"] == "default" else rope
        config["torch_dtype"] = config.pop("dtype")
        config["transformers_version"] = "4.57.0"
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def write_tokenizer(directory: Path, vocab_size: int) -> None:
    """A byte-level BPE tokenizer: the 256 bytes, then pairs of letters up to the vocabulary's size."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    letters = "etaoinshrdlu"
    merges = [(a, b) for a in letters for b in letters][: vocab_size - len(alphabet)]
    vocab = {token: i for i, token in enumerate(alphabet + [a + b for a, b in merges])}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(directory / "tokenizer.json"), pretty=False)
    (directory / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}\n')


def reference_model(directory: Path, kind: Any = AutoModelForCausalLM) -> Any:
    """The checkpoint as transformers loads it, in float32."""
    model = kind.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager")
    if not getattr(model, "is_quantized", False):  # compressed-tensors' are in float32
        model = model.float()  # beside FP8, transformers leaves tensors as they are stored
    if model.config.model_type == "llama4":
        model = model.language_model  # transformers 5.24 runs the whole of it with images alone
    return model.eval()


def prompt_logits(model: Any, prompt: list[int]) -> np.ndarray:
    """Logits at every position of a prompt: float32[T, V]."""
    with torch.no_grad():
        logits: np.ndarray = model(torch.tensor([prompt])).logits[0].numpy()
        return logits


def rounding_error(model: Any, prompt: list[int], logits: np.ndarray) -> float:
    """How far logits of a prompt are from those of the model in float64, which it is in afterwards."""
    model.set_experts_implementation("eager")  # the others know no float64
    return float(np.abs(prompt_logits(model.double(), prompt) - logits).max())


def generate(model: Any, prompt: list[int], new_tokens: int) -> tuple[list[int], np.ndarray]:
    """Greedy tokens past any end-of-sequence, and the logits they were chosen from: float32[new_tokens, V]."""
    model.generation_config.eos_token_id = None
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        out = model.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            max_new_tokens=new_tokens,
            do_sample=False,
            pad_token_id=0,
            return_dict_in_generate=True,
            output_logits=True,
        )
    return out.sequences[0, len(prompt) :].tolist(), torch.cat(out.logits).float().numpy()


def clear_prompt(model: Any, rng: np.random.Generator, length: int) -> tuple[list[int], list[int], np.ndarray, float]:
    """A random prompt with no near-tie in its continuation: prompt, greedy tokens, last logits, least gap."""
    for _ in range(200):
        prompt = rng.integers(model.config.get_text_config().vocab_size, size=length).tolist()
        with Choices() as choices:
            tokens, logits = generate(model, prompt, NEW_TOKENS)
        best = np.sort(logits, axis=-1)[:, -2:]
        gap = float((best[:, 1] - best[:, 0]).min())
        if gap > CLEAR and choices.gap > APART:
            return prompt, tokens, logits[0], gap
    raise RuntimeError(f"no prompt of {length} tokens without a near-tie: choose another seed")


if __name__ == "__main__":
    torch.set_num_threads(1)  # sums in one order: the same goldens on every machine of a kind
    chosen = sys.argv[1:]
    for each in CASES:
        if not chosen or each.name in chosen:
            make(each)
