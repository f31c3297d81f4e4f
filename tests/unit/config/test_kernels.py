"""Implementations by layer, as a setting says them."""

import pytest

from jaxserve.config.fields import KernelConfig
from jaxserve.config.kernels import AUTOMATIC, Kernels, LayerRange, check_kernels, kernel_of, parse_kernels
from jaxserve.errors import ConfigError


@pytest.mark.parametrize(
    ("setting", "layers"),
    [
        ("auto", [None] * 6),
        ("xla", ["xla"] * 6),
        ("xla@0-3", ["xla"] * 4 + [None] * 2),
        ("xla@2", [None, None, "xla", None, None, None]),
        ("fast@4-5, xla@0-2", ["xla"] * 3 + [None] + ["fast"] * 2),
    ],
)
def test_layers_of_a_setting(setting, layers):
    ranges = parse_kernels(setting, "attention_kernel")
    check_kernels(ranges, ("fast", "xla"), 6, "attention_kernel")
    assert [kernel_of(ranges, layer) for layer in range(6)] == layers


@pytest.mark.parametrize("setting", ["", "xla@", "xla@-3", "xla@1-", "xla@1-2-3", "auto@1", "xla,,xla@3", "x y", "xla@a"])
def test_what_is_no_list_of_ranges(setting):
    with pytest.raises(ConfigError, match="kv_write_kernel must be 'auto', a name, or names with") as refused:
        KernelConfig(kv_write_kernel=setting)
    assert refused.value.param == "kv_write_kernel"


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("xla@3-1", "attention_kernel: layers 3-1 end before they begin"),
        ("xla@0-3,fast@3-5", "attention_kernel: layer 3 is in ranges of xla and fast"),
        ("xla,fast@3", "attention_kernel: layer 3 is in ranges of xla and fast"),
        ("fast@2,xla@2", "attention_kernel: layer 2 is in ranges of fast and xla"),
    ],
)
def test_ranges_that_contradict(setting, message):
    with pytest.raises(ConfigError, match=f"^{message}$"):
        KernelConfig(attention_kernel=setting)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("fsat@0-1", "attention_kernel: there is no 'fsat'; there is: fast, xla"),
        ("xla@0-6", "attention_kernel: the model has no layer 6, its last one is 5"),
        ("xla@6", "attention_kernel: the model has no layer 6, its last one is 5"),
    ],
)
def test_what_the_model_or_the_operation_does_not_have(setting, message):
    with pytest.raises(ConfigError, match=f"^{message}$"):
        check_kernels(parse_kernels(setting, "attention_kernel"), ("fast", "xla"), 6, "attention_kernel")


def test_each_operation_has_its_setting():
    assert KernelConfig().parse() == AUTOMATIC
    parsed = KernelConfig(attention_kernel="xla@1", kv_write_kernel="xla@2-3", grouped_matmul_kernel="xla").parse()
    ranges = {
        "attention": LayerRange("xla", 1, 1),
        "kv_write": LayerRange("xla", 2, 3),
        "grouped_matmul": LayerRange("xla", 0, None),
    }
    assert parsed == Kernels(**{name: (layers,) for name, layers in ranges.items()})
