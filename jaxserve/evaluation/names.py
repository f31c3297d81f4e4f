"""Short names of several results, so that a table and a plot can tell them apart."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from pathlib import PurePath

from jaxserve.evaluation.result import Result


def labels(results: Sequence[Result]) -> list[str]:
    """The models' names; where some are the same, with as many directories of their paths before them as that takes."""
    names = [result.name for result in results]
    paths = [PurePath(str(result.header["model"]["path"])).parts for result in results]
    for length in range(1, max(map(len, paths)) + 1):
        if len(set(names)) == len(names):
            return names
        twice = {name for name in names if names.count(name) > 1}
        names = ["/".join(path[-length:]) if name in twice else name for name, path in zip(names, paths, strict=True)]
    return [name if names.count(name) == 1 else f"{name} ({place})" for place, name in enumerate(names, 1)]


def steps(names: Sequence[str]) -> list[int] | None:
    """The numbers that the names end in, as checkpoints of a training run do; None unless they only grow."""
    found = [re.search(r"(\d+)\D*$", name) for name in names]
    numbers = [int(match[1]) for match in found if match is not None]
    growing = all(first < second for first, second in pairwise(numbers))
    return numbers if len(numbers) == len(names) > 1 and growing else None
