"""Page moves against numpy: one after another, whatever goes where, bit for bit, on one device and on two."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from jax.sharding import NamedSharding

from jaxserve.executor.cache_arrays import KV_CACHE, CacheArrays
from jaxserve.executor.page_mover import MAX_PENDING, PageMover
from jaxserve.executor.page_moves import MOVE_WIDTH, make_copy, make_gather, make_scatter, move_batches
from jaxserve.step.plan import MoveKind, PageMove
from sharding.mesh import make_mesh
from tests.support.plans import copied, swapped_in, swapped_out

PAGES, SLOTS = 40, 30
PAGE = st.integers(1, PAGES - 1)
SLOT = st.integers(0, SLOTS - 1)
MOVES = st.lists(
    st.builds(PageMove, st.just(MoveKind.COPY), PAGE, PAGE)
    | st.builds(PageMove, st.just(MoveKind.TO_TIER), PAGE, SLOT)
    | st.builds(PageMove, st.just(MoveKind.FROM_TIER), SLOT, PAGE),
    max_size=4 * MOVE_WIDTH,
)
CACHES = {  # layers, half a page or a whole one, heads, page, width
    "keys and values": ("float32", (2, PAGES, 2, 2, 3, 4)),
    "bfloat16": ("bfloat16", (3, PAGES, 2, 2, 4, 8)),
    "float8": ("float8_e4m3fn", (1, PAGES, 2, 4, 4, 8)),
    "int8": ("int8", (1, PAGES, 2, 4, 4, 8)),
    "latents": ("bfloat16", (2, PAGES, 1, 2, 4, 24)),
}


class Memory:
    """A cache on some devices, its mover, and what both should hold."""

    def __init__(self, devices: int, dtype: str, shape: tuple[int, ...]) -> None:
        mesh = make_mesh(devices)
        rng = np.random.default_rng(0)
        kind = np.dtype(np.uint8 if dtype == "float8_e4m3fn" else dtype)
        pages = rng.integers(0, 256, (*shape[:-1], shape[-1] * kind.itemsize), np.uint8).view(kind).copy()
        if kind.itemsize > 1:
            pages[np.isnan(pages)] = 0  # of which there are many kinds
        scales = rng.standard_normal(shape[:5]).astype(jnp.bfloat16)
        self.arrays = [pages, scales] if kind.itemsize == 1 else [pages]
        self.slots = [np.zeros((SLOTS, array.shape[0], *array.shape[2:]), array.dtype) for array in self.arrays]
        placed = [jax.device_put(array.copy(), NamedSharding(mesh, KV_CACHE)) for array in self.arrays]  # CPUs may keep it
        self.cache = CacheArrays(*placed)
        programs = {
            MoveKind.COPY: jax.jit(make_copy(mesh), donate_argnums=0),
            MoveKind.TO_TIER: jax.jit(make_gather(mesh)),
            MoveKind.FROM_TIER: jax.jit(make_scatter(mesh), donate_argnums=0),
        }
        self.mover = PageMover(programs, self.cache, SLOTS)

    def move(self, moves) -> None:
        for kind, source, destination in moves:
            for array, slots in zip(self.arrays, self.slots, strict=True):
                content = slots[source] if kind is MoveKind.FROM_TIER else array[:, source]
                if kind is MoveKind.TO_TIER:
                    slots[destination] = content
                else:
                    array[:, destination] = content
        self.cache = self.mover.move(self.cache, moves)

    def check(self) -> None:
        """Every page but the null page, which is anybody's."""
        for got, want in zip(jax.tree.leaves(self.cache), self.arrays, strict=True):
            assert np.asarray(got)[:, 1:].tobytes() == want[:, 1:].tobytes()


@pytest.fixture(scope="module", params=[1, 2])
def memory(request):
    return Memory(request.param, *CACHES["keys and values"])


@settings(deadline=None, max_examples=40)
@given(plans=st.lists(MOVES, min_size=1, max_size=3))
@example(plans=[[*copied((1, 2), (2, 3), (3, 1))]])
@example(plans=[[*swapped_out((1, 0)), *swapped_in((0, 2)), *swapped_out((3, 0)), *swapped_in((0, 4))]])
@example(plans=[[*copied((1, 2)), *swapped_out((2, 0)), *swapped_out((4, 0))], [*swapped_in((0, 5))]])
def test_moves_happen_one_after_another(memory, plans):
    for moves in plans:
        memory.move(moves)
        memory.mover.collect()
    memory.check()


@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("cache", CACHES)
def test_pages_of_every_kind_come_back_bit_for_bit(devices, cache):
    memory = Memory(devices, *CACHES[cache])
    memory.move(swapped_out(*((page, 30 - page) for page in range(1, 30))))
    memory.move(copied(*((39, page) for page in range(1, 30))))
    memory.move(swapped_in(*((30 - page, page) for page in range(1, 30))))
    memory.check()


def test_what_is_under_way_is_bounded_and_collected(memory):
    memory.move(swapped_out(*((1 + number % 9, number % SLOTS) for number in range(9 * MOVE_WIDTH))))
    assert len(memory.mover._pending) == MAX_PENDING
    jax.block_until_ready([pages for _, pages in memory.mover._pending])
    memory.mover.collect()
    assert not memory.mover._pending
    memory.move(swapped_in((3, 20)))
    memory.check()


def test_measuring_leaves_every_page_as_it_was():
    memory = Memory(2, *CACHES["float8"])
    memory.cache, seconds = memory.mover.measure(memory.cache)
    assert seconds > 0.0
    memory.check()
    fewest = PageMover(memory.mover._programs, memory.cache, 1)
    memory.cache, _ = fewest.measure(memory.cache)
    memory.check()


def test_calls_are_of_one_kind_full_where_they_can_be_and_read_before_they_write():
    moves = [*swapped_out(*((page, page) for page in range(1, MOVE_WIDTH + 3))), *copied((1, 2), (3, 4), (2, 5), (6, 5))]
    batches = list(move_batches(moves))
    assert [(batch.kind, batch.num_moves) for batch in batches] == [
        (MoveKind.TO_TIER, MOVE_WIDTH),
        (MoveKind.TO_TIER, 2),
        (MoveKind.COPY, 2),
        (MoveKind.COPY, 1),
        (MoveKind.COPY, 1),
    ]
    assert all(len(batch.sources) == len(batch.destinations) == MOVE_WIDTH for batch in batches)
    assert not batches[1].sources[2:].any(), "the null page is the padding"
    assert not list(move_batches([]))
