"""A fleet's file: what it comes to, and what is wrong with it, by name."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from jaxserve.config.fleet import FleetConfig
from jaxserve.config.fleet_file import read_fleet
from jaxserve.config.scaling import ScalingSettings
from jaxserve.errors import ConfigError
from jaxserve.types import ServiceClass

WHOLE = """
model: pico
max-model-len: 512
port: 9000
pools:
  interactive:
    replicas: 2
    cpus: 2
    gpus: 1
    weight: 1.5
    classes: [interactive_paid, interactive_free]
    engine: {max-num-seqs: 8}
  batch:
    classes: batch
    min_tokens: 64
    max_tokens: 400
ingress: {replicas: 3, without-ledger: admit}
routing:
  router: least_loaded
  hang-seconds: 4
ray:
  address: head:6379
"""


def read(tmp_path: Path, text: str) -> FleetConfig:
    path = tmp_path / "fleet.yaml"
    path.write_text(text)
    return read_fleet(str(path))


def test_a_file_with_everything(tmp_path: Path) -> None:
    fleet = read(tmp_path, WHOLE)
    first, second = fleet.pools
    assert (first.name, first.replicas) == ("interactive", 2)
    assert (first.cpus, first.gpus, first.weight) == (2.0, 1.0, 1.5)
    assert first.classes == (ServiceClass.INTERACTIVE_PAID, ServiceClass.INTERACTIVE_FREE)
    assert first.engine.scheduler.max_num_seqs == 8
    assert first.engine.model.max_model_len == second.engine.model.max_model_len == 512
    assert second.engine.scheduler.max_num_seqs != 8
    assert (second.classes, second.min_tokens, second.max_tokens) == ((ServiceClass.BATCH,), 64, 400)
    assert second.replicas == 1
    assert fleet.server.port == 9000
    assert (fleet.routing.router, fleet.routing.hang_seconds) == ("least_loaded", 4)
    assert (fleet.ingress.replicas, fleet.ingress.without_ledger) == (3, "admit")
    assert fleet.address == "head:6379"


SCALES = """
pools:
  default:
    cpus: 2
    replicas:
      min: 2
      max: 6
      spares: 1
      replica-work: 4096
      fullness: 0.5
      usual-prefill: 0.25
      tolerated: 0.05
      start-seconds: 40
      horizon-seconds: 0
      trend-seconds: 20
      cooldown-seconds: 120
      schedule: [{from: "07:30", to: "20:00", min: 4}, {from: "22:00", to: "02:00", min: 3}]
      time-zone: Europe/Berlin
