"""Reading the Prometheus text back."""

from prometheus_client.parser import text_string_to_metric_families

from jaxserve.metrics.exposition import Exposition
from jaxserve.metrics.instruments import Instruments


def values(text: bytes) -> dict[tuple[str, tuple[str, ...]], float]:
    """Every sample: (name without prefix, label values in the order of the labels' names) -> value."""
    return {
        (sample.name.removeprefix("jaxserve:"), tuple(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }


def recorded(instruments: Instruments) -> dict[tuple[str, tuple[str, ...]], float]:
    return values(Exposition(instruments).text([]))
