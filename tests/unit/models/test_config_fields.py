"""Every field that transformers writes into a config.json counts: it changes the decoder, or it is refused, or it is inert."""

import json
from typing import Any

import pytest

from jaxserve.errors import CheckpointError, UnsupportedModelError
from jaxserve.models.fields import NEUTRAL_VALUES
from jaxserve.models.registry import decoder_config
from jaxserve.models.text_part import text_part
from tests.golden.cases import CASES
from tests.golden.reading import DATA

# Fields that change nothing that a decoder computes.
TRAINING = {
    "attention_dropout",
    "embd_pdrop",
    "resid_pdrop",
    "residual_dropout",
    "initializer_range",
    "output_router_logits",
    "router_aux_loss_coef",
    "router_jitter_noise",
}
OTHERWISE_INERT = {"transformers_version", "use_cache", "bos_token_id", "pad_token_id"}
COPIES = {"_sliding_window_pattern"}  # of a field that is read, or of what `layer_types` says in every file that has it
SLICED = {"pretraining_tp", "mamba_chunk_size"}  # the same product or recurrence, cut in slices
INERT = TRAINING | OTHERWISE_INERT | COPIES | SLICED
INERT_OF = {
    "nemotron_h": {
        *("hidden_dropout", "rescale_prenorm_residual", "time_step_min", "time_step_max", "time_step_floor"),  # training's
        *("residual_in_fp32", "mamba_ssm_cache_dtype"),  # of sums and states, which are in float32
        *("num_nextn_predict_layers", "mtp_layers_block_type"),  # of modules whose tensors are passed over
        *("chunk_size", "expand", "num_logits_to_keep", "use_mamba_kernels", "moe_shared_expert_overlap"),
    }
}


def read(config: dict[str, Any]) -> object:
    try:
        return decoder_config(config)
    except (UnsupportedModelError, CheckpointError) as error:
        return type(error)


def others(value: Any) -> list[Any]:
    """Other values of a field; what is null may become anything."""
    match value:
        case bool():
            return [not value]
        case int():
            return [value + 1, 2 * value + 2]
        case float():
            return [value * 1.5 + 0.25]
        case str():
            return [f"{value}x"]
        case list():
            return [value[1:], [*value, 1]]
        case dict():
            return [{**value, "another": 1}]
    return [3, 0.5, True, "x", ["x"]]


def ignored(config: dict[str, Any]) -> set[str]:
    """Fields that may say anything: the decoder stays the same."""
    decoder = read(config)
    return {key for key, value in config.items() if all(read({**config, key: other}) == decoder for other in others(value))}


def variants(config: dict[str, Any]) -> list[dict[str, Any]]:
    """The same as older files say it: without the lists that settle every layer, and with a window."""
    lists = ("layer_types", "no_rope_layers", "moe_layers", "mlp_layer_types")
    shorter = {key: value for key, value in config.items() if key not in lists}
    return [config, shorter, {**shorter, "use_sliding_window": True, "sliding_window": 8, "max_window_layers": 0}]


@pytest.mark.parametrize("model_type", sorted({case.model_type for case in CASES}))
def test_no_field_is_ignored(model_type: str) -> None:
    names = [case.name for case in CASES if case.model_type == model_type]
    configs = [text_part(json.loads((DATA / name / "config.json").read_text())) for name in names]
    fields = set().union(*configs)
    for config in (variant for each in configs for variant in variants(each)):
        if not isinstance(read(config), type):
            fields -= config.keys() - ignored(config)
    assert fields <= INERT | INERT_OF.get(model_type, set())


@pytest.mark.parametrize("name", NEUTRAL_VALUES)
def test_fields_of_code_that_is_not_here_are_refused(name: str) -> None:
    config = json.loads((DATA / "llama-tied" / "config.json").read_text())
    assert all(read({**config, name: value}) == read(config) for value in NEUTRAL_VALUES[name])
    with pytest.raises(UnsupportedModelError, match=f"does not implement: {name}='odd'"):
        decoder_config({**config, name: "odd"})


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("rope_scaling", 3, "rope_scaling must be an object, got 3"),
        ("max_window_layers", -1, "max_window_layers must be an integer, 0 or more"),
    ],
)
def test_fields_of_another_kind_are_named(field: str, value: object, words: str) -> None:
    config = json.loads((DATA / "qwen2-window" / "config.json").read_text())
    with pytest.raises(CheckpointError, match=words):
        decoder_config({**config, field: value, "layer_types": None})
