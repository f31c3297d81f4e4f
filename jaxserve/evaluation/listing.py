"""What tasks there are, for people."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True, slots=True)
class Listed:
    """A task or group that can be named. `kind` is how it is answered, or "group", which has members."""

    name: str
    kind: str
    members: tuple[str, ...] = ()


def show_tasks(listed: Sequence[Listed], others: int, console: Console) -> None:
    table = Table(title="tasks of jaxserve, and of the directory that was named", title_justify="left")
    for name in ("name", "kind", "members"):
        table.add_column(name, overflow="fold")
    for entry in listed:
        table.add_row(entry.name, entry.kind, ", ".join(entry.members), style="bold" if entry.members else None)
    console.print(table)
    console.print(f"{others:,} more come with lm-eval ('lm-eval ls tasks'); most want data that were fetched before.")
