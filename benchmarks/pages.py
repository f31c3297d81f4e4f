"""Tables in pages of documentation that scripts make."""

from __future__ import annotations

from collections.abc import Sequence


def markdown(titles: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A Markdown table."""
    lines = [titles, ["---"] * len(titles), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def with_table(page: str, name: str, table: str) -> str:
    """The page with what stands between its marks of this name replaced. Raises ValueError if it has no such marks."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    if begin not in page or end not in page.partition(begin)[2]:
        raise ValueError(f"the page has no place for {name}: {begin} and {end}")
    before, _, rest = page.partition(begin)
    return f"{before}{begin}\n{table}\n{end}{rest.partition(end)[2]}"
