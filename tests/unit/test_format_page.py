"""docs/formats.md is what the tests say: python -m tests.support.format_table writes it again."""

from tests.support.format_table import PAGE, page


def test_the_page_is_made_from_the_tests() -> None:
    assert PAGE.read_text() == page()
