"""Command lines for vLLM as command lines for this server."""

from __future__ import annotations

from collections.abc import Sequence

from jaxserve.config.vllm_flags import BARE, VLLM_FLAGS, Theirs
from jaxserve.errors import ConfigError

_BY_NAME = {name: theirs for theirs in VLLM_FLAGS for name in theirs.names}
_TRUE = ("true", "1")  # what older releases took after flags that are bare now


def as_ours(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """The arguments with our flags for theirs, and a line for each flag that changes nothing.

    Underscores in flags are dashes, as they take them.

    Raises ConfigError, naming the flag and what to use instead, for one that asks for what is not here.
    """
    taken: list[str] = []
    notes: list[str] = []
    left = iter(enumerate(arguments, 1))
    for following, argument in left:
        if argument == "--":
            return [*taken, *arguments[following - 1 :]], notes
        flag, equals, value = argument.partition("=")
        flag = flag.replace("_", "-") if flag.startswith("--") else flag
        theirs = _BY_NAME.get(flag)
        if theirs is None:
            taken.append(flag + equals + value)
            continue
        if not equals and _takes_value(theirs, arguments[following : following + 1]):
            value = next(left)[1]
        if theirs.ours:
            taken.append(_renamed(theirs, value))
        elif value in theirs.same or (BARE in theirs.same and value.lower() in _TRUE):
            notes.append(f"{' '.join(filter(None, (flag, value)))} changes nothing: {theirs.why}")
        else:
            asked = " ".join((flag, value) if theirs.same and value else (flag,))  # not the value of a token
            raise ConfigError(f"{asked} of vLLM is not taken: {theirs.why}", param=flag.lstrip("-"))
    return taken, notes


def instead_of(setting: str) -> str | None:
    """What to say to somebody who gives their setting, named as a flag without dashes, where only ours are known; or None."""
    flag = "--" + setting.replace("_", "-")
    theirs = _BY_NAME.get(flag)
    if theirs is None or theirs.ours.rstrip("=") == flag:
        return None
    return f"it is {theirs.ours.strip('-=')} here" if theirs.ours else theirs.why


def _takes_value(theirs: Theirs, following: Sequence[str]) -> bool:
    if not following or following[0].startswith("-"):
        return False
    if theirs.ours:
        return theirs.ours.endswith("=")
    return BARE not in theirs.same or following[0].lower() in (*_TRUE, "false")


def _renamed(theirs: Theirs, value: str) -> str:
    """Our flag, and its value in our words; where it lacks one, or has one too many, the parser says so."""
    ours = theirs.ours.rstrip("=")
    return f"{ours}={theirs.values.get(value, value)}" if value else ours
