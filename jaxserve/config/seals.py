"""Seals: lines of a text file that say what follows them, so that a file which was cut off is not taken for a whole one.

    # sealed: 2 keys, 310 bytes, sha256 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08

A file cut off at the end of a line is mostly still valid TOML: a key whose last lines are gone has lost its limits. Each seal
stands for so many bytes after its line, and other text, sealed or not, may follow: sealed parts can be appended.
"""

from __future__ import annotations

import hashlib
import re

_PREFIX = b"# sealed:"
_LINE = re.compile(rb"# sealed: (\d{1,9}) keys?, (\d{1,12}) bytes, sha256 ([0-9a-f]{64})\r?\n")


def sealed(text: str, keys: int) -> str:
    """The text, which holds so many keys, below its seal."""
    content = text.encode()
    digest = hashlib.sha256(content).hexdigest()
    return f"# sealed: {keys} key{'s' * (keys != 1)}, {len(content)} bytes, sha256 {digest}\n{text}"


def unsealed(content: bytes) -> bytes:
    """The content without lines of seals, whether they are right or not."""
    return b"".join(line for line in content.splitlines(keepends=True) if not line.startswith(_PREFIX))


def check_seals(content: bytes) -> int:
    """How many keys are sealed. Raises ValueError for a seal that does not fit what follows it."""
    keys = position = 0
    while position < len(content):
        line_end = content.find(b"\n", position) + 1 or len(content)
        line = content[position:line_end]
        position = line_end
        if not line.startswith(_PREFIX):
            continue
        seal = _LINE.fullmatch(line)
        number = content.count(b"\n", 0, line_end)
        if seal is None:
            raise ValueError(f"line {number} is no whole seal: the file was cut off or changed")
        part = content[position : position + int(seal[2])]
        if len(part) < int(seal[2]):
            raise ValueError(
                f"{len(part)} bytes follow the seal in line {number}, which says {int(seal[2])}: the file was cut off"
            )
        if hashlib.sha256(part).hexdigest().encode() != seal[3]:
            raise ValueError(f"what follows the seal in line {number} is not what was sealed: the file was cut off or changed")
        keys += int(seal[1])
        position += len(part)
    return keys
