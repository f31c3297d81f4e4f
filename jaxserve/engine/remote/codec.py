"""How messages between processes look as bytes: msgpack of their structs, with errors of their own class."""

from __future__ import annotations

from typing import Any

import msgspec

from jaxserve.errors import ErrorCode, InternalError, JaxserveError, brief


class _SentError(msgspec.Struct, frozen=True, array_like=True):
    code: ErrorCode
    message: str
    param: str | None
    retry_after: float | None


def presentable(error: BaseException) -> JaxserveError:
    """The error as another process may be told it: what is no JaxserveError becomes an InternalError."""
    return error if isinstance(error, JaxserveError) else InternalError(f"the engine failed: {brief(error)}")


def decoder(kind: Any) -> msgspec.msgpack.Decoder[Any]:
    """Of messages of a type, which may hold JaxserveErrors. It raises msgspec.DecodeError for what is none."""
    return msgspec.msgpack.Decoder(kind, dec_hook=_known)


def _plain(value: Any) -> _SentError:
    if isinstance(value, JaxserveError):
        return _SentError(value.code, value.message, value.param, value.retry_after)
    raise NotImplementedError(f"{type(value).__name__} cannot be sent")


def _known(kind: type, value: Any) -> JaxserveError:
    if not issubclass(kind, JaxserveError):
        raise NotImplementedError(f"{kind.__name__} cannot be received")
    sent = msgspec.convert(value, _SentError)
    return _class_of(sent.code)(sent.message, param=sent.param, retry_after=sent.retry_after)


def _class_of(code: ErrorCode) -> type[JaxserveError]:
    if code is InternalError.code:
        return InternalError
    found = [JaxserveError]
    for kind in found:
        if kind.code is code and kind is not JaxserveError:
            return kind
        found += kind.__subclasses__()
    raise ValueError(f"no error has the code {code}")


_ENCODER = msgspec.msgpack.Encoder(enc_hook=_plain)


def encode(message: Any) -> bytes:
    return _ENCODER.encode(message)
