"""The tables in docs/kernels.md are what the implementations say of themselves."""

from pathlib import Path

from pallas_kernels.parity.features import feature_tables
from pallas_kernels.parity.operations import OPERATIONS

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "kernels.md").read_text()


def test_the_page_has_the_tables():
    assert feature_tables() in PAGE


def test_every_implementation_says_how_it_was_checked():
    assert all(entry.checked and entry.limits for operation in OPERATIONS for entry in operation.implementations)


def test_one_does_everything():
    for table in feature_tables().split("\n\n"):
        lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()]
        column = lines[0].index("`composed`" if lines[0][0] == "rotate_write_attend" else "`xla`")
        assert {line[column] for line in lines[2:-1]} == {"yes"}
