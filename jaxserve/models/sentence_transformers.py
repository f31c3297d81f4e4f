"""What a directory of sentence-transformers says of how texts become vectors: its modules, their settings, its prompts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import msgspec

from jaxserve.errors import CheckpointError, UnsupportedModelError
from jaxserve.models.checkpoint import read_json_object
from jaxserve.models.config import DecoderConfig, DenseConfig
from jaxserve.models.fields import HfFields

_TRANSFORMER, _DENSE = "Transformer", "Dense"
MODULES, PROMPTS, TRANSFORMER = "modules.json", "config_sentence_transformers.json", "sentence_bert_config.json"
POOLINGS: Mapping[str, Literal["last", "first", "mean"]] = {"lasttoken": "last", "cls": "first", "mean": "mean"}
_OLD_NAMES = {
    "pooling_mode_lasttoken": "lasttoken",
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SentenceTransformer:
    """How a model's hidden states become the vector of a text.

    Attributes:
        pooling: whose.
        normalizes: whether vectors then get length 1.
        prompts: texts that go before texts of a kind.
        default_prompt: the kind of texts of which none is named.
        dense: layers behind the pooled hidden state.
        max_length: tokens of the longest text; None for what the model takes.
        lowercases: whether texts are made lower case before they are tokenized.
    """

    pooling: Literal["last", "first", "mean"]
    normalizes: bool
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt: str | None = None
    dense: tuple[DenseConfig, ...] = ()
    max_length: int | None = None
    lowercases: bool = False


def read_sentence_transformer(directory: Path) -> SentenceTransformer | None:
    """None for a directory that is of something else.

    Raises CheckpointError for damaged files, UnsupportedModelError for modules that are not here.
    """
    home = _home(directory)
    if home is None:
        return None
    pooling: Literal["last", "first", "mean"] | None = None
    normalizes, pools_prompts = False, True
    dense: list[DenseConfig] = []
    for kind, path in _modules(home):
        if kind == "Pooling":
            if pooling is not None:
                raise UnsupportedModelError(f"{MODULES}: several modules Pooling are not supported", param="model")
            pooling, pools_prompts = _pooling(home / path / "config.json")
        elif kind == "Normalize":
            normalizes = True
        elif kind == _DENSE and pooling is not None and not normalizes:
            dense.append(_dense(home, path))
        elif kind != _TRANSFORMER:
            raise UnsupportedModelError(
                f"{MODULES}: a module {kind} is not supported here; supported are Transformer, Pooling, Dense and Normalize, in "
                "that order",
                param="model",
            )
    if pooling is None:
        raise UnsupportedModelError(f"{MODULES} has no Pooling", param="model")
    prompts, default = _prompts(home / PROMPTS)
    if not pools_prompts and any(prompts.values()):
        raise UnsupportedModelError(
            f"{MODULES}: Pooling: include_prompt false is not supported beside the prompts in {PROMPTS}: their tokens are pooled",
            param="model",
        )
    transformer = _transformer(directory / TRANSFORMER)
    return SentenceTransformer(
        pooling=pooling,
        normalizes=normalizes,
        prompts=prompts,
        default_prompt=default,
        dense=tuple(dense),
        max_length=transformer.integer("max_seq_length") if transformer.has("max_seq_length") else None,
        lowercases=transformer.flag("do_lower_case", False),
    )


def with_modules(config: DecoderConfig, sentences: SentenceTransformer) -> DecoderConfig:
    """The model with the layers that follow the pooling, for texts no longer than those that it was trained with.

    Raises CheckpointError for layers that do not fit, UnsupportedModelError for what cannot be added up chunk by chunk.
    """
    size = config.hidden_size
    for dense in sentences.dense:
        if dense.inputs != size:
            raise CheckpointError(
                f"{dense.folder}: in_features is {dense.inputs}, and what comes has {size} numbers", param="model"
            )
        size = dense.outputs
    if sentences.pooling == "mean" and not config.bidirectional and any(dense.activation for dense in sentences.dense):
        raise UnsupportedModelError(
            f"{MODULES}: Dense with an activation behind a mean is not supported where prompts are computed in chunks",
            param="model",
        )
    longest = min(config.max_position_embeddings, sentences.max_length or config.max_position_embeddings)
    return replace(config, dense=sentences.dense, max_position_embeddings=longest)


def dense_folders(directory: Path) -> dict[str, Path]:
    """Folders with tensors of their own, of a directory of sentence-transformers. Raises CheckpointError."""
    home = _home(directory)
    return {} if home is None else {path: home / path for kind, path in _modules(home) if kind == _DENSE}


def transformer_folder(directory: Path) -> Path:
    """Where a model's own files are: in the directory, or below it, as sentence-transformers before 2.0 saved them."""
    if (directory / "config.json").is_file() or not (directory / MODULES).is_file():
        return directory
    return next((directory / path for kind, path in _modules(directory) if kind == _TRANSFORMER), directory)


