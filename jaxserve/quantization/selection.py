"""Which matrices of a checkpoint are rounded: those that the engine rounds, unless they do not fit or are to be kept."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from jaxserve.errors import ConfigError
from jaxserve.models.binding import rounded_products
from jaxserve.models.config import DecoderConfig
from jaxserve.models.registry import weight_rules
from jaxserve.models.rules import Path, Source, WeightRule
from jaxserve.quantization.recipes import Recipe
from jaxserve.weights.checkpoint import Checkpoint

_WEIGHT = ".weight"
_EXPRESSION = "re:"
_HEAD = "lm_head"


@dataclass(frozen=True, slots=True)
class Selection:
    """What is rounded, in the order of layers.

    Attributes:
        matrices: of each tensor, by name, the path of what is rounded or kept together: a parameter, or the MLP with experts.
        kept: why matrices that could be rounded are not, by module.
        ignored: modules that are not rounded, all of them.
    """

    matrices: Mapping[str, Path]
    kept: Mapping[str, str]
    ignored: tuple[str, ...]

    def units(self) -> dict[Path, list[str]]:
        """The tensors that are rounded together, by path."""
        units: dict[Path, list[str]] = {}
        for name, path in self.matrices.items():
            units.setdefault(path, []).append(name)
        return units

    def without(self, units: Collection[Path], why: str) -> Selection:
        """The same, but for some that are kept."""
        modules = [_module(name) for name, path in self.matrices.items() if path in units]
        rest = {name: path for name, path in self.matrices.items() if path not in units}
        return Selection(rest, {**self.kept, **dict.fromkeys(modules, why)}, (*self.ignored, *modules))


def select(config: DecoderConfig, checkpoint: Checkpoint, recipe: Recipe, keep: Sequence[str]) -> Selection:
    """Choose what to round: projections of attention and MLPs, shared and routed experts.

    Matrices that one parameter is made of (queries, keys and values; gate and up; a layer's experts) are rounded or kept
    together, as engines that multiply by them at once need it.

    Args:
        config: the decoder.
        checkpoint: has its tensors.
        recipe: how they are to be rounded.
        keep: patterns of modules to keep, as a shell has them, or regular expressions after "re:".

    Raises ConfigError: a pattern that no module matches, or nothing is left to round.
    """
    tests = [_Pattern(pattern) for pattern in keep]
    matrices: dict[str, Path] = {}
    kept: dict[str, str] = {}
    for unit, rules in _units(config).items():
        modules = [_module(source.name) for rule in rules for source in rule.sources]
        named = [test.text for test in tests if any(test.matches(module) for module in modules)]
        misfits = (_misfit(rule, checkpoint, recipe) for rule in rules)
        why = f"matches {named[0]}" if named else next((misfit for misfit in misfits if misfit), None)
        if why is None:
            matrices |= {source.name: unit for rule in rules for source in rule.sources}
        else:
            kept |= dict.fromkeys(modules, why)
    others = [_module(name) for name in _linear(checkpoint) if name not in matrices]
    for test in tests:
        if not test.used and not any(test.matches(module) for module in others):
            raise ConfigError(f"keep: no module of the model matches {test.text!r}", param="keep")
    if not matrices:
        raise ConfigError(f"nothing is left to quantize: {_reasons(kept)}", param="keep" if keep else "scheme")
    return Selection(matrices, kept, tuple(dict.fromkeys((*others, _HEAD))))


def _units(config: DecoderConfig) -> dict[Path, list[WeightRule]]:
    """The rules of parameters that can be rounded, in the order of layers: those together that are rounded together."""
    products = rounded_products(config)
    found: dict[Path, list[WeightRule]] = {}
    for rule in weight_rules(config):
        if rule.path[0] != "layers":
            continue
        routed = rule.stack is not None and rule.path[2] == "mlp" and _separate(rule.sources[0])
        if routed or rule.path in products:
            found.setdefault(rule.path[:-1] if routed else rule.path, []).append(rule)
    return found


def _separate(source: Source) -> bool:
    """Whether each expert has a Linear of its own."""
    return source.expert is None and len(source.shape) == 2


def _misfit(rule: WeightRule, checkpoint: Checkpoint, recipe: Recipe) -> str | None:
    member = rule if rule.stack is None else rule.member(0)
    shapes = [checkpoint.shapes[name] for name in dict.fromkeys(source.name for source in member.sources)]
    return recipe.misfit(tuple((outputs, inputs) for outputs, inputs in shapes))


def _linear(checkpoint: Checkpoint) -> Iterator[str]:
    """Weights that a Linear may have."""
    for name, shape in checkpoint.shapes.items():
        if len(shape) == 2 and name.endswith(_WEIGHT) and "embed" not in name:
            yield name


def _module(name: str) -> str:
    return name.removesuffix(_WEIGHT)


def _reasons(kept: Mapping[str, str]) -> str:
    return "; ".join(dict.fromkeys(kept.values())) or "the model has no such matrices"


class _Pattern:
    """A pattern, and whether it matched anything."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.used = False
        self._expression: re.Pattern[str] | None = None
        if text.startswith(_EXPRESSION):
            try:
                self._expression = re.compile(text.removeprefix(_EXPRESSION))
            except re.error as error:
                raise ConfigError(f"keep: {text!r} is no regular expression: {error}", param="keep") from error

    def matches(self, module: str) -> bool:
        found = fnmatchcase(module, self.text) if self._expression is None else bool(self._expression.match(module))
        self.used |= found
        return found
