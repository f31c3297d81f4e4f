"""What `--speculative-config` says: who guesses tokens, and how many at most. The fields are vLLM's."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Any, Literal, get_args

from jaxserve.config.check import check_types
from jaxserve.config.home import expand_paths
from jaxserve.errors import ConfigError

Method = Literal["ngram", "suffix", "draft_model", "eagle3", "mtp"]

_OWNERS: Mapping[str, Method] = MappingProxyType({"prompt_lookup_": "ngram", "suffix_decoding_": "suffix"})
_ALIASES: Mapping[str, Method] = MappingProxyType(dict.fromkeys(("deepseek_mtp", "qwen3_next_mtp", "qwen3_5_mtp"), "mtp"))
"""Other names of vLLM's."""
_METHODS = ", ".join(map(repr, (*get_args(Method), "none")))

MAX_SPECULATIVE_TOKENS = 32
PROMPT_LOOKUP = 5  # tokens of an n-gram where nobody says
SUFFIX_TOKENS = 8  # drafts at most where nobody says; vLLM's suffix takes the depth of its tree
MODULE_TOKENS = 1  # that a module for multi-token prediction was trained to guess: vLLM's default of "mtp"

_NOT_YET = ("eagle", "dflash", "dspark", "ngram_gpu", "custom_class", "extract_hidden_states")
_GONE = ("medusa", "mlp_speculator")
_OF_MODELS = (
    "draft_tensor_parallel_size", "quantization", "max_model_len", "revision", "code_revision", "parallel_drafting",
    "draft_sample_method", "use_heterogeneous_vocab", "disable_padded_drafter_batch", "draft_lm_head_quantization",
)  # fmt: skip
SYNTHETIC = ("rejection_sample_method", "synthetic_acceptance_length", "synthetic_acceptance_rates")
"""Of acceptance that is made up, as simulations have it."""
_DECIDED = ("num_speculative_tokens_per_batch_size", "enable_adaptive_verification", "disable_by_batch_size")


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculativeConfig:
    """How tokens are guessed.

    Attributes:
        method: "ngram" looks the last tokens up in the same text, "suffix" in earlier answers to the tenant, too; "draft_model"
            and "eagle3" run a smaller model, or a head on the target's hidden states, behind every step; so does "mtp" the module
            for multi-token prediction that the target's checkpoint has.
        model: the checkpoint of a draft model or head; of "mtp" empty for the target's own; empty for other methods.
        num_speculative_tokens: that a row of a step verifies at most; how many it does is decided at every step.
        prompt_lookup_min, prompt_lookup_max: tokens of an n-gram; the other one where one is given, 5 where none is.
        suffix_decoding_max_tree_depth: tokens of a passage that are compared.
        suffix_decoding_max_cached_requests: answers that are kept of a tenant; 0 for none.
        suffix_decoding_max_spec_factor: drafts for each token of a passage that agrees.
        suffix_decoding_min_token_prob: share of the passages that must go on with a token for it to be proposed.
    """

    method: Method
    model: str = ""
    num_speculative_tokens: int = 0
    prompt_lookup_min: int = 0
    prompt_lookup_max: int = 0
    suffix_decoding_max_tree_depth: int = 24
    suffix_decoding_max_cached_requests: int = 10_000
    suffix_decoding_max_spec_factor: float = 1.0
    suffix_decoding_min_token_prob: float = 0.1

    def __post_init__(self) -> None:
        check_types(self)
        expand_paths(self, "model")
        if self.runs_model != bool(self.model) and self.method != "mtp":
            raise _wrong("model", f"must {'' if self.runs_model else 'not '}be given with the method {self.method!r}")
        _between("num_speculative_tokens", self.num_speculative_tokens, 1, MAX_SPECULATIVE_TOKENS)
        _between("prompt_lookup_min", self.prompt_lookup_min, 1, 1024)
        _between("prompt_lookup_max", self.prompt_lookup_max, self.prompt_lookup_min, 1024)
        _between("suffix_decoding_max_tree_depth", self.suffix_decoding_max_tree_depth, 2, 1024)
        _between("suffix_decoding_max_cached_requests", self.suffix_decoding_max_cached_requests, 0, 10**9)
        _between("suffix_decoding_max_spec_factor", self.suffix_decoding_max_spec_factor, 0.0, 1e6)
        _between("suffix_decoding_min_token_prob", self.suffix_decoding_min_token_prob, 0.0, 1.0)

    @property
    def runs_model(self) -> bool:
        """Whether a model or head guesses on the target's devices."""
        return self.method in ("draft_model", "eagle3", "mtp")

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> SpeculativeConfig | None:
        """What a mapping of vLLM's fields says; None for the method "none". Raises ConfigError naming the field."""
        for name in given:
            _check_name(name)
        method = given.get("method", "draft_model" if "model" in given else "ngram" if "prompt_lookup_max" in given else None)
        if method is None:
            raise _wrong("method", f"must be given: {_METHODS}")
        if method == "none":
            return None
        method = _ALIASES.get(method, method) if isinstance(method, str) else method
        _check_method(method)
        values = {name: value for name, value in given.items() if value is not None and name != "method"}
        for name in values:
            owner = next((owner for prefix, owner in _OWNERS.items() if name.startswith(prefix)), method)
            if owner != method:
                raise _wrong(name, f"belongs to the method {owner!r}")
        if method == "suffix":
            values.setdefault("num_speculative_tokens", SUFFIX_TOKENS)
        elif method == "mtp":
            values.setdefault("num_speculative_tokens", MODULE_TOKENS)
        elif "num_speculative_tokens" not in values:
            raise _wrong("num_speculative_tokens", f"must be given with the method {method!r}")
        least, most = values.get("prompt_lookup_min"), values.get("prompt_lookup_max")
        values["prompt_lookup_min"] = PROMPT_LOOKUP if least is most is None else most if least is None else least
        values["prompt_lookup_max"] = values["prompt_lookup_min"] if most is None else most
        return cls(method=method, **values)


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculationConfig:
    """Tokens guessed before the model chooses them, and verified several in a step."""

    speculative_config: str | None = field(
        default=None,
        metadata={
            "help": "JSON object with vLLM's fields, such as"
            """ '{"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 4}'; no speculation by default"""
        },
    )

    def __post_init__(self) -> None:
        if isinstance(self.speculative_config, Mapping):
            object.__setattr__(self, "speculative_config", json.dumps(dict(self.speculative_config)))
        check_types(self)
        self.parse()

    def parse(self) -> SpeculativeConfig | None:
        """What is asked for; None for no speculation."""
        if self.speculative_config is None:
            return None
        return SpeculativeConfig.of(read_object(self.speculative_config))

    @property
    def max_drafts(self) -> int:
        """Tokens that a row may verify."""
        config = self.parse()
        return 0 if config is None else config.num_speculative_tokens


