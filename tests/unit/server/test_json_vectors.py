"""Arrays as JSON: equal to what lists of Python floats give, with few of them at a time."""

from __future__ import annotations

import base64
import json

import numpy as np
import pytest

from server.json_vectors import encode, json_array


@pytest.mark.parametrize("shape", [(0,), (1,), (16_384,), (40_000,), (3, 5), (2, 20_000), (0, 4)])
def test_arrays_are_written_as_lists(shape: tuple[int, ...]) -> None:
    values = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    assert json.loads(json_array(values)) == values.tolist()


def test_content_may_hold_arrays_and_bytes() -> None:
    values = np.arange(3, dtype="<f4")
    found = json.loads(encode({"data": [values], "base64": memoryview(values).cast("B"), "n": 1}))
    assert found == {"data": [[0.0, 1.0, 2.0]], "base64": base64.b64encode(values.tobytes()).decode(), "n": 1}


def test_other_objects_are_refused() -> None:
    with pytest.raises(NotImplementedError, match="complex"):
        encode([1j])
