"""Patterns of JSON Schema's formats of times, in which every text is one: llguidance's own know no leap years."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

_YEAR = "(?:[0-9]{3}[1-9]|[0-9]{2}[1-9]0|[0-9][1-9]00|[1-9]000)"  # Python, for one, has no year 0
_LEAP = "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)"
_LONG = "(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])"
_SHORT = "(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
_DATE = f"(?:{_YEAR}-(?:{_LONG}|{_SHORT}|02-(?:0[1-9]|1[0-9]|2[0-8]))|{_LEAP}-02-29)"
_CLOCK = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,9})?"  # leap seconds are known only afterwards
_ZONE = "(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"

TIMES: Mapping[str, str] = MappingProxyType(
    {"date": f"^{_DATE}$", "time": f"^{_CLOCK}{_ZONE}$", "date-time": f"^{_DATE}T{_CLOCK}{_ZONE}$"}
)
