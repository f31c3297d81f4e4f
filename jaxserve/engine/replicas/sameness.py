"""Whether two engines may serve one another's requests: the same model by the same rules."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from jaxserve.engine.link import EngineDescription


def difference(ours: EngineDescription, theirs: EngineDescription) -> str | None:
    """In what an engine differs from those of its fleet, so that a stream could not go on in it; None if in nothing.

    When it was started, paths of its files, and how much it runs at once are its own affair.
    """
    mine, other = _identity(ours), _identity(theirs)
    for name, value in mine.items():
        if other[name] != value:
            return f"its {name} is {other[name]!r}, that of the fleet {value!r}"
    if theirs.rules.num_pages < ours.rules.num_pages:  # the longest requests would wait in it for ever
        return f"it has {theirs.rules.num_pages} pages, fewer than the {ours.rules.num_pages} that requests are bounded by"
    return None


def _identity(description: EngineDescription) -> Mapping[str, object]:
    model, rules = description.model, description.rules
    return {
        "model": model.names,
        "architecture": model.architecture,
        "fingerprint": model.fingerprint,
        "dtype": model.dtype,
        "vocabulary": model.vocab_size,
        "context": model.max_model_len,
        "sampling defaults": model.sampling,
        "prefix namespace": rules.namespace,
        "page size": rules.page_size,
        "windows": rules.windows,
        "limits": replace(rules.limits, seed=0),
        "policies": rules.policies,
        "default class": rules.default_class,
        "parsers": description.parsers,
    }
