"""Whether a request asks for what this server does not have: one rule and one wording for every surface."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from types import MappingProxyType
from typing import Any

from jaxserve.errors import InvalidRequestError
from server.unsupported.notes import NOTES
from server.unsupported.table import FIELDS, Kind, Unsupported

_ORDER = MappingProxyType({name: place for place, name in enumerate(FIELDS)})
_PARENTS = frozenset(name.partition(".")[0] for name in FIELDS if "." in name)  # whose members are looked at too
_NONE: Mapping[str, Unsupported] = MappingProxyType({})


def reason(name: str, field: Unsupported) -> str:
    """What an error says of a field after its name."""
    dropping = f" (--ignore-unsupported {name} drops it)" if name in FIELDS else ""
    return f"is not supported by this server yet: {field.instead}{dropping}"


def unsupported(name: str, path: str) -> InvalidRequestError:
    return InvalidRequestError(f"{path} {reason(name, FIELDS[name])}", param=path)


def pass_over(name: str, value: Any, path: str) -> None:
    """Pass over a field of the table that asks for nothing; note one whose wish is warned of or dropped.

    Raises InvalidRequestError, in the name `path`, where it changes what the answer may be.
    """
    field, notes = FIELDS[name], NOTES.get()
    if field.kind is Kind.NO_EFFECT or field.asks_nothing(value):
        return
    if field.kind is Kind.WARNED:
        if notes is not None:
            notes.warned(name)
    elif notes is None or not notes.lenience.drops(name):
        raise unsupported(name, path)
    else:
        notes.dropped(name)


def drop(name: str, why: str) -> None:
    """Drop a field that this server has and the served model cannot do, where the operator allows that.

    Raises InvalidRequestError where not.
    """
    notes = NOTES.get()
    known = name if name in FIELDS else name.partition(".")[0]  # else a member of what is dropped as a whole
    if notes is None or not notes.lenience.drops(known):
        dropping = f" (--ignore-unsupported {known} drops it)" if known in FIELDS else ""
        raise InvalidRequestError(f"{name} is not supported with this model: {why}{dropping}", param=name)
    notes.dropped(known)


def checked(
    body: Mapping[str, Any],
    declared: Collection[str],
    *,
    own: Mapping[str, Unsupported] = _NONE,
    of_prompt: bool = False,
    prefix: str = "",
) -> dict[str, Any]:
    """The body without what is passed over.

    Args:
        declared: names that the surface has itself.
        own: fields that it does not have, and that mean another thing elsewhere.
        of_prompt: whether only fields that change the prompt matter.
        prefix: what goes before a name to make it what the client calls it.

    Raises InvalidRequestError naming the first field, in the order of the table, that asks for what is not there.
    """
    kept = dict(body)
    for name, field in own.items():
        if not field.asks_nothing(body.get(name)):
            raise InvalidRequestError(f"{name} {reason(name, field)}", param=name)
    names = [name for name in _names(body) if name in FIELDS and name not in declared]
    for name in sorted(names, key=_ORDER.__getitem__):
        parent, _, member = name.partition(".")
        if member and parent not in kept:  # passed over as a whole
            continue
        value = body[parent][member] if member else body[name]
        if of_prompt and not FIELDS[name].of_prompt:
            continue
        if name == "best_of" and value == (1 if body.get("n") is None else body["n"]):
            value = None
        pass_over(name, value, prefix + name)
        if member:
            kept[parent] = {key: item for key, item in kept[parent].items() if key != member}
        else:
            del kept[name]
    return kept


def _names(body: Mapping[str, Any]) -> Iterator[str]:
    for name, value in body.items():
        if "." not in name:  # a member is looked for where it belongs
            yield name
        if name in _PARENTS and isinstance(value, Mapping):
            yield from (f"{name}.{member}" for member in value if isinstance(member, str))
