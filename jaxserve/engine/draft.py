"""The draft model of a target: whether it can be one, and its weights."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import numpy.typing as npt
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxserve.config.windows import group_layers
from jaxserve.errors import CheckpointError, ConfigError
from jaxserve.executor.draft_runner import DraftWeights
from jaxserve.executor.draft_step import DraftModel
from jaxserve.executor.lowering import Lowering
from jaxserve.executor.programs import CompileProgress
from jaxserve.models.checkpoint import read_hf_config
from jaxserve.models.config import DecoderConfig
from jaxserve.models.draft_heads import head_config, is_draft_head
from jaxserve.models.mtp import module_config
from jaxserve.models.registry import MODULES, decoder_config
from jaxserve.models.shards import require_shards
from jaxserve.tokenizer.base import Tokenizer
from jaxserve.tokenizer.load import load_tokenizer
from jaxserve.weights.checkpoint import whole
from jaxserve.weights.formats import LoadFormat, has_weights, open_checkpoint
from jaxserve.weights.load import load_parameter, load_params
from jaxserve.weights.packed import Packer
from jaxserve.weights.stored_head import with_stored_head
from jaxserve.weights.stored_schemes import stored_schemes
from sharding import shards_of

PARAM = "speculative_config"


@dataclass(frozen=True, slots=True)
class DraftTarget:
    """What a draft guesses for: its checkpoint, what it is, and its tokenizer if it has one."""

    directory: Path
    config: DecoderConfig
    tokenizer: Tokenizer | None


@dataclass(frozen=True, slots=True)
class PreparedDraft:
    """A draft model, or head, that was found fit for its target, and where its weights are."""

    directory: Path
    target: DraftTarget
    model: DraftModel
    load_format: LoadFormat

    def serving(self, max_model_len: int) -> PreparedDraft:
        """For sequences of this length."""
        return replace(self, model=replace(self.model, config=self.model.config.serving(max_model_len)))


def prepare_draft(
    directory: Path,
    guesses: int,
    target: DraftTarget,
    mesh: Mesh,
    load_format: LoadFormat,
) -> PreparedDraft:
    """Read a draft's files, all but the weights, and compare it with its target.

    Raises CheckpointError or UnsupportedModelError for a checkpoint that no engine takes, ConfigError for one that cannot guess
    for this target.
    """
    group, hf = _group(target.config), _hf_config(directory)
    head = is_draft_head(hf)
    if head:
        with open_checkpoint(directory, "safetensors") as checkpoint:
            config = head_config(hf, target.config, checkpoint.shapes)
    else:
        config = with_stored_head(decoder_config(hf), directory)
    if config.vocab_size != target.config.vocab_size:
        raise ConfigError(
            f"{PARAM}: model: the draft has {config.vocab_size} tokens, the target {target.config.vocab_size}: both must have as "
            "many",
            param=PARAM,
        )
    if config.recurrent is not None:
        raise ConfigError(
            f"{PARAM}: model: {config.architecture} has layers with recurrent states, which no guess can be taken back from",
            param=PARAM,
        )
    require_shards(config, shards_of(mesh))
    _require_same_tokens(directory, target.tokenizer)
    load_format = "safetensors" if head else _stored_format(directory, load_format)
    stored = () if head else stored_schemes(directory, config, load_format)
    return PreparedDraft(directory, target, DraftModel(config, guesses, group, stored=stored), load_format)


def prepare_module(
    directory: Path,
    guesses: int,
    target: DraftTarget,
    mesh: Mesh,
    load_format: LoadFormat,
) -> PreparedDraft:
    """The same for the module for multi-token prediction of a target, which is in the target's own directory or in another.

    Raises ConfigError for a target that has none, or several, CheckpointError for a checkpoint without it.
    """
    model = target.config
    if (family := MODULES.get(model.architecture)) is None:
        raise ConfigError(
            f"{PARAM}: method 'mtp': {model.architecture} has no module for multi-token prediction here; there is one of "
            f"{', '.join(MODULES)}",
            param=PARAM,
        )
    if model.draft_layers != 1:
        raise ConfigError(
            f"{PARAM}: method 'mtp': num_nextn_predict_layers or mtp_num_hidden_layers in the target's config.json is "
            f"{model.draft_layers}; checkpoints with one module are served",
            param=PARAM,
        )
    hf = _hf_config(directory)
    own = decoder_config(hf)
    for name in ("architecture", "num_layers", "hidden_size", "vocab_size", "draft_layers"):
        if (given := getattr(own, name)) != (wanted := getattr(model, name)):
            raise CheckpointError(f"{PARAM}: model: {name} is {given!r}, the target's is {wanted!r}", param=PARAM)
    load_format = _stored_format(directory, load_format)
    names: Collection[str] = ()
    module = family.names(model.num_layers)
    if load_format != "dummy":
        with open_checkpoint(directory, load_format) as checkpoint:
            names = checkpoint.shapes.keys()
        if not any(name.startswith(module.begin) for name in names):
            raise CheckpointError(
                f"{PARAM}: method 'mtp': {directory} has no tensors {module.begin}*, which are the module for multi-token "
                "prediction",
                param=PARAM,
            )
    last = decoder_config(family.with_module(hf, model))
    config = module_config(last, module, names, normed_on=family.normed_on)
    require_shards(config, shards_of(mesh))
    if directory != target.directory:
        _require_same_tokens(directory, target.tokenizer)
    stored = stored_schemes(directory, config, load_format)
    return PreparedDraft(directory, target, DraftModel(config, guesses, _group(model), stored=stored), load_format)


def load_draft(draft: PreparedDraft, lowering: Lowering, *, seed: int, progress: CompileProgress) -> DraftWeights:
    """Its weights, on the lowering's devices. Raises CheckpointError."""
    model, mesh, dtype = draft.model, lowering.mesh, lowering.options.dtype
    head = model.config.fed
    params = load_params(
        draft.directory,
        model.config,
        mesh,
        dtype,
        load_format=draft.load_format,
        seed=seed,
        packer=Packer(model.config, mesh, model.quantization, model.stored),
        progress=lambda done, total: progress("loading the draft model, MB", done // 10**6, -(-total // 10**6)),
    )
    if head is None or head.module is not None:
        return DraftWeights(params)
    if not head.own_embedding:
        target = draft.target
        if not has_weights(target.directory):
            raise CheckpointError(
                f"{PARAM}: model: the head has no embeddings of its own, and {target.directory} has no weights to take them from",
                param=PARAM,
            )
        table = load_parameter(target.directory, target.config, mesh, dtype, ("embedding", "table"))
        params["embedding"] = {"table": table}
    places = _targets(draft.directory, head.vocab_size, model.config.vocab_size)
    return DraftWeights(params, jax.device_put(places, NamedSharding(mesh, PartitionSpec())))


def _group(target: DecoderConfig) -> int:
    """The first of the target's groups of layers that see everything."""
    group = group_layers(target.cache_windows).unbounded
    if group is None:
        raise ConfigError(
            f"{PARAM}: model: every layer of the target has a sliding window, so that no page keeps what a draft must see",
            param=PARAM,
        )
    return group


def _hf_config(directory: Path) -> dict[str, Any]:
    if not directory.is_dir():
        raise ConfigError(f"{PARAM}: model: no checkpoint directory at {str(directory)!r}", param=PARAM)
    return read_hf_config(directory)


def _stored_format(directory: Path, load_format: LoadFormat) -> LoadFormat:
    """Where a draft's weights come from: where the target's are dummies, or a program's, from its files nevertheless."""
    return "auto" if load_format == "dummy" and has_weights(directory) else load_format


def _targets(directory: Path, count: int, vocab_size: int) -> npt.NDArray[np.int32]:
    """int32[count]: which of the target's tokens a head's tokens are. Its file has how far each is behind its own number."""
    with open_checkpoint(directory, "safetensors") as checkpoint:
        if "d2t" not in checkpoint.shapes:
            if count == vocab_size:
                return np.arange(count, dtype=np.int32)
            raise CheckpointError(
                f"{PARAM}: model: the head guesses {count} of the target's {vocab_size} tokens, and no tensor d2t says which",
                param=PARAM,
            )
        shape = checkpoint.shapes["d2t"]
        behind = checkpoint.read("d2t", whole(shape)).astype(np.int64)
    if shape != (count,):
        raise CheckpointError(f"{PARAM}: model: d2t is {list(shape)}, and the head has {count} tokens", param=PARAM)
    places = np.arange(count) + behind
    if places.min() < 0 or places.max() >= vocab_size or len(np.unique(places)) != count:
        raise CheckpointError(f"{PARAM}: model: d2t names tokens twice, or such as the target does not have", param=PARAM)
    return places.astype(np.int32)


def _require_same_tokens(directory: Path, target: Tokenizer | None) -> None:
    """A draft without a tokenizer of its own is taken at its word."""
    if target is None or not any((directory / name).is_file() for name in ("tokenizer.json", "tokenizer.model")):
        return
    own = load_tokenizer(directory)
    sizes = own.vocab_size, target.vocab_size
    different = [token for token in range(min(sizes)) if own.token_bytes(token) != target.token_bytes(token)]
    if different:
        token = different[0]
        raise CheckpointError(
            f"{PARAM}: model: token {token} is {own.token_bytes(token)!r} to the draft and {target.token_bytes(token)!r} to the "
            f"target, and {len(different) - 1} more differ: both must have one tokenizer",
            param=PARAM,
        )
