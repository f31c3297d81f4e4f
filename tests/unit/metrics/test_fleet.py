"""What a fleet counts."""

from jaxserve.metrics.catalogue import CATALOGUE
from jaxserve.metrics.fleet import FleetRecorder
from jaxserve.metrics.instruments import Instruments


def test_everything_that_happens_in_a_fleet_is_counted():
    instruments = Instruments()
    recorder = FleetRecorder(instruments, "pico")
    recorder.replicas(3)
    for count, happens in enumerate([recorder.resumed, recorder.rerouted, recorder.lost, recorder.hung, recorder.quarantined], 1):
        for _ in range(count):
            happens()
    names = [metric.series[0] for metric in CATALOGUE if not metric.at_scrape]
    seen = {name: instruments.registry.get_sample_value(name, {"model_name": "pico"}) for name in names}
    fleet = {name.removeprefix("jaxserve:fleet_"): value for name, value in seen.items() if "fleet_" in name}
    assert fleet == {
        "replicas": 3,
        "resumed_total": 1,
        "rerouted_total": 2,
        "lost_total": 3,
        "hung_total": 4,
        "quarantined_total": 5,
    }
