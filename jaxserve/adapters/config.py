"""adapter_config.json of PEFT: what an adapter says of itself, and what is not computed here."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from jaxserve.errors import CheckpointError
from jaxserve.models.checkpoint import read_json_object
from jaxserve.patterns import TimeBudget, compile_pattern

CONFIG = "adapter_config.json"
MAX_PATTERNS = 4096  # of one field
_PLAIN = re.compile(r"[\w.-]+", re.ASCII)
_TURNED_BEFORE = (0, 19)
_LARGEST_COUNT = 2**31 - 1
_LARGEST_NUMBER = 3.4e38  # what float32 holds

# What would change the result, and the values at which it does not.
_REFUSED: Mapping[str, tuple[Any, ...]] = MappingProxyType(
    {
        "use_dora": (False, None),
        "bias": ("none", None),
        "lora_bias": (False, None),
        "modules_to_save": (None, []),
        "trainable_token_indices": (None, [], {}),
        "alora_invocation_tokens": (None, []),
        "layer_replication": (None, []),
        "use_qalora": (False, None),
        "velora_config": (None,),
        "arrow_config": (None,),
        "use_bdlora": (False, None),
        "kasa_config": (None,),
        "monteclora_config": (None,),
    }
)
# All others (pissa, olora, corda, loftq) change the base's weights, and what is saved is of that base unless PEFT converted it.
_INITS = (None, True, False, "gaussian", "eva", "orthogonal")


class ModulePatterns:
    """Values by regular expressions for the end of a module's name: the first that matches counts."""

    def __init__(self, patterns: Sequence[tuple[Callable[[str], bool], float]]) -> None:
        self._patterns = patterns
        self._found: dict[str, float | None] = {}  # modules are looked up several times

    @classmethod
    def parse(cls, given: Mapping[str, Any], name: str, fits: Callable[[object], bool], budget: TimeBudget) -> ModulePatterns:
        """Of a field of the file. Raises CheckpointError."""
        value = given.get(name) or {}
        if not isinstance(value, dict) or not all(map(fits, value.values())):
            raise CheckpointError(f"{budget.where}: {name} must be an object from modules to numbers, got {value!r:.200}")
        if len(value) > MAX_PATTERNS:
            raise CheckpointError(f"{budget.where}: {name} has {len(value)} patterns, but may have {MAX_PATTERNS}")
        return cls([(_name_end(name, key, budget), number) for key, number in value.items()])

    def value_of(self, module: str) -> float | None:
        """None where no pattern matches. Raises CheckpointError if matching takes too long."""
        if module not in self._found:
            self._found[module] = next((value for matches, value in self._patterns if matches(module)), None)
        return self._found[module]


def _name_end(field: str, text: str, budget: TimeBudget) -> Callable[[str], bool]:
    """Whether a pattern matches the end of a module's name, as PEFT wraps it. Names, as most patterns are, need no compiling."""
    if not _PLAIN.fullmatch(text):
        return compile_pattern(field, text, budget, r"(.*\.)?({})$").match
    size = len(text)

    def ends(module: str) -> bool:
        begins = len(module) == size or (len(module) > size and module[-size - 1] == ".")
        return begins and all(mine in (".", its) for mine, its in zip(text, module[-size:], strict=True))

    return ends


@dataclass(frozen=True, slots=True)
class AdapterConfig:
    """A low-rank adapter as PEFT's LoraConfig describes it.

    Attributes:
        where: what it was read from, for errors.
        base_model: that it was trained on, as it says.
        rank, alpha: of every module that no pattern names otherwise.
        rank_pattern, alpha_pattern: values for modules whose name a pattern matches, as PEFT matches them.
        rank_stabilized: whether the scale is alpha / sqrt(r), not alpha / r (Kalajdzievski 2023).
        turned: whether parameters of experts that are [X, out, in] were taken for [X, in, out], as by PEFT before 0.19.
    """

    where: str
    base_model: str | None
    rank: int
    alpha: float
    rank_pattern: ModulePatterns
    alpha_pattern: ModulePatterns
    rank_stabilized: bool
    turned: bool

    @classmethod
    def read(cls, directory: Path) -> AdapterConfig:
        """Of an adapter's directory. Raises CheckpointError for one that is none, or needs what is not computed here."""
        path = directory / CONFIG
        if not path.is_file():
            raise CheckpointError(f"{directory} has no {CONFIG}: not an adapter as PEFT saves one")
        return cls.parse(read_json_object(path), str(path))

    @classmethod
    def given(cls, config: Mapping[str, Any]) -> AdapterConfig:
        """Of a dict of a program's, of which `r` and `lora_alpha` are needed. Raises as `read`."""
        return cls.parse({"peft_type": "LORA", **config}, "config of LoRA")

    @classmethod
    def parse(cls, given: Mapping[str, Any], where: str) -> AdapterConfig:
        """Of what such a file has. Raises as `read`."""
        if given.get("peft_type") != "LORA":
            raise CheckpointError(f"{where}: peft_type is {given.get('peft_type')!r}; supported is 'LORA'")
        for name, harmless in _REFUSED.items():
            if given.get(name) not in harmless:
                raise CheckpointError(f"{where}: {name}={given[name]!r} is not supported")
        if (init := given.get("init_lora_weights")) not in _INITS:
            raise CheckpointError(
                f"{where}: init_lora_weights={init!r:.40} is not supported: it changes the base's weights. Save the adapter with "
                "PEFT's path_initial_model_for_weight_conversion, or merge it into its base"
            )
        rank, alpha = given.get("r"), given.get("lora_alpha")
        if rank is None or not _is_count(rank):
            raise CheckpointError(f"{where}: r must be a whole number above 0, got {rank!r:.40}")
        if alpha is None or not _is_number(alpha):
            raise CheckpointError(f"{where}: lora_alpha must be a number, got {alpha!r:.40}")
        base, budget = given.get("base_model_name_or_path"), TimeBudget(where)
        return cls(
            where=where,
            base_model=base if isinstance(base, str) and base else None,
            rank=int(rank),
            alpha=float(alpha),
            rank_pattern=ModulePatterns.parse(given, "rank_pattern", _is_count, budget),
            alpha_pattern=ModulePatterns.parse(given, "alpha_pattern", _is_number, budget),
            rank_stabilized=bool(given.get("use_rslora")),
            turned=_is_before(given.get("peft_version"), _TURNED_BEFORE),
        )

    def rank_of(self, module: str) -> int:
        rank = self.rank_pattern.value_of(module)
        return self.rank if rank is None else int(rank)

    def scale_of(self, module: str) -> float:
        """What (x A) B of a module is multiplied by."""
        rank = self.rank_of(module)
        alpha = self.alpha_pattern.value_of(module)
        alpha = self.alpha if alpha is None else alpha
        return alpha / (math.sqrt(rank) if self.rank_stabilized else rank)


def _is_before(version: object, first: tuple[int, int]) -> bool:
    """Whether a version is older than one; what is none is not."""
    found = re.match(r"(\d+)\.(\d+)", version) if isinstance(version, str) else None
    return found is not None and (int(found[1]), int(found[2])) < first


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value <= _LARGEST_COUNT


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= _LARGEST_NUMBER
