"""Panels that are read from stored rows are those that the plain parameter is packed into."""

from collections.abc import Sequence
from itertools import product

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from jaxserve.models.rules import Packing, Source, WeightRule
from jaxserve.weights import checkpoint
from jaxserve.weights.bits import bits
from jaxserve.weights.packing import read_block
from jaxserve.weights.panels import read_arranged
from pallas_kernels.matmul import Panels, pack, packed_shape
from pallas_kernels.quantization import SCHEMES
from tests.support.tiers import tiered


class Arrays:
    """Tensors in memory."""

    def __init__(self, arrays: dict[str, np.ndarray]) -> None:
        self._arrays = arrays

    def read(self, name, bounds):
        return self._arrays[name][tuple(slice(*part) for part in bounds)]


def stored(sources: Sequence[Source], dtype) -> Arrays:
    rng = np.random.default_rng(0)
    return Arrays({source.name: rng.normal(size=source.stored_shape).astype(dtype) for source in sources})


def matrices(*widths: int, inputs: int, **more) -> tuple[Source, ...]:
    return tuple(Source(str(number), (width, inputs), **more) for number, width in enumerate(widths))


CASES = {
    "one panel": (matrices(64, inputs=6), Packing.COLUMNS, (6, 1, 64), 1),
    "several, of sources that begin within one": (matrices(100, 33, 59, inputs=10), Packing.COLUMNS, (10, 1, 192), 1),
    "a narrow last one": (matrices(150, inputs=4), Packing.TRANSPOSED, (4, 150), 1),
    "padding": (matrices(70, inputs=4), Packing.TRANSPOSED, (4, 132), 1),
    "rows": (matrices(130, inputs=12), Packing.ROWS, (1, 12, 130), 2),
    "odd inputs": (matrices(65, 20, inputs=7), Packing.COLUMNS, (7, 1, 85), 1),
    "stored as columns": (matrices(130, inputs=9, transposed=True), Packing.COLUMNS, (9, 1, 130), 1),
    "alternating rows": (matrices(70, inputs=8, first_row=1, rows=140, row_step=2), Packing.COLUMNS, (8, 1, 70), 1),
}


DTYPES = [(ml_dtypes.bfloat16, "bfloat16"), (np.float32, "float32"), (np.float32, "bfloat16")]
PIECES = (checkpoint.PIECE, 250)
# Each case with both pieces, and each dtype with both pieces.
CORE = {(case, (at + piece) % 3, piece) for at, case in enumerate(CASES) for piece in range(2)}


@pytest.mark.parametrize(("case", "dtypes", "number"), tiered(product(CASES, range(3), range(2)), CORE))
def test_panels(monkeypatch, case, dtypes, number):
    (dtype, wanted), piece = DTYPES[dtypes], PIECES[number]
    monkeypatch.setattr(checkpoint, "PIECE", piece)
    sources, packing, shape, split = CASES[case]
    tensors, rule = stored(sources, dtype), WeightRule(("matrix",), sources, packing)
    plain = read_block(tensors, rule, shape, (slice(None),) * len(shape), wanted)
    assert plain.any()
    layout = Panels(tuple(range(split)), shape)
    expected = np.asarray(pack(jnp.asarray(plain), layout).values)
    panels = np.asarray(read_arranged(tensors, rule, packed_shape(plain, layout)).values)
    assert panels.dtype == expected.dtype
    np.testing.assert_array_equal(bits(panels), bits(expected))
    assert panels.ctypes.data % 64 == 0  # or jax's CPU devices would copy it


@pytest.mark.parametrize("case", CASES)
def test_quantized_panels(monkeypatch, case):
    monkeypatch.setattr(checkpoint, "PIECE", 250)
    sources, packing, shape, split = CASES[case]
    tensors, rule = stored(sources, ml_dtypes.bfloat16), WeightRule(("matrix",), sources, packing)
    plain = read_block(tensors, rule, shape, (slice(None),) * len(shape), "float32")
    layout, scheme = Panels(tuple(range(split)), shape), SCHEMES["int8"]
    expected = pack(jnp.asarray(plain), layout, scheme)
    read = read_arranged(tensors, rule, packed_shape(plain, layout, scheme))
    values, scales = read.values, read.scales
    assert (values.dtype, scales.dtype) == (np.dtype(np.int8), np.dtype(np.float32))
    np.testing.assert_array_equal(values, expected.values)
    np.testing.assert_array_equal(scales, expected.scales)
    # Half a step off at most, but for the last bits of the products.
    assert (np.abs(np.asarray(expected.plain()) - plain).reshape(-1, scales.size) <= 0.5 * scales.reshape(-1) * (1 + 1e-4)).all()
