"""The file of a recording: a magic line, the format's version, a checksum, and compressed MessagePack.

It holds prompts and outputs as token ids: only its owner may read it.
"""

from __future__ import annotations

import hashlib
import os
import struct
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from jaxserve.errors import ConfigError
from jaxserve.record.recording import Recording

VERSION = 4
_MAGIC = b"jaxserve record\n"
_DIGEST_SIZE = 16
_HEAD = struct.Struct(f"<{len(_MAGIC)}sI{_DIGEST_SIZE}s")  # magic, version, BLAKE2b of the rest
_MODE = 0o600
_LEVEL = 1  # page tables are mostly zeros: the quickest level makes them small


def write_dump(path: Path, recording: Recording) -> None:
    """Write a recording to a file that only its owner can read, in whole or not at all. Raises OSError."""
    body = zlib.compress(msgspec.msgpack.encode(recording, enc_hook=_encode), _LEVEL)
    partial = path.with_name(path.name + ".partial")
    partial.unlink(missing_ok=True)  # of a process that died here
    try:
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _MODE)
        with os.fdopen(descriptor, "wb") as file:
            file.write(_HEAD.pack(_MAGIC, VERSION, _digest(body)))
            file.write(body)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def read_dump(path: Path) -> Recording:
    """Read a recording; it equals the one written, array for array. Raises ConfigError naming the file and what is wrong."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    if not content.startswith(_MAGIC):
        raise ConfigError(f"{path}: not a recording of jaxserve")
    if len(content) < _HEAD.size:
        raise ConfigError(f"{path}: the recording is truncated")
    _, version, digest = _HEAD.unpack_from(content)
    if version != VERSION:
        raise ConfigError(f"{path}: a recording of format {version}, this jaxserve reads format {VERSION}")
    body = content[_HEAD.size :]
    if _digest(body) != digest:
        raise ConfigError(f"{path}: the recording is damaged or truncated")
    try:
        return msgspec.msgpack.decode(zlib.decompress(body), type=Recording, dec_hook=_decode)
    except (msgspec.MsgspecError, zlib.error) as error:
        raise ConfigError(f"{path}: not a recording that this jaxserve understands: {error}") from error


def _digest(body: bytes) -> bytes:
    return hashlib.blake2b(body, digest_size=_DIGEST_SIZE).digest()


def _encode(value: object) -> Any:
    """What MessagePack has no word for: an array is its dtype, its shape and its bytes."""
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, value.tobytes()
    if isinstance(value, Mapping):
        return dict(value)
    raise NotImplementedError(f"a recording cannot hold a {type(value).__name__}")


def _decode(kind: type[Any], value: Any) -> Any:
    """The array that `_encode` took apart; it cannot be written to. Arrays are the only unknown kind."""
    dtype, shape, content = value
    return np.ndarray(tuple(shape), np.dtype(dtype), content)
