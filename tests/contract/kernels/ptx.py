"""What Mosaic GPU prints of the kernels that it compiles, with MOSAIC_GPU_DUMP_PTX and MOSAIC_GPU_DUMP_PTXAS."""

from __future__ import annotations

import re
from typing import NamedTuple


class Usage(NamedTuple):
    """What ptxas says of a kernel, of a thread: registers, and bytes that it spills."""

    registers: int
    spilled: int


def kernel(text: str, name: str) -> str:
    """Find the PTX of a kernel by the beginning of its name."""
    _, _, body = text.partition(f".entry {name}")
    assert body
    return body.partition("func_end")[0]


def loop(text: str, instruction: str) -> str:
    """The innermost loop with an instruction: from a label to a branch back to it."""
    lines = [line.strip() for line in text.splitlines()]
    labels = {line.removesuffix(":"): number for number, line in enumerate(lines) if re.fullmatch(r"\$L\w+:", line)}
    found = []
    for end, line in enumerate(lines):
        target = re.search(r"\bbra(?:\.uni)?\s+(\$L\w+);", line)
        start = None if target is None else labels.get(target[1])
        if start is not None and start < end:
            body = "\n".join(lines[start : end + 1])
            if instruction in body:
                found.append(body)
    return min(found, key=len)


def usage(text: str) -> dict[str, Usage]:
    """Find what ptxas says of each kernel."""
    pattern = r"properties for (\w+)_mosaic_gpu_kernel.*?(\d+) bytes spill stores, (\d+) bytes spill loads.*?Used (\d+) registers"
    found = re.findall(pattern, text, re.DOTALL)
    assert found
    return {name: Usage(int(registers), int(stores) + int(loads)) for name, stores, loads, registers in found}
