"""`python -m jaxserve.verify logprobs MODEL`: the engine's log-probabilities of its samples beside a trainer's forward pass."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal, get_type_hints

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

from jaxserve.commands import wide_console, write_json
from jaxserve.config.check import check_types
from jaxserve.config.fields import EngineConfig, setting
from jaxserve.config.flags import OneLineParser, add_flags, flag_names, from_flags
from jaxserve.engine.preparation import model_directory
from jaxserve.errors import ConfigError, JaxserveError
from jaxserve.llm import LLM
from jaxserve.models.checkpoint import read_hf_config
from jaxserve.models.registry import decoder_config
from jaxserve.outputs import RequestOutput
from jaxserve.rollout.forward import Trainer
from jaxserve.rollout.mismatch import Mismatch, Pair, by_position, overall
from jaxserve.sampling.params import PROCESSED_LOGPROBS, SamplingParams
from jaxserve.step.plan import Floats
from jaxserve.types import TokensPrompt
from jaxserve.weights.load import load_params
from jaxserve.weights.stored_head import with_stored_head
from sharding import make_mesh

_EXIT_FAILED, _EXIT_ERROR, _EXIT_INTERRUPTED = 1, 2, 130
_WIDTH = 100
_PARTS = 8  # of positions

Forward = Callable[[Sequence[int], float], Floats]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogprobsConfig:
    """What is sampled, and what it is compared with."""

    trainer: Literal["jaxserve", "transformers"] = setting(
        "jaxserve", "whose forward pass: the decoder's own over whole sequences, without pages and kernels, or transformers'"
    )
    trainer_dtype: Literal["auto", "float32", "bfloat16"] = setting("auto", "the trainer's dtype; 'auto' is the engine's")
    prompts: int = setting(16, "prompts of random tokens")
    prompt_tokens: int = setting(32, "tokens of the longest prompt; others have fewer, at least 1")
    max_tokens: int = setting(64, "tokens sampled after each prompt")
    temperature: float = setting(1.0, "of the samples; the trainer divides its logits by it")
    sample_seed: int = setting(0, "of prompts and samples")
    limit: float | None = setting(None, "exit with 1 if a log-probability differs by more than this")
    json: str | None = setting(None, "also write every figure to this file, as JSON")

    def __post_init__(self) -> None:
        check_types(self)
        for name in ("prompts", "prompt_tokens", "max_tokens"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, got {getattr(self, name)}", param=name)
        if not 0.0 < self.temperature <= 100.0:
            raise ConfigError(f"temperature must be in (0, 100], got {self.temperature}", param="temperature")
        if self.limit is not None and not self.limit >= 0.0:
            raise ConfigError(f"limit must be at least 0, got {self.limit}", param="limit")


def main(argv: Sequence[str]) -> int:
    console = wide_console(_WIDTH)
    try:
        settings = vars(_parser().parse_args(argv))
        config = from_flags(LogprobsConfig, settings)
        names = [name for part in get_type_hints(EngineConfig).values() for name in flag_names(part)]
        pairs, dtype = compare(config, {name: settings[name] for name in names})
        parts, whole = by_position(pairs, -(-config.max_tokens // _PARTS)), overall(pairs)
        if config.json is not None:
            write_json(Path(config.json), _figures(config, settings["model"], dtype, parts, whole))
    except JaxserveError as error:
        sys.stderr.write(f"jaxserve: {error.message}\n")
        return _EXIT_ERROR
    except KeyboardInterrupt:
        return _EXIT_INTERRUPTED
    _show(console, parts, whole)
    if config.limit is None:
        return 0
    within = whole.max_abs <= config.limit
    console.print(f"{whole.max_abs:.2e} is {'within' if within else 'above'} the limit of {config.limit:g}")
    return 0 if within else _EXIT_FAILED


def compare(config: LogprobsConfig, settings: dict[str, Any]) -> tuple[list[Pair], str]:
    """Both log-probabilities of every sampled sequence, and the engine's dtype."""
    llm = LLM(**settings)
    model = llm.report.model
    if config.prompt_tokens + config.max_tokens > model.max_model_len:
        raise ConfigError(
            f"prompt_tokens {config.prompt_tokens} and max_tokens {config.max_tokens} are more than the model's context of "
            f"{model.max_model_len}",
            param="max_tokens",
        )
    generator = np.random.default_rng(config.sample_seed)
    lengths = generator.integers(1, config.prompt_tokens + 1, config.prompts)
    prompts: list[TokensPrompt] = [
        {"prompt_token_ids": generator.integers(0, model.vocab_size, length).tolist()} for length in lengths
    ]
    params = SamplingParams(
        max_tokens=config.max_tokens,
        temperature=config.temperature,
        seed=config.sample_seed,
        logprobs=0,
        logprobs_mode=PROCESSED_LOGPROBS,
        ignore_eos=True,
        top_k=0,
    )
    results = llm.generate(prompts, params)
    forward = _forward(config, settings, model.dtype)
    return [_pair(result, forward, config.temperature) for result in results], model.dtype