def _home(directory: Path) -> Path | None:
    """The directory with the modules of which this one is the Transformer: itself, or what it is in."""
    homes = [one for one in (directory, directory.parent) if (one / MODULES).is_file()]
    return next((one for one in homes if transformer_folder(one) == directory), None)


def _modules(directory: Path) -> list[tuple[str, str]]:
    """The name of each module's class and its folder, in order."""
    path = directory / MODULES
    try:
        listed = msgspec.json.decode(path.read_bytes(), type=list[dict[str, Any]])
        return [(str(one["type"]).rpartition(".")[2], str(one["path"])) for one in listed]
    except (OSError, msgspec.MsgspecError, KeyError, UnicodeError, RecursionError) as error:
        raise CheckpointError(f"{path} is no list of modules with type and path: {error}", param="model") from error


def _pooling(path: Path) -> tuple[Literal["last", "first", "mean"], bool]:
    """The mode, and whether the tokens of a prompt are pooled like others, or make no difference."""
    config = read_json_object(path)
    named = config.get("pooling_mode")
    modes = [mode for name, mode in _OLD_NAMES.items() if config.get(name)]
    if named is not None:
        modes = list(map(str, named)) if isinstance(named, list) else [str(named)]
    if len(modes) != 1 or modes[0] not in POOLINGS:
        told = ", ".join(map(str, modes)) or "none"
        raise UnsupportedModelError(
            f"{path}: pooling {told} is not supported; supported are {', '.join(POOLINGS)}", param="model"
        )
    return POOLINGS[modes[0]], config.get("include_prompt") is not False or modes[0] == "lasttoken"


_ACTIVATIONS: Mapping[str, Literal["tanh"] | None] = {"Identity": None, "Tanh": "tanh"}


def _dense(directory: Path, folder: str) -> DenseConfig:
    path = directory / folder / "config.json"
    fields = HfFields(read_json_object(path), str(path))
    activation = str(fields.hf.get("activation_function", "torch.nn.modules.activation.Tanh")).rpartition(".")[2]
    if activation not in _ACTIVATIONS:
        raise fields.unsupported("activation_function", f"supported are {', '.join(_ACTIVATIONS)}")
    return DenseConfig(
        folder=folder,
        inputs=fields.integer("in_features"),
        outputs=fields.integer("out_features"),
        bias=fields.flag("bias", True),
        activation=_ACTIVATIONS[activation],
    )


def _transformer(path: Path) -> HfFields:
    """What is said of the module Transformer; nothing without the file."""
    return HfFields(read_json_object(path) if path.is_file() else {}, str(path))


def _prompts(path: Path) -> tuple[Mapping[str, str], str | None]:
    if not path.is_file():
        return {}, None
    config = read_json_object(path)
    prompts, default = config.get("prompts") or {}, config.get("default_prompt_name")
    if not isinstance(prompts, dict) or not all(isinstance(text, str) for text in prompts.values()):
        raise CheckpointError(f"{path}: prompts must be an object of texts", param="model")
    if default is not None and default not in prompts:
        raise CheckpointError(f"{path}: default_prompt_name {default!r} is not among the prompts", param="model")
    return prompts, default