def read_object(text: str) -> dict[str, Any]:
    """The JSON object that a `--speculative-config` is. Raises ConfigError."""
    try:
        given = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"speculative_config: not JSON: {error}", param="speculative_config") from error
    if not isinstance(given, dict):
        raise ConfigError("speculative_config: must be a JSON object", param="speculative_config")
    return given


def _check_name(name: str) -> None:
    known = [item.name for item in fields(SpeculativeConfig)]
    if name in known:
        return
    if name in _OF_MODELS:
        raise _wrong(name, "is not taken: a draft has the target's devices, dtype and length")
    if name in SYNTHETIC:
        raise _wrong(name, "is for simulations alone: tokens that nobody chose are never sent")
    if name in _DECIDED:
        raise _wrong(name, "is not taken: what each step costs and what is accepted decide how many drafts there are")
    raise _wrong(name, f"is unknown; known are {', '.join(known)}")


def _check_method(method: Any) -> None:
    if method in get_args(Method):
        return
    if method in _GONE:
        raise _wrong("method", f"{method!r} is not served, nor is it by vLLM any more; there are {_METHODS}")
    if method in _NOT_YET or (isinstance(method, str) and method.endswith("_mtp")):
        raise _wrong("method", f"{method!r} is not there yet; there are {_METHODS}")
    raise _wrong("method", f"must be one of {_METHODS}, got {method!r}")


def _between(name: str, value: float, low: float, high: float) -> None:
    if not (math.isfinite(value) and low <= value <= high):
        raise _wrong(name, f"must be between {low} and {high}, got {value}")


def _wrong(name: str, what: str) -> ConfigError:
    return ConfigError(f"speculative_config: {name} {what}", param="speculative_config")
