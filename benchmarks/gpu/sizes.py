"""What is measured: shapes of a run on a GPU, and of the rehearsals that take the same path on a CPU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from benchmarks.gpu.timing import Pace
from jaxserve.aot.shapes import known_decoder
from jaxserve.models.config import DecoderConfig

PAGE_SIZE = 16
DTYPE = "bfloat16"
ITEM_BYTES = 2
GREEDY = "greedy"
STEADY = Pace(probes=4, batch_seconds=0.03, repeats=7)


@dataclass(frozen=True, slots=True, kw_only=True)
class Heads:
    """H, K, D of the attention layers, in bfloat16."""

    query: int
    kv: int
    dim: int

    @property
    def token_bytes(self) -> int:
        """Of a token's key and value in one layer."""
        return 2 * self.kv * self.dim * ITEM_BYTES

    @property
    def page_bytes(self) -> int:
        """Of a page of one layer."""
        return PAGE_SIZE * self.token_bytes


WHOLE = Heads(query=32, kv=8, dim=128)  # of Llama-3-8B
EIGHTH = Heads(query=8, kv=1, dim=128)  # of Llama-3-70B on one GPU of eight


@dataclass(frozen=True, slots=True)
class DecodeShape:
    """A batch of decode attention.

    Attributes:
        lengths: keys of each row.
        queries: of each row: one, or one and drafts.
    """

    name: str
    lengths: tuple[int, ...]
    heads: Heads
    page_size: int = PAGE_SIZE
    queries: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSizes:
    """The engine's part.

    Attributes:
        model: name of a planner's shape.
        changes: fields of its DecoderConfig that are made smaller.
        loads: sequences that decode together, and how their tokens are chosen; one measurement each.
        context: tokens of their prompts.
        steps: decode steps that are timed.
        burst: steps that are submitted at once to time the device alone; fewer than jax lets be in flight (32).
        step_tokens: tokens of a step at most.
        long_prompt: tokens of the prompt whose time to first token is measured.
        prompts: how many of them.
        kernel: of attention.
    """

    model: str = "llama-3-8b"
    changes: Mapping[str, Any] = MappingProxyType({})
    loads: tuple[tuple[int, str], ...] = ((64, GREEDY), (64, "top-p"), (64, "log-probabilities"))
    context: int = 1024
    steps: int = 48
    burst: int = 16
    step_tokens: int = 2048
    long_prompt: int = 2048
    prompts: int = 7
    kernel: str = "auto"

    @property
    def rows(self) -> tuple[int, ...]:
        """Of all loads, each number once."""
        return tuple(dict.fromkeys(rows for rows, _ in self.loads))

    def decoder(self) -> DecoderConfig:
        """The model."""
        config = known_decoder(self.model)
        return replace(config.first(self.changes.get("num_layers", config.num_layers)), **self.changes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Everything that a run measures.

    Attributes:
        platform: where it runs, "gpu" or "cpu".
        heads: of the attention sections.
        kernels: implementations that are measured side by side; the first is what the targets are for.
        dense: implementation of `jax.nn.dot_product_attention` that prefill is held against.
        decodes: rows and context of each decode case.
        shapes: other batches of decode attention.
        prefills: queries and context of each prefill case.
        more_decodes, more_shapes, more_prefills, more_kernels: of the second command.
        dtypes, more_dtypes: that the parity gate checks kernels in, by their weight for serving.
        writes: tokens of each kv_write case.
        write_pages: of the cache that is written to.
        tile_decodes, tile_prefills: cases of the sweep over tile sizes.
        tiles: values of each field of `Tiles` that are tried, one field at a time.
        copy_bytes: of the array that is copied: many times the L2 cache, and so that what is in flight fits into memory.
        matmul: size of the square matrices that are multiplied.
        rotated_bytes: KV that is read before any is read again: several times the L2 cache.
        call_bytes: KV that a call reads, in several operations if need be, so that a call outlasts its launch.
        operations: in a call at most.
        pace: how long each program is measured.
        parity_cases: cases of each group of the parity gate at most; None for all.
        parity_interpret: whether the parity gate interprets GPU kernels.
        families: golden checkpoints at most; None for all.
        engine: the engine's part.
        more_engine: of the second command.
        rounded: narrow and wide side of the matrices that are rounded; those of an MLP of Llama-3-8B.
        rounded_rows: rows that they multiply.
        messages: bytes of the all-reduces that are timed; those of a decode step of 64 rows have 1 MB at a width of 8,192.
        tuned_layers: of the model that compiling with measured kernels is tried on.
        server_model: a planner's shape, or the bundled model.
        clients: that stream from the server at once, one measurement each.
        responses, output_tokens: measured responses of each client, and their length.
        generate_rows, generate_tokens: of transformers' generate.
        scratch: a directory that the sections of a run share; None for none.
    """

    platform: str = "gpu"
    heads: Heads = WHOLE
    kernels: tuple[str, ...] = ("mosaic_gpu", "xla")
    more_kernels: tuple[str, ...] = ("mosaic_gpu", "xla")
    dense: str = "cudnn"
    decodes: tuple[tuple[int, int], ...] = ((64, 4096), (64, 1024))
    shapes: tuple[DecodeShape, ...] = (
        DecodeShape("64 x 1024 at TP=8", (1024,) * 64, EIGHTH),
        DecodeShape("one of 32768 among 63 x 1024", (32768, *(1024,) * 63), WHOLE),
    )
    prefills: tuple[tuple[int, int], ...] = ((8192, 8192),)
    more_decodes: tuple[tuple[int, int], ...] = tuple(
        (rows, context) for context in (512, 2048, 8192, 32768) for rows in (1, 4, 16, 64, 256)
    )
    more_shapes: tuple[DecodeShape, ...] = (
        DecodeShape("64 x 1024 at TP=8, pages of 64", (1024,) * 64, EIGHTH, page_size=64),
        DecodeShape("64 x 1024, pages of 64", (1024,) * 64, WHOLE, page_size=64),
        DecodeShape("64 x 1024, three drafts each", (1024,) * 64, WHOLE, queries=4),
    )
    more_prefills: tuple[tuple[int, int], ...] = ((4096, 4096), (2048, 2048), (1024, 1024), (2048, 8192), (512, 8192))
    dtypes: tuple[str, ...] = ("bfloat16", "float8")
    more_dtypes: tuple[str, ...] = ("float16", "float32")
    writes: tuple[int, ...] = (1, 64, 256, 2048, 8192)
    write_pages: int = 2**14
    tile_decodes: tuple[tuple[int, int], ...] = ((64, 4096), (4, 8192))
    tile_prefills: tuple[tuple[int, int], ...] = ((8192, 8192),)
    tiles: Mapping[str, tuple[int, ...]] = MappingProxyType(
        {
            "decode_bytes": tuple(kilobytes * 1024 for kilobytes in (160, 192)),
            "decode_workers": (1,),
            "least_blocks": (1, 2, 8, 16),
            "prefill_groups": (1, 3),
            "block_bytes": (150 * 1024,),
        }
    )
    copy_bytes: int = 2**30
    matmul: int = 8192
    rotated_bytes: int = 2**29
    call_bytes: int = 3 * 2**29
    operations: int = 8
    pace: Pace = STEADY
    parity_cases: int | None = None
    parity_interpret: bool = False
    families: int | None = None
    engine: EngineSizes = EngineSizes()
    more_engine: EngineSizes = EngineSizes(loads=tuple((rows, GREEDY) for rows in (1, 16, 256)))
    server_model: str = "llama-3-8b"
    clients: tuple[int, ...] = (64, 1)
    responses: int = 2
    output_tokens: int = 256
    generate_rows: tuple[int, ...] = (1, 16, 64, 256)
    generate_tokens: int = 33
    rounded: tuple[int, int] = (4096, 14336)
    rounded_rows: tuple[int, ...] = (1, 16, 64)
    messages: tuple[int, ...] = tuple(2**power for power in (17, 18, 19, 20, 21, 22, 24))
    tuned_layers: int = 4
    scratch: Path | None = None


_TINY_MODEL = {
    "num_layers": 2,
    "hidden_size": 128,
    "num_heads": 4,
    "num_kv_heads": 2,
    "head_dim": 32,
    "ffn_size": 256,
    "vocab_size": 512,
}

_TINY_ENGINE = EngineSizes(
    changes=MappingProxyType(_TINY_MODEL),
    loads=((4, GREEDY), (4, "top-p"), (4, "log-probabilities")),
    context=32,
    steps=6,
    burst=4,
    step_tokens=64,
    long_prompt=64,
    prompts=2,
)

FULL = Sizes()
REHEARSAL = Sizes(
    platform="cpu",
    heads=Heads(query=2, kv=1, dim=64),
    kernels=("xla", "mosaic_gpu_interpreted"),
    more_kernels=("xla",),
    dense="xla",
    decodes=((2, 33),),
    shapes=(DecodeShape("uneven, pages of 8, a draft each", (33, 9), Heads(query=2, kv=1, dim=64), page_size=8, queries=2),),
    prefills=((6, 6),),
    more_decodes=((1, 17),),
    more_shapes=(DecodeShape("one row", (9,), Heads(query=2, kv=1, dim=64)),),
    more_prefills=((4, 6),),
    dtypes=("bfloat16",),
    more_dtypes=("float32",),
    writes=(2,),
    write_pages=9,
    tile_decodes=((1, 33),),
    tile_prefills=(),
    tiles=MappingProxyType({"least_blocks": (2,)}),
    copy_bytes=2**20,
    matmul=128,
    rotated_bytes=2**14,
    call_bytes=2**14,
    operations=1,
    pace=Pace(probes=1, batch_seconds=0.0, repeats=1),
    parity_cases=1,
    parity_interpret=True,
    families=1,
    engine=_TINY_ENGINE,
    more_engine=replace(_TINY_ENGINE, loads=((4, GREEDY),)),
    server_model="pico",
    clients=(2,),
    responses=1,
    output_tokens=4,
    generate_rows=(1, 2),
    generate_tokens=4,
    rounded=(128, 256),
    rounded_rows=(2,),
    messages=(2**12,),
    tuned_layers=2,
)

SIZES: Mapping[str, Sizes] = MappingProxyType({"full": FULL, "rehearsal": REHEARSAL})
