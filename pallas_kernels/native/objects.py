"""Checks that code compiled for an instruction set can run only when a kernel of it is called.

Two things break that rule. A dynamic initializer runs when the library is loaded, whatever the CPU is. And the linker keeps one
copy of a weak or unique symbol (inline functions and template instances, also of `std` and `xla`) for the whole library.
It may be the copy with AVX-512 instructions, which code for every CPU then calls.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_ELF64_LITTLE = b"\x7fELF\x02\x01"
_SYMBOL_TABLE, _UNDEFINED = 2, 0
_SHARED_BINDINGS = {2: "weak", 10: "unique"}
_INITIALIZERS = (".init_array", ".preinit_array", ".ctors", ".init")


class _Section(NamedTuple):
    name: str
    kind: int
    body: bytes
    link: int
    """For a symbol table: the index of the section with its names."""


def early_code(path: Path) -> list[str]:
    """List the initializer sections and the weak or unique symbols that an object file defines, as phrases.

    Files of other formats than 64-bit little-endian ELF are not examined: the list is empty.
    """
    data = path.read_bytes()
    if not data.startswith(_ELF64_LITTLE):
        return []
    sections = _sections(data)
    found = [f"section {section.name}" for section in sections if _initializes(section.name)]
    for table in sections:
        if table.kind == _SYMBOL_TABLE:
            found += _shared_symbols(table.body, sections[table.link].body)
    return found


def _initializes(name: str) -> bool:
    return any(name == section or name.startswith(f"{section}.") for section in _INITIALIZERS)


def _sections(data: bytes) -> list[_Section]:
    header = _HEADER.unpack_from(data)
    offset, size, count, names_index = header[6], header[11], header[12], header[13]
    raw = [_SECTION.unpack_from(data, offset)]
    if count == 0:  # more sections than the field can hold: the first section has the counts
        count = raw[0][5]
    if names_index == 0xFFFF:
        names_index = raw[0][6]
    raw = [_SECTION.unpack_from(data, offset + index * size) for index in range(count)]
    bodies = [data[fields[4] : fields[4] + fields[5]] for fields in raw]
    return [
        _Section(_text(bodies[names_index], fields[0]), fields[1], body, fields[6])
        for fields, body in zip(raw, bodies, strict=True)
    ]


def _shared_symbols(table: bytes, names: bytes) -> Iterator[str]:
    for name, info, _, section, _, _ in _SYMBOL.iter_unpack(table):
        if section != _UNDEFINED and (binding := _SHARED_BINDINGS.get(info >> 4)):
            yield f"{binding} symbol {_text(names, name)}"


def _text(names: bytes, start: int) -> str:
    return names[start : names.index(b"\0", start)].decode(errors="replace")
