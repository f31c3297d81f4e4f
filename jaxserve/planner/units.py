"""Numbers as people read them."""

from __future__ import annotations


def size(count: float) -> str:
    """Bytes in binary units: 320 KiB, 8.46 GiB."""
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.4g} {unit}"
        count /= 1024
    return f"{count:,.2f} GiB"


def short(count: float) -> str:
    """A count in thousands, millions or billions: 950, 25.6K, 1.74M, 70.6B."""
    for limit, unit in ((1e9, "B"), (1e6, "M"), (1e4, "K")):
        if count >= limit:
            digits = 2 if unit == "M" else 1
            return f"{count / (1e3 if unit == 'K' else limit):,.{digits}f}{unit}"
    return f"{count:,.0f}" if count >= 100 or count == int(count) else f"{count:.1f}"


def length(tokens: int) -> str:
    """A context length: 2K, 128K, 1,792."""
    return f"{tokens // 1024}K" if tokens >= 1024 and tokens % 1024 == 0 else f"{tokens:,}"


def time(seconds: float) -> str:
    """12 µs, 2.63 ms, 1.35 s."""
    if seconds < 1e-3:
        return f"{seconds * 1e6:.0f} µs"
    return f"{seconds * 1e3:.2f} ms" if seconds < 0.1 else f"{seconds * 1e3:.0f} ms" if seconds < 1 else f"{seconds:.2f} s"


def milliseconds(seconds: float) -> str:
    """Milliseconds with three digits, for a column: 0.025, 2.63, 21.2, 1,340."""
    value = seconds * 1e3
    if value < 0.001:
        return "<.001" if value else "-"
    return f"{value:.3f}" if value < 0.1 else f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:,.0f}"


def plural(count: int, noun: str) -> str:
    """1 replica, 2 replicas."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def dollars(amount: float) -> str:
    """$0.0042, $0.184, $12.50."""
    if amount < 0.0001:
        return "<$.0001"
    return f"${amount:.2g}" if amount < 0.1 else f"${amount:.3f}" if amount < 1 else f"${amount:,.2f}"
