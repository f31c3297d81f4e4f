"""One model on loaded tasks, with the harness's own evaluator."""

from __future__ import annotations

import contextlib
import io
import platform
import random
import time
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from lm_eval.evaluator import evaluate

from jaxserve.config.fields import EngineConfig, ModelConfig
from jaxserve.engine.preparation import model_directory
from jaxserve.errors import ConfigError
from jaxserve.evaluation.harness import Tasks
from jaxserve.evaluation.model import JaxserveLM
from jaxserve.evaluation.notes import heard
from jaxserve.evaluation.result import FORMAT, Result, plain
from jaxserve.evaluation.settings import EvalConfig
from jaxserve.evaluation.values import values_of
from jaxserve.executor.programs import CompileProgress
from jaxserve.llm import LLM
from jaxserve.models.checkpoint import read_hf_config
from jaxserve.models.registry import decoder_config
from jaxserve.tokenizer.chat import ChatTemplate
from jaxserve.tokenizer.load import load_tokenizer
from jaxserve.versions import version_of
from jaxserve.weights.fingerprint import model_fingerprint
from jaxserve.weights.stored_head import with_stored_head

_HARNESS_SEEDS = (0, 1234)  # of Python's and numpy's generators, which some tasks use: lm-eval's own
_PACKAGES = ("jaxserve", "jax", "lm_eval", "datasets")


def run(tasks: Tasks, config: EvalConfig, settings: Mapping[str, Any], progress: CompileProgress) -> Result:
    """Load the model, answer every request of the tasks, and score the answers.

    Args:
        tasks: what is asked; a second run wants them loaded again.
        config: how.
        settings: of the engine, for `LLM`: its model among them.
        progress: told of loading, compiling and answering: (what, done, of how many).

    Raises what `LLM` and `JaxserveLM` raise, and ConfigError for a chat template that the model does not have.
    """
    started, begin = datetime.now(UTC), time.monotonic()
    templated = tasks.own if config.apply_chat_template is None else config.apply_chat_template
    _require_texts(EngineConfig.from_settings(settings).model, templated=templated)
    with heard() as notes:
        llm = LLM(progress=progress, **settings)
        loaded = time.monotonic()
        model = JaxserveLM(llm, on_progress=progress)
        harness = _evaluate(model, tasks, config, templated)
    seconds = {"load": loaded - begin, "evaluate": time.monotonic() - loaded}
    samples = harness.pop("samples")
    if config.log_samples:
        harness["samples"] = samples
    header = {
        "format": FORMAT,
        "model": _model(llm, settings),
        "started": started.isoformat(timespec="seconds"),
        "versions": {"python": platform.python_version()} | {name: version_of(name) for name in _PACKAGES},
        "settings": asdict(config) | {"apply_chat_template": templated, "engine": dict(settings)},
        "seconds": seconds,
        "tokens": _tokens(model, seconds["evaluate"]),
        "notes": notes.lines(),
        "values": values_of(samples),
    }
    return Result(plain(header), plain(harness))


def _require_texts(config: ModelConfig, *, templated: bool) -> None:
    """Raise CheckpointError without a tokenizer, ConfigError without a chat template: before the model is loaded."""
    place = Path(config.tokenizer) if config.tokenizer else model_directory(config.model)
    load_tokenizer(place)
    if templated and ChatTemplate.load(place, config.chat_template) is None:
        raise ConfigError(
            f"{config.model} has no chat template, which these prompts want; --no-apply-chat-template does without",
            param="apply_chat_template",
        )


def _evaluate(model: JaxserveLM, tasks: Tasks, config: EvalConfig, templated: bool) -> dict[str, Any]:
    """As `lm_eval.simple_evaluate` does for tasks that are loaded, without its look at the git repository that one is in."""
    random.seed(_HARNESS_SEEDS[0])
    np.random.seed(_HARNESS_SEEDS[1])
    for task in tasks.loaded["tasks"].values():
        shots = task.get_config("num_fewshot")
        if config.num_fewshot is not None and shots != 0:  # a task that says 0 means it
            task.set_config(key="num_fewshot", value=config.num_fewshot)
        elif shots is None:
            task.set_config(key="num_fewshot", value=0)
        task.set_fewshot_seed(seed=config.fewshot_seed)
    with contextlib.redirect_stdout(io.StringIO()):  # its metrics print
        results: dict[str, Any] = evaluate(
            lm=model,
            task_dict=tasks.loaded,
            limit=config.limit,
            bootstrap_iters=config.bootstrap_iters,
            log_samples=True,
            system_instruction=config.system_instruction,
            apply_chat_template=templated,
            fewshot_as_multiturn=True,  # as with lm-eval's own command line
        )
    return results


def _model(llm: LLM, settings: Mapping[str, Any]) -> dict[str, Any]:
    """What was measured: its name and numbers, and the fingerprint by which copies of it are the same."""
    info, config = llm.report.model, EngineConfig.from_settings(settings).model
    directory = model_directory(config.model)
    decoder = with_stored_head(decoder_config(read_hf_config(directory)), directory, config.load_format)
    fingerprint = model_fingerprint(directory, decoder, config)
    return {
        "name": info.name,
        "path": config.model,
        "fingerprint": fingerprint,
        "architecture": info.architecture,
        "parameters": info.parameters,
        "dtype": info.dtype,
        "max_model_len": info.max_model_len,
    }


def _tokens(model: JaxserveLM, seconds: float) -> dict[str, float]:
    usage = model.usage
    return {
        "prompt": usage.prompt_tokens,
        "cached": usage.cached_tokens,
        "output": usage.output_tokens,
        "per_second": (usage.prompt_tokens + usage.output_tokens) / seconds,
        "prefix_hit_rate": usage.cached_tokens / max(usage.prompt_tokens, 1),
    }
