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

_DENSE = "Dense"
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
    """

    pooling: Literal["last", "first", "mean"]
    normalizes: bool
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt: str | None = None
    dense: tuple[DenseConfig, ...] = ()
    max_length: int | None = None


def read_sentence_transformer(directory: Path) -> SentenceTransformer | None:
    """None for a directory that is of something else.

    Raises CheckpointError for damaged files, UnsupportedModelError for modules that are not here.
    """
    if not (directory / MODULES).is_file():
        return None
    pooling: Literal["last", "first", "mean"] | None = None
    normalizes = False
    dense: list[DenseConfig] = []
    for kind, path in _modules(directory):
        if kind == "Pooling":
            pooling = _pooling(directory / path / "config.json")
        elif kind == "Normalize":
            normalizes = True
        elif kind == _DENSE and pooling is not None and not normalizes:
            dense.append(_dense(directory, path))
        elif kind != "Transformer":
            raise UnsupportedModelError(
                f"{MODULES}: a module {kind} is not supported here; supported are Transformer, Pooling, Dense and Normalize, in "
                "that order",
                param="model",
            )
    if pooling is None:
        raise UnsupportedModelError(f"{MODULES} has no Pooling", param="model")
    prompts, default = _prompts(directory / PROMPTS)
    return SentenceTransformer(
        pooling=pooling,
        normalizes=normalizes,
        prompts=prompts,
        default_prompt=default,
        dense=tuple(dense),
        max_length=_max_length(directory / TRANSFORMER),
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


def dense_folders(directory: Path) -> list[str]:
    """Folders with tensors of their own, of a directory of sentence-transformers. Raises CheckpointError."""
    return [path for kind, path in _modules(directory) if kind == _DENSE] if (directory / MODULES).is_file() else []


def _modules(directory: Path) -> list[tuple[str, str]]:
    """The name of each module's class and its folder, in order."""
    path = directory / MODULES
    try:
        listed = msgspec.json.decode(path.read_bytes(), type=list[dict[str, Any]])
        return [(str(one["type"]).rpartition(".")[2], str(one["path"])) for one in listed]
    except (OSError, msgspec.MsgspecError, KeyError, UnicodeError, RecursionError) as error:
        raise CheckpointError(f"{path} is no list of modules with type and path: {error}", param="model") from error


def _pooling(path: Path) -> Literal["last", "first", "mean"]:
    config = read_json_object(path)
    named = config.get("pooling_mode")
    modes = [named] if named is not None else [mode for name, mode in _OLD_NAMES.items() if config.get(name)]
    if len(modes) != 1 or modes[0] not in POOLINGS:
        told = ", ".join(map(str, modes)) or "none"
        raise UnsupportedModelError(
            f"{path}: pooling {told} is not supported; supported are {', '.join(POOLINGS)}", param="model"
        )
    if modes[0] == "mean" and config.get("include_prompt") is False:
        raise UnsupportedModelError(f"{path}: include_prompt false is not supported: all tokens are pooled", param="model")
    return POOLINGS[modes[0]]


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


def _max_length(path: Path) -> int | None:
    if not path.is_file():
        return None
    fields = HfFields(read_json_object(path), str(path))
    return fields.integer("max_seq_length") if fields.has("max_seq_length") else None


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