"""


def test_a_pool_that_scales(tmp_path: Path) -> None:
    """Every setting of the policy can be said."""
    fleet = read(tmp_path, SCALES)
    (pool,) = fleet.pools
    assert pool.replicas == 6
    assert pool.scaling is not None
    assert pool.scaling.settings == ScalingSettings(
        min_replicas=2,
        max_replicas=6,
        spares=1,
        replica_work=4096.0,
        fullness=0.5,
        usual_prefill=0.25,
        tolerated=0.05,
        start_seconds=40.0,
        horizon_seconds=0.0,
        trend_seconds=20.0,
        cooldown_seconds=120.0,
    )
    assert len(SCALES[SCALES.index("min:") : SCALES.index("schedule:")].strip().splitlines()) == len(fields(ScalingSettings))
    assert pool.scaling.schedule.zone == "Europe/Berlin"
    with pytest.raises(ConfigError, match="6 replicas need 12 cpus, and the cluster has 11"):
        fleet.check_resources(cpus=11.0, gpus=0.0)


def test_an_empty_file_is_one_replica_of_the_bundled_model(tmp_path: Path) -> None:
    fleet = read(tmp_path, "")
    (pool,) = fleet.pools
    assert (pool.name, pool.replicas, pool.engine.model.model) == ("default", 1, "pico")
    assert fleet.routing.router == "prefix"
    assert (fleet.ingress.replicas, fleet.ingress.without_ledger) == (1, "refuse")
    assert fleet.address is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("polls: {}", "unknown setting 'polls'"),
        ("pools: [a]", "pools must hold settings"),
        ("pools: {a: {hardware: h100}}", "pool 'a': unknown setting 'hardware'; known are replicas, cpus"),
        ("pools: {a b: {}}", "pool 'a b': names are of letters"),
        ("pools: {a: {replicas: 0}}", "pool 'a': replicas must be from 1 to 10000"),
        ("pools: {a: {replicas: two}}", "pool 'a': replicas must be an integer, or min, max and how they scale"),
        ("pools: {a: {replicas: {min: 3}}}", "pool 'a': replicas: max must say how many there are at most"),
        ("pools: {a: {replicas: {max: 2, min: 3}}}", "pool 'a': replicas: min_replicas must be at least 1 and at most"),
        ("pools: {a: {replicas: {min: 0, max: 3}}}", "pool 'a': replicas: min_replicas must be at least 1"),
        ("pools: {a: {replicas: {max: 2, replica_work: 9, replica-work: 8}}}", "replica-work is given twice"),
        ("pools: {a: {replicas: {max: 2.5}}}", "max must be an integer, got 2.5"),
        ("pools: {a: {replicas: {max: 2, speed: 1}}}", "unknown setting 'speed'; known are min, max, spares, replica-work"),
        ("pools: {a: {replicas: {max: 2, start-seconds: soon}}}", "start-seconds must be a number, got 'soon'"),
        ("pools: {a: {replicas: {max: 2, cooldown-seconds: .nan}}}", "cooldown_seconds must be at least 1 and finite"),
        ("pools: {a: {replicas: {max: 2, time-zone: Mars/Base}}}", "time-zone: 'Mars/Base' is not known here"),
        ("pools: {a: {replicas: {max: 2, schedule: 6}}}", "schedule must be a list of {from, to, min}"),
        ("pools: {a: {replicas: {max: 2, schedule: [{from: '07:30', min: 2}]}}}", "schedule: each entry has from, to, min"),
        ("pools: {a: {replicas: {max: 2, schedule: [{from: 07:30, to: 20:00, min: 2}]}}}", 'times are "HH:MM" in quotes'),
        ("pools: {a: {replicas: {max: 2, schedule: [{from: '07:30', to: '7:30', min: 2}]}}}", "got '7:30'"),
        ("pools: {a: {replicas: {max: 2, schedule: [{from: '07:30', to: '07:30', min: 2}]}}}", "from and to must differ"),
        (
            "pools: {a: {replicas: {max: 2, schedule: [{from: '07:30', to: '20:00', min: 0}]}}}",
            "min must be an integer, at least 1",
        ),
        (
            "pools: {a: {replicas: {max: 2, schedule: [{from: '07:30', to: '20:00', min: 3}]}}}",
            "asks for 3 replicas, and max is 2",
        ),
        ("pools: {a: {replicas: true}}", "pool 'a': replicas must be an integer"),
        ("pools: {a: {classes: [gold]}}", "classes of pool 'a' must be of interactive_paid"),
        ("pools: {a: {classes: [batch]}}", "no pool takes requests of class 'interactive_paid'"),
        ("pools: {a: {cpus: many}}", "pool 'a': cpus must be a number, got 'many'"),
        ("pools: {a: {gpus: -1}}", "pool 'a': gpus must be at least 0"),
        ("pools: {a: {weight: 0}}", "pool 'a': weight must be above 0"),
        ("pools: {a: {max_tokens: 5, min_tokens: 6}}", "min_tokens must be at least 0 and max_tokens no less"),
        ("pools: {a: {engine: {port: 1}}}", "unknown setting 'port'"),
        ("pools: {a: {model: x/y}, b: {model: z/y}}", "pools 'a' and 'b' both serve 'y', of x/y as y, and of z/y as y"),
        ("pools: {a: {model: x, served-model-name: [u, v]}, b: {model: y, served-model-name: [w, v]}}", "two models as 'v'"),
        ("pools: {a: {}, b: {model: x, classes: batch}}", "no pool takes requests of class 'interactive_paid' for the model 'x'"),
        ("pools: {a: {model: 5}}", "model must be a string"),
        ("routing: {router: magic}", "router must be one of 'prefix'"),
        ("routing: {load_bound: 1}", "load_bound must be above 1"),
        ("routing: {hang_seconds: 0}", "hang_seconds must be at least 0.5"),
        ("routing: {wait_seconds: -1}", "wait_seconds must be at least 0"),
        ("routing: {speed: 1}", "routing: unknown setting 'speed'"),
        ("ingress: {replicas: 0}", "ingress: replicas must be from 1 to 100, got 0"),
        ("ingress: {replicas: many}", "replicas must be an integer"),
        ("ingress: {without-ledger: guess}", "without_ledger must be one of 'refuse'"),
        ("ingress: {ports: 3}", "ingress: unknown setting 'ports'; known are replicas, without_ledger"),
        ("ray: {address: 6379}", "ray: address must be a string"),
        ("max-num-seqs: -1", "max_num_seqs"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ConfigError) as raised:
        read(tmp_path, text)
    assert said in raised.value.message
    assert "fleet.yaml" in raised.value.message


def test_pools_of_several_models(tmp_path: Path) -> None:
    fleet = read(
        tmp_path,
        """
model: /models/llama
served-model-name: llama
chat-template: llama.jinja
max-model-len: 512
pools:
  a: {}
  b: {model: /models/qwen, engine: {tokenizer: qwen.json}}
  c: {served-model-name: [llama]}
  d: {model: /models/other, served-model-name: [small, tiny], classes: interactive_paid}
  e: {engine: {model: /models/other, served-model-name: [small, tiny]}, classes: [interactive_free, batch]}
""",
    )
    assert {name: [pool.name for pool in pools] for name, pools in fleet.models.items()} == {
        "llama": ["a", "c"],
        "qwen": ["b"],
        "small": ["d", "e"],
    }
    own = {pool.name: pool.engine.model for pool in fleet.pools}
    assert (own["a"].chat_template, own["c"].chat_template, own["b"].chat_template) == ("llama.jinja", "llama.jinja", None)
    assert (own["b"].tokenizer, own["b"].max_model_len) == ("qwen.json", 512)
    assert fleet.pools[3].model_names == ("small", "tiny")


def test_more_than_the_cluster_has_is_refused(tmp_path: Path) -> None:
    fleet = read(tmp_path, WHOLE)
    fleet.check_resources(cpus=5.0, gpus=2.0)
    with pytest.raises(ConfigError, match="3 replicas need 5 cpus, and the cluster has 4"):
        fleet.check_resources(cpus=4.0, gpus=2.0)
    with pytest.raises(ConfigError, match="3 replicas need 2 gpus, and the cluster has 1"):
        fleet.check_resources(cpus=8.0, gpus=1.0)
