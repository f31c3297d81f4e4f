"""Crash dumps say what engine they are from."""

from dataclasses import replace

import jax

import jaxserve
from jaxserve.config.fields import EngineConfig
from jaxserve.engine.build import crash_dumper
from jaxserve.executor.base import Capabilities
from jaxserve.record.dump import read_dump

LIMITS = Capabilities(4, 16, 64, 20, 4)


def test_the_header_holds_every_setting(tmp_path):
    config = EngineConfig.from_settings({"dump_dir": str(tmp_path), "dtype": "float32", "max_waiting": 7})
    dumper = crash_dumper(config, "served", "f00d", LIMITS)
    assert dumper is not None
    path = dumper.dump(RuntimeError("gone"))
    assert path is not None
    assert path.parent == tmp_path
    header = read_dump(path).header
    assert (header.jaxserve, header.jax) == (jaxserve.__version__, jax.__version__)
    assert (header.model, header.fingerprint, header.capabilities) == ("served", "f00d", LIMITS)
    assert EngineConfig.from_settings(header.settings) == config


def test_the_ring_has_the_steps_asked_for():
    config = EngineConfig.from_settings({"record_steps": 3})
    dumper = crash_dumper(config, "served", "f00d", LIMITS)
    assert dumper is not None
    assert dumper.ring.capacity == 3


def test_none_if_no_steps_are_wanted():
    config = EngineConfig.from_settings({"record_steps": 0})
    assert crash_dumper(config, "served", "f00d", LIMITS) is None
    assert crash_dumper(replace(config, record=EngineConfig().record), "served", "f00d", LIMITS) is not None
