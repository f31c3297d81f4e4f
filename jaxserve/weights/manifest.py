"""The manifest of a model directory: checksums of every tensor, of the tokenizer, and of the files that say how prompts look."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec
import numpy as np

from jaxserve.errors import CheckpointError
from jaxserve.models.checkpoint import read_json_object
from jaxserve.weights.checkpoint import Block

MANIFEST = "jaxserve-manifest.json"
_VERSION = 3
_OLDEST = 1  # had no prompt files; 2 had no quality
_PROMPT_FILES = (
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "chat_template.json",
    "additional_chat_templates/*.jinja",
)
_SHOWN = 12  # digits of a checksum in a complaint
_LISTED = 8

logger = logging.getLogger(__name__)


class TensorSum(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a tensor must be.

    Attributes:
        dtype: as numpy and ml_dtypes call it.
        sha256: of its elements in C order, little-endian.
    """

    dtype: str
    shape: tuple[int, ...]
    sha256: str

    @classmethod
    def of(cls, tensor: Block) -> TensorSum:
        return cls(tensor.dtype.name, tensor.shape, checksum(tensor))


class ProductError(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a matrix's products differ from those of the original.

    Attributes:
        largest: difference of any number.
        relative: the differences' length over the products'.
        cosine: of the angle between both.
    """

    largest: float
    relative: float
    cosine: float


class Quality(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What quantizing cost, as it was measured.

    Attributes:
        scheme: that it was quantized by.
        calibration: SHA-256 of the text.
        tokens: of it that were predicted, none of which was fitted by.
        perplexity_before: of the original.
        perplexity_after: of this checkpoint.
        increase_percent: from the one to the other.
        kept: modules that were left as they are.
        errors: of each parameter that was rounded; of routed experts those of the weights themselves.
    """

    scheme: str
    calibration: str
    tokens: int
    perplexity_before: float
    perplexity_after: float
    increase_percent: float
    kept: tuple[str, ...]
    errors: dict[str, ProductError]


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a model directory must hold.

    Attributes:
        version: of this file's form.
        tokenizer: from `tokenizer_fingerprint`; None if there was none.
        tensors: by the names they are stored under.
        prompt_files: from `prompt_files`; None in a manifest of version 1.
        quality: of a quantized checkpoint, if it was measured.
    """

    version: int
    tokenizer: str | None
    tensors: dict[str, TensorSum]
    prompt_files: dict[str, str] | None = None
    quality: Quality | None = None

    @classmethod
    def of(
        cls,
        tokenizer: str | None,
        tensors: dict[str, TensorSum],
        prompt_files: dict[str, str],
        quality: Quality | None = None,
    ) -> Manifest:
        return cls(version=_VERSION, tokenizer=tokenizer, tensors=tensors, prompt_files=prompt_files, quality=quality)

    def check_names(self, names: Iterable[str]) -> None:
        """Raise CheckpointError unless the checkpoint has exactly the manifest's tensors."""
        here = set(names)
        gone, new = sorted(self.tensors.keys() - here), sorted(here - self.tensors.keys())
        if gone or new:
            parts = [f"{kind} {_listed(some)}" for kind, some in (("lacks", gone), ("has besides", new)) if some]
            raise CheckpointError(f"the checkpoint is not what {MANIFEST} says: it {' and '.join(parts)}", param="verify_weights")

    def check(self, name: str, tensor: Block) -> None:
        """Raise CheckpointError unless a tensor is the manifest's."""
        expected, found = self.tensors[name], TensorSum.of(tensor)
        if found != expected:
            raise CheckpointError(
                f"{name} is not what {MANIFEST} says: {_told(found)}, expected {_told(expected)}; "
                "the file is damaged or was changed",
                param="verify_weights",
            )


def read_manifest(directory: Path) -> Manifest | None:
    """The manifest of a model directory; None if it has none. Raises CheckpointError for one that cannot be read."""
    path = directory / MANIFEST
    if not path.is_file():
        return None
    try:
        manifest = msgspec.json.decode(path.read_bytes(), type=Manifest, strict=True)
    except (OSError, msgspec.DecodeError, RecursionError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}", param="model") from error
    if not _OLDEST <= manifest.version <= _VERSION:
        raise CheckpointError(
            f"{path} is of version {manifest.version}; this jaxserve reads {_OLDEST} to {_VERSION}", param="model"
        )
    return manifest


def measured_quality(directory: Path, tensors: dict[str, TensorSum]) -> Quality | None:
    """What the manifest of a model directory says of these tensors; None if it says nothing, or is of others."""
    try:
        manifest = read_manifest(directory)
    except CheckpointError:  # whoever asks is about to write another
        return None
    return manifest.quality if manifest is not None and manifest.tensors == tensors else None


def write_manifest(directory: Path, manifest: Manifest) -> None:
    (directory / MANIFEST).write_bytes(msgspec.json.format(msgspec.json.encode(manifest), indent=1) + b"\n")


def require_manifest(directory: Path) -> Manifest:
    """The manifest of a model directory. Raises CheckpointError if it has none."""
    manifest = read_manifest(directory)
    if manifest is None:
        raise CheckpointError(
            f"{directory} has no {MANIFEST} to verify weights against; "
            f"`python -m jaxserve.convert {directory} --manifest` writes one from what is there now",
            param="verify_weights",
        )
    return manifest


def tokenizer_fingerprint(path: Path) -> str | None:
    """SHA-256 of what gives tokens their ids, wherever it lies: vocabulary, and tokens added to it. None if there is none.

    Chat templates and names of special tokens are no part of it.

    Args:
        path: a model directory, or the tokenizer.json or tokenizer.model of one.
    """
    directory = path if path.is_dir() else path.parent
    candidates = [path] if path.is_file() else [path / "tokenizer.json", path / "tokenizer.model"]
    vocabulary = next((file for file in candidates if file.is_file()), None)
    if vocabulary is None:
        return None
    state = hashlib.sha256(vocabulary.suffix.encode())
    state.update(hashlib.sha256(vocabulary.read_bytes()).digest())
    state.update(json.dumps(_added_tokens(directory), sort_keys=True).encode())
    return state.hexdigest()


def check_tokenizer(directory: Path, tokenizer: Path) -> None:
    """Raise CheckpointError if the manifest of a model directory names another tokenizer than the given one (see above)."""
    manifest = read_manifest(directory)
    if manifest is None or manifest.tokenizer is None:
        return
    found = tokenizer_fingerprint(tokenizer)
    if found is not None and found != manifest.tokenizer:
        raise CheckpointError(
            f"the tokenizer at {tokenizer} ({found[:_SHOWN]}) is not the one that {directory / MANIFEST} names "
            f"({manifest.tokenizer[:_SHOWN]}): its tokens may have other ids than the model was trained with; "
            f"`python -m jaxserve.convert {directory} --manifest` accepts what lies in the directory",
            param="tokenizer",
        )


def prompt_files(directory: Path) -> dict[str, str]:
    """SHA-256, by name, of the files beside a tokenizer that say how prompts look: chat templates, special tokens."""
    found = sorted(path for pattern in _PROMPT_FILES for path in directory.glob(pattern) if path.is_file())
    return {path.relative_to(directory).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in found}


def check_prompt_files(directory: Path, tokenizer: Path) -> None:
    """Raise CheckpointError unless the prompt files beside the tokenizer are those that the manifest of a directory names."""
    manifest = require_manifest(directory)
    if manifest.prompt_files is None:
        logger.warning(
            "%s is of version %d and does not cover the chat template; "
            "`python -m jaxserve.convert %s --manifest` writes one that does",
            directory / MANIFEST,
            manifest.version,
            directory,
        )
        return
    folder = tokenizer if tokenizer.is_dir() else tokenizer.parent
    found, expected = prompt_files(folder), manifest.prompt_files
    for name in sorted(found.keys() | expected.keys()):
        if found.get(name) != expected.get(name):
            told = [sums[name][:_SHOWN] if name in sums else "no such file" for sums in (found, expected)]
            raise CheckpointError(
                f"{folder / name} is not what {MANIFEST} says: {told[0]}, expected {told[1]}; the file is damaged or was changed",
                param="verify_weights",
            )


def _added_tokens(directory: Path) -> list[Mapping[str, object]]:
    """Tokens added to the vocabulary, as the two files that may list them say."""
    old, new = directory / "added_tokens.json", directory / "tokenizer_config.json"
    return [
        read_json_object(old) if old.is_file() else {},
        (read_json_object(new).get("added_tokens_decoder") if new.is_file() else None) or {},
    ]


def _told(sum_: TensorSum) -> str:
    return f"{sum_.dtype} {list(sum_.shape)} {sum_.sha256[:_SHOWN]}"


def _listed(names: list[str]) -> str:
    return ", ".join(names[:_LISTED]) + (f" and {len(names) - _LISTED} more" if len(names) > _LISTED else "")


def checksum(tensor: Block) -> str:
    """SHA-256 of an array's elements in C order."""
    return hashlib.sha256(np.ascontiguousarray(tensor).reshape(-1).view(np.uint8).data).hexdigest()
