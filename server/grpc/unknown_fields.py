"""Fields that clients know and this server does not."""

from __future__ import annotations

from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet

from jaxserve.errors import InvalidRequestError


def refuse_unknown(message: Message, path: str = "") -> None:
    """Raise InvalidRequestError if the message, or a part of it that is ours, holds a field of a later version.

    protobuf drops such fields in silence, but here they may ask for another output than the client would get.
    """
    for field in UnknownFieldSet(message):  # type: ignore[attr-defined]  # missing in the stubs
        name = f"{path}{field.field_number}"
        what = f"{name} of {message.DESCRIPTOR.full_name} is not supported by this server yet"
        raise InvalidRequestError(f"{what}: leave it out, or make the client from this server's jaxserve.v1", param=name)
    for descriptor, value in message.ListFields():
        kind = descriptor.message_type
        if kind is None or kind.file.package != message.DESCRIPTOR.file.package or kind.GetOptions().map_entry:
            continue
        for one in [value] if isinstance(value, Message) else value:
            refuse_unknown(one, f"{path}{descriptor.name}.")
