"""The implementations that settings name reach the layers, or are refused before the weights are read."""

from dataclasses import replace

import pytest

from jaxserve.clock import RealClock
from jaxserve.config.fields import EngineConfig
from jaxserve.engine.build import build_engine
from jaxserve.errors import ConfigError
from pallas_kernels.ragged_paged_attention import api
from pallas_kernels.ragged_paged_attention.implementations import IMPLEMENTATIONS
from tests.support.engine import silent

XLA = next(entry for entry in IMPLEMENTATIONS if entry.name == "xla")


class NoWeights(Exception):
    """What reading weights would start with."""


def build(**settings):
    small = {"load_format": "dummy", "max_num_seqs": 2, "max_num_batched_tokens": 2}
    # Nothing is traced of a program that was kept.
    config = EngineConfig.from_settings({**small, "compilation_cache_dir": "none", **settings})
    return build_engine(config, strict_length=True, clock=RealClock(), progress=silent)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"attention_kernel": "abacus"}, "attention_kernel: there is no 'abacus'; there is: .*xla"),
        ({"attention_kernel": "xla@0-99"}, "attention_kernel: the model has no layer 99"),
        ({"kv_write_kernel": "abacus@0"}, "kv_write_kernel: there is no 'abacus'; there is: .*xla"),
        ({"grouped_matmul_kernel": "abacus"}, "grouped_matmul_kernel: there is no 'abacus'; there is: .*xla"),
    ],
)
def test_refused_before_the_weights_are_read(monkeypatch, settings, message):
    def refuse(*arguments, **options):
        raise NoWeights

    monkeypatch.setattr("jaxserve.engine.build.load_params", refuse)
    with pytest.raises(ConfigError, match=message):
        build(**settings)
    with pytest.raises(NoWeights):
        build(attention_kernel="xla", kv_write_kernel="xla@0")


def test_layers_use_what_they_were_given(monkeypatch):
    layers: dict[str, list[int]] = {"first": [], "other": []}

    def watched(name):
        def attend(*arguments, layer, **options):
            layers[name].append(layer)
            return XLA.function(*arguments, layer=layer, **options)

        return replace(XLA, name=name, function=attend)

    monkeypatch.setattr(api, "IMPLEMENTATIONS", (watched("first"), watched("other")))
    monkeypatch.setattr("pallas_kernels.ragged_paged_attention.NAMES", ("first", "other"))
    build(attention_kernel="other@1-2")
    assert set(layers["other"]) == {1, 2}
    assert 0 in layers["first"]
    assert not {1, 2} & set(layers["first"])


def test_an_implementation_that_cannot_is_a_setting_that_cannot(monkeypatch):
    unable = replace(XLA, supports=lambda problem: f"head_dim is {problem.head_dim}", limits="head_dim 1")
    monkeypatch.setattr(api, "IMPLEMENTATIONS", (unable,))
    with pytest.raises(ConfigError, match=r"cannot run in 'xla': head_dim is [0-9]+; it supports head_dim 1"):
        build(attention_kernel="xla")


@pytest.mark.parametrize("line", [None, "slow on gpu, for want of a kernel: attention"])
def test_what_is_slow_is_said_once_at_the_start(monkeypatch, caplog, line):
    asked = []

    def slow_kernels(config, mesh, options):
        asked.append((config.num_layers, mesh.devices.size, options.max_num_seqs))
        return line

    monkeypatch.setattr("jaxserve.engine.build.slow_kernels", slow_kernels)
    build()
    assert [of[1:] for of in asked] == [(1, 2)]
    assert [record.message for record in caplog.records if "slow on" in record.message] == ([line] if line else [])