def _pair(result: RequestOutput, forward: Forward, temperature: float) -> Pair:
    output, prompt = result.outputs[0], result.prompt_token_ids
    assert output.logprobs is not None, "they were asked for"
    ours = [entry[token].logprob for entry, token in zip(output.logprobs, output.token_ids, strict=True)]
    return ours, forward([*prompt, *output.token_ids], temperature)[len(prompt) - 1 :]


def _forward(config: LogprobsConfig, settings: dict[str, Any], dtype: str) -> Forward:
    dtype = dtype if config.trainer_dtype == "auto" else config.trainer_dtype
    directory = model_directory(settings["model"])
    if config.trainer == "transformers":
        return _transformers(directory, dtype)
    format_, seed = settings["load_format"], settings["seed"]
    decoder = with_stored_head(decoder_config(read_hf_config(directory)), directory, format_)
    params = load_params(directory, decoder, make_mesh(1), dtype, load_format=format_, seed=seed)
    return Trainer(decoder, params).logprobs


def _transformers(directory: Path, dtype: str) -> Forward:
    if importlib.util.find_spec("transformers") is None or importlib.util.find_spec("torch") is None:
        raise ConfigError("trainer: transformers and torch are not installed", param="trainer")
    import torch  # noqa: PLC0415 - optional
    from transformers import AutoModelForCausalLM  # noqa: PLC0415 - optional

    model = AutoModelForCausalLM.from_pretrained(directory, dtype=getattr(torch, dtype)).eval()

    def forward(tokens: Sequence[int], temperature: float) -> Floats:
        with torch.no_grad():
            logits = model(torch.tensor([tokens])).logits[0, :-1].float() / temperature
            scores = torch.log_softmax(logits, dim=-1)
            chosen: Floats = scores.gather(1, torch.tensor(tokens[1:])[:, None])[:, 0].numpy()
        return chosen

    return forward


def _parser() -> OneLineParser:
    parser = OneLineParser(
        prog="python -m jaxserve.verify logprobs",
        description="Compare the engine's log-probabilities of its samples with a trainer's forward pass of the same checkpoint.",
    )
    add_flags(parser, LogprobsConfig, *(get_type_hints(EngineConfig)[part.name] for part in fields(EngineConfig)))
    return parser


def _show(console: Console, parts: dict[str, Mismatch], whole: Mismatch) -> None:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for place, column in enumerate(("sampled tokens", "count", "max abs", "mean abs", "KL (k1)", "KL (k3)")):
        table.add_column(column, justify="left" if place == 0 else "right", no_wrap=True)
    for name, part in (*parts.items(), ("all", whole)):
        figures = (part.max_abs, part.mean_abs, part.k1, part.k3)
        table.add_row(name, str(part.tokens), *(f"{figure:.2e}" for figure in figures))
    console.print(table)


def _figures(config: LogprobsConfig, model: str, dtype: str, parts: dict[str, Mismatch], whole: Mismatch) -> dict[str, Any]:
    return {
        "model": model,
        "dtype": dtype,
        "settings": asdict(config),
        "positions": {name: asdict(part) for name, part in parts.items()},
        "all": asdict(whole),
    }
