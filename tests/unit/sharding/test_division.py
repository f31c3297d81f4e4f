import pytest

from sharding import Dimension, require_division, sizes_that_fit

MODEL = (Dimension("heads", 12), Dimension("kv_heads", 4, replicates=True), Dimension("ffn", 96))


def test_sizes_that_fit() -> None:
    assert sizes_that_fit(MODEL) == [1, 2, 4, 12]
    assert sizes_that_fit((Dimension("heads", 6), Dimension("ffn", 96))) == [1, 2, 3, 6]


@pytest.mark.parametrize("devices", [1, 2, 4, 12])
def test_what_fits_passes(devices: int) -> None:
    require_division(MODEL, devices)
    assert devices in sizes_that_fit(MODEL)


@pytest.mark.parametrize(
    ("devices", "named"), [(3, "kv_heads 4"), (5, "heads 12 and kv_heads 4 and ffn 96"), (8, "heads 12"), (24, "heads 12")]
)
def test_the_error_names_what_does_not_divide_and_what_would(devices: int, named: str) -> None:
    with pytest.raises(ValueError, match=f"^{devices} does not divide {named}; sizes that fit this model: 1, 2, 4, 12$"):
        require_division(MODEL, devices)
