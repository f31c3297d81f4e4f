"""Inputs that are made to break kernels: the tests of every implementation and `python -m jaxserve.verify` run the same lists."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import jax.numpy as jnp
import numpy as np

from pallas_kernels.parity.batches import Batch, Heads, make_batch
from pallas_kernels.ragged_paged_attention import AttentionOptions

DTYPES = ("float32", "bfloat16", "float16", "float8", "int8")
QUANTIZED = {"float8": "float8_e4m3fn", "int8": "int8"}  # of them: bfloat16, with a cache in that dtype and its scales
MATMUL_DTYPES = ("float32", "bfloat16", "float16")

# Decodes, a prompt from its start, chunks that begin inside and at the edge of a page, length 1, a row without queries.
MIXED = ((1, 1), (1, 16), (1, 17), (5, 5), (7, 23), (16, 32), (1, 33), (0, 0), (2, 18), (1, 48))
DECODES = ((1, 1), (1, 15), (1, 16), (1, 17), (1, 200))
SINKS = (-2.0, 0.0, 1.0, 9.0)
PLAIN = AttentionOptions(scale=0.125)
LATENTS = AttentionOptions(scale=0.125, value_dim=512)
SHORT_LATENTS = AttentionOptions(scale=0.125, value_dim=64)
EVERYTHING = AttentionOptions(scale=0.3, window=9, soft_cap=3.0)


@dataclass(frozen=True, slots=True)
class AttentionCase:
    """A call of ragged_paged_attention; a dtype of DTYPES completes it. See `make_batch` for the first ones.

    Attributes:
        name: what tables call it.
        sinks: logits of the heads; None for none.
        tiny: small enough for an interpreted kernel.
    """

    name: str
    rows: tuple[tuple[int, int], ...] = MIXED
    heads: Heads = field(default_factory=Heads)
    page_size: int = 16
    tokens: int | None = None
    padded_rows: int | None = None
    layers: int = 2
    layer: int = 1
    magnitude: float = 1.0
    key_magnitude: float = 1.0
    scale_dtype: str = "float32"
    options: AttentionOptions = PLAIN
    sinks: tuple[float, ...] | None = None
    tiny: bool = False

    def batch(self, dtype: str) -> Batch:
        """The arrays; the same ones every time."""
        return make_batch(
            self.rows,
            heads=self.heads,
            page_size=self.page_size,
            dtype="bfloat16" if dtype in QUANTIZED else dtype,
            kv_dtype=QUANTIZED.get(dtype),
            scale_dtype=self.scale_dtype,
            layers=self.layers,
            layer=self.layer,
            tokens=self.tokens,
            padded_rows=self.padded_rows,
            magnitude=self.magnitude,
            key_magnitude=self.key_magnitude,
            values=self.options.value_dim is None,
        )

    def sink_array(self) -> np.ndarray | None:
        return None if self.sinks is None else np.asarray(self.sinks, np.float32)


@dataclass(frozen=True, slots=True)
class WriteCase:
    """A call of kv_write: `slots` of the tokens, in a cache of random numbers; a dtype of DTYPES, the cache's, completes it.

    Attributes:
        slots: page * page_size + offset of each token.
        source: dtype of the new keys and values; None for the cache's, or bfloat16 if that is quantized.
        scale_dtype: of the scales of a quantized cache.
        magnitude: of the new keys and values.
        zeros: whether every other one is all zeros.
        values: whether the cache has values beside its keys.
    """

    name: str
    slots: tuple[int, ...]
    page_size: int = 16
    kv_heads: int = 2
    head_dim: int = 64
    source: str | None = None
    scale_dtype: str = "float32"
    magnitude: float = 1.0
    zeros: bool = False
    values: bool = True
    tiny: bool = True


@dataclass(frozen=True, slots=True)
class RotateCase:
    """A call of rotate_and_write: `slots` of the tokens, in a cache of random numbers; a dtype of MATMUL_DTYPES completes it.

    Attributes:
        slots: page * page_size + offset of each token; queries, keys and values of those in the null page are NaN.
        rotated_dims: dimensions of a head that are rotated; None for all.
        source: dtype of queries, keys and values; None for the cache's.
        values: whether the cache has values beside its keys.
    """

    name: str
    slots: tuple[int, ...]
    page_size: int = 16
    heads: Heads = field(default_factory=Heads)
    rotated_dims: int | None = None
    source: str | None = None
    values: bool = True
    tiny: bool = True


@dataclass(frozen=True, slots=True)
class RotateAttendCase:
    """A call of rotate_write_attend: one of attention, whose own tokens' keys and values are not in the cache yet.

    Attributes:
        attention: the rest of the call.
        rotated_dims: dimensions of a head that are rotated; None for all.
    """

    attention: AttentionCase
    rotated_dims: int | None = None

    @property
    def name(self) -> str:
        return self.attention.name

    @property
    def tiny(self) -> bool:
        return self.attention.tiny


@dataclass(frozen=True, slots=True)
class GroupedCase:
    """A call of grouped_matmul; a dtype of MATMUL_DTYPES, that of rows and weights, completes it.

    Attributes:
        sizes: of the groups.
        nobody: rows behind them; all NaN.
        inputs, outputs: I, O.
        result: dtype of the result; None for that of rows and weights.
        magnitude: of the rows.
        scheme: name of the weights', which are packed for native kernels unless it is "none".
        words: whether they lie in words instead, for a Hopper's kernel; "mxfp4" is then a scheme, too.
    """

    name: str
    sizes: tuple[int, ...]
    nobody: int = 0
    inputs: int = 64
    outputs: int = 128
    result: str | None = "float32"
    magnitude: float = 1.0
    scheme: str = "none"
    words: bool = False
    tiny: bool = False

    def arrays(self, dtype: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Rows, weights and group sizes; results are normal times 0.4 times the magnitude. The same ones every time."""
        rng = np.random.default_rng(sum(self.sizes))
        x = rng.standard_normal((sum(self.sizes) + self.nobody, self.inputs)) * self.magnitude
        x[sum(self.sizes) :] = np.nan
        weights = rng.standard_normal((len(self.sizes), self.inputs, self.outputs)) * (0.4 / self.inputs**0.5)
        return x.astype(jnp.dtype(dtype)), weights.astype(jnp.dtype(dtype)), np.asarray(self.sizes, np.int32)


@dataclass(frozen=True, slots=True)
class MatmulCase:
    """A call of matmul; a dtype of MATMUL_DTYPES completes it.

    Attributes:
        rows, inputs, outputs: T, I, O.
        layout, scheme: names of the matrix's.
        used: rows that are multiplied, the others being NaN; None for all.
    """

    name: str
    rows: int
    inputs: int
    outputs: int
    layout: str = "panels"
    scheme: str = "none"
    used: int | None = None
    tiny: bool = False

    def arrays(self, dtype: str) -> tuple[np.ndarray, np.ndarray]:
        """Rows and a plain matrix; results are normal times 0.4. The same ones every time."""
        rng = np.random.default_rng(self.rows + self.inputs)
        x = rng.standard_normal((self.rows, self.inputs))
        x[self.rows if self.used is None else self.used :] = np.nan
        matrix = rng.standard_normal((self.inputs, self.outputs)) * (0.4 / self.inputs**0.5)
        return x.astype(jnp.dtype(dtype)), matrix.astype(jnp.dtype(dtype))


_WINDOWED = (*MIXED, (1, 300), (4, 290))

ATTENTION_CASES = (
    AttentionCase("mixed"),
    AttentionCase("decodes", DECODES),
    AttentionCase("length 1", ((1, 1), (1, 1)), tokens=2, tiny=True),
    AttentionCase("page boundaries", ((1, 15), (1, 16), (1, 17), (1, 32)), tokens=4, tiny=True),
    AttentionCase("prefix hit", ((3, 19),), tiny=True),
    AttentionCase("empty rows", ((0, 0), (2, 5), (0, 0), (1, 18), (0, 0)), tiny=True),
    AttentionCase("nothing to do", ((0, 0), (0, 0)), tokens=8),
    AttentionCase("padding", tokens=64, padded_rows=16),
    AttentionCase("one token", ((1, 40),), tokens=1, tiny=True),
    # Nothing static tells a batch of decodes from this one.
    AttentionCase("tokens as rows", ((1, 9), (3, 20), (0, 0), (2, 2), (0, 0), (1, 30)), tokens=7, padded_rows=7),
    # Drafts to verify: rows of few queries among single ones.
    AttentionCase("several queries", ((1, 33), (2, 70), (3, 130), (0, 0), (4, 4), (1, 1)), tokens=16, padded_rows=8),
    AttentionCase("several queries, everything", ((2, 70), (1, 33), (3, 130), (5, 66)), options=EVERYTHING, sinks=SINKS),
    AttentionCase("every head its own", heads=Heads(4, 4, 64)),
    AttentionCase("one KV head", heads=Heads(6, 1, 64)),
    AttentionCase("odd group", heads=Heads(7, 1, 64)),
    AttentionCase("groups of 4", heads=Heads(8, 2, 64)),
    AttentionCase("head dim 80", heads=Heads(4, 2, 80)),
    AttentionCase("head dim 96", heads=Heads(4, 2, 96)),
    AttentionCase("head dim 128", heads=Heads(4, 2, 128)),
    AttentionCase("head dim 256", DECODES, heads=Heads(4, 2, 256)),
    AttentionCase("pages of 8", page_size=8),
    AttentionCase("pages of 32", page_size=32),
    AttentionCase("pages of 64", page_size=64),
    AttentionCase("window 1", _WINDOWED, options=replace(PLAIN, window=1)),
    AttentionCase("window 5", ((1, 40), (4, 29)), options=replace(PLAIN, window=5), tiny=True),
    AttentionCase("window of a page", _WINDOWED, options=replace(PLAIN, window=16)),
    AttentionCase("window never full", _WINDOWED, options=replace(PLAIN, window=1000)),
    AttentionCase("soft cap", magnitude=10.0, options=replace(PLAIN, soft_cap=5.0)),
    AttentionCase("sinks", sinks=SINKS),
    AttentionCase("everything", options=EVERYTHING, sinks=SINKS),
    # Heads of several KV heads are one tile of queries.
    AttentionCase(
        "shared tiles",
        ((1, 20), (0, 0), (1, 3)),
        heads=Heads(16, 4, 64),
        tokens=3,
        options=EVERYTHING,
        sinks=SINKS + SINKS[::-1] + SINKS * 2,
        tiny=True,
    ),
    AttentionCase("everything, decodes", ((1, 20), (1, 3)), tokens=2, options=EVERYTHING, sinks=SINKS, tiny=True),
    # More queries and keys than any block holds.
    AttentionCase("long chunks", ((300, 450), (1, 500), (131, 131)), heads=Heads(2, 1, 64)),
    AttentionCase("long contexts", ((1, 1500), (1, 700), (1, 31)), tokens=3, heads=Heads(2, 1, 64)),
    AttentionCase("denormal scores", magnitude=1e-38, key_magnitude=1e-6),
    AttentionCase("huge scores", magnitude=1e4, key_magnitude=1e3),
    AttentionCase("first layer", layers=3, layer=0),
    AttentionCase("bfloat16 scales", scale_dtype="bfloat16"),
    AttentionCase("latents", heads=Heads(4, 1, 48), options=replace(PLAIN, value_dim=32)),
    AttentionCase("latents, decodes", DECODES, tokens=5, heads=Heads(16, 1, 80), options=replace(PLAIN, value_dim=64)),
    AttentionCase("latents, as DeepSeek's", ((1, 17), (3, 70)), heads=Heads(16, 1, 576), page_size=64, options=LATENTS),
    AttentionCase("latents, unequal rows", ((1, 1500), (2, 31), (1, 700)), heads=Heads(8, 1, 96), options=SHORT_LATENTS),
    AttentionCase("latents, everything", heads=Heads(4, 2, 40), options=replace(EVERYTHING, value_dim=39), sinks=SINKS),
)

WRITE_CASES = (
    WriteCase("any slots", (16, 143, 31, 32, 77)),
    WriteCase("float32 source", (16, 143, 31), source="float32"),
    WriteCase("pages of 8", (8, 15, 43), page_size=8),
    WriteCase("pages of 32", (32, 63, 163), page_size=32),
    WriteCase("padding", (0, 50, 0, 51, 0, 0)),
    WriteCase("one token", (100,)),
    WriteCase("only padding", (0, 0)),
    WriteCase("a long chunk", (*range(16, 144), 0, 0), tiny=False),
    WriteCase("head dim 80", (16, 40), head_dim=80),
    WriteCase("head dim 128", (16, 40), kv_heads=8, head_dim=128),
    WriteCase("bfloat16 scales", (16, 143, 31), scale_dtype="bfloat16"),
    WriteCase("zeros", (16, 143, 31), zeros=True),
    WriteCase("denormal", (16, 143, 31), magnitude=1e-40),
    WriteCase("small, bfloat16 scales", (16, 143, 31), scale_dtype="bfloat16", magnitude=1e-30),
    WriteCase("large", (16, 143, 31), magnitude=1e4),
    WriteCase("latents", (16, 0, 143, 31, 0), kv_heads=1, head_dim=80, values=False, tiny=False),
)

ROTATE_CASES = (
    RotateCase("any slots", (16, 143, 31, 32, 77)),
    RotateCase("other source", (16, 143, 31), source="float32"),
    RotateCase("other cache", (16, 143, 31), source="bfloat16"),
    RotateCase("pages of 8", (8, 15, 43), page_size=8),
    RotateCase("padding", (0, 50, 0, 51, 0, 0)),
    RotateCase("only padding", (0, 0)),
    RotateCase("one token", (100,)),
    RotateCase("a long chunk", (*range(16, 144), 0, 0), tiny=False),
    RotateCase("head dim 32", (16, 40), heads=Heads(4, 2, 32)),
    RotateCase("head dim 80", (16, 40), heads=Heads(4, 2, 80), tiny=False),
    RotateCase("head dim 128", (16, 40), heads=Heads(8, 8, 128)),
    RotateCase("head dim 256", (16, 40), heads=Heads(4, 1, 256)),
    RotateCase("many heads", (16, 40), heads=Heads(64, 8, 64)),
    RotateCase("some dimensions", (16, 0, 40), heads=Heads(4, 2, 96), rotated_dims=64),
    RotateCase("a few dimensions", (16, 0, 40), rotated_dims=6, tiny=False),
    RotateCase("keys alone", (16, 0, 143, 31, 0), heads=Heads(4, 1, 64), values=False, tiny=False),
)

_DECODING = Heads(8, 2, 64)

ROTATE_ATTEND_CASES = (
    # The first key of a page and of a block of keys, the last one, a row without queries, padding.
    RotateAttendCase(
        AttentionCase(
            "decodes",
            ((1, 1), (1, 16), (1, 17), (0, 0), (1, 64), (1, 65), (1, 200)),
            tokens=7,
            padded_rows=7,
            heads=_DECODING,
            tiny=True,
        )
    ),
    RotateAttendCase(
        AttentionCase(
            "everything",
            ((1, 20), (1, 3), (1, 65)),
            tokens=3,
            heads=Heads(16, 4, 64),
            options=EVERYTHING,
            sinks=SINKS + SINKS[::-1] + SINKS * 2,
            tiny=True,
        ),
        rotated_dims=32,
    ),
    RotateAttendCase(AttentionCase("odd group", ((1, 9), (1, 70)), tokens=2, heads=Heads(7, 1, 32), page_size=8, tiny=True)),
    RotateAttendCase(
        AttentionCase("window 1", ((1, 40), (1, 64)), tokens=2, heads=_DECODING, options=replace(PLAIN, window=1), tiny=True)
    ),
    RotateAttendCase(
        AttentionCase("head dim 256", ((1, 17), (1, 130)), tokens=2, heads=Heads(8, 1, 256), page_size=64, tiny=True)
    ),
    # More workers than rows, more blocks of keys than slots.
    RotateAttendCase(AttentionCase("a row in parts", ((1, 900),), tokens=1, heads=Heads(8, 1, 96), page_size=32, tiny=True)),
    # Keys of a row's earlier tokens are not in the cache either.
    RotateAttendCase(
        AttentionCase(
            "tokens as rows",
            ((1, 9), (3, 20), (0, 0), (2, 2), (1, 30)),
            tokens=7,
            padded_rows=7,
            heads=_DECODING,
            options=replace(PLAIN, window=18),
            tiny=True,
        )
    ),
    RotateAttendCase(AttentionCase("mixed", heads=_DECODING)),
    RotateAttendCase(AttentionCase("padding", tokens=64, padded_rows=16)),
    RotateAttendCase(AttentionCase("one KV head", DECODES, tokens=5, heads=Heads(16, 1, 128))),
    RotateAttendCase(AttentionCase("some dimensions", DECODES, tokens=5, heads=Heads(24, 8, 128)), rotated_dims=96),
    RotateAttendCase(AttentionCase("first layer", DECODES, tokens=5, heads=_DECODING, layers=3, layer=0)),
)

GROUPED_CASES = (
    GroupedCase("mixed", (5, 0, 130, 1, 17, 64), nobody=7),
    GroupedCase("result of the dtype", (5, 0, 12, 1), result=None, tiny=True),
    GroupedCase("one group has all", (0, 0, 40, 0), tiny=True),
    GroupedCase("one group", (19,), nobody=3, tiny=True),
    GroupedCase("groups of one row", (1, 1, 1, 0, 1, 1, 1, 1), tiny=True),
    GroupedCase("one row", (0, 0, 1, 0)),
    GroupedCase("one row of nobody", (0, 0, 0), nobody=1),
    GroupedCase("only nobody", (0, 0, 0), nobody=20, tiny=True),
    GroupedCase("mostly nobody", (3, 0, 2), nobody=300),
    GroupedCase("ends of blocks", (8, 16, 63, 64, 65, 127, 128, 129)),
    GroupedCase("more groups than rows", tuple(int(group % 7 == 3) for group in range(40)), nobody=2),
    GroupedCase("odd widths", (5, 0, 23, 2), nobody=3, inputs=37, outputs=51),
    GroupedCase("width 1", (5, 0, 23, 2), inputs=1, outputs=1),
    GroupedCase("wide", (9, 30, 1), nobody=2, inputs=512, outputs=384),
    GroupedCase("small", (5, 0, 23, 2), magnitude=1e-30),
    GroupedCase("int8: mixed", (5, 0, 130, 1, 17, 64), nobody=7, scheme="int8"),
    GroupedCase("int8: odd widths", (5, 0, 23, 2), nobody=3, inputs=37, outputs=51, scheme="int8"),
    GroupedCase("int8: width 1", (5, 0, 23, 2), inputs=1, outputs=1, scheme="int8"),
    GroupedCase("int8: result of the dtype", (1, 0, 1), nobody=9, result=None, scheme="int8"),
    GroupedCase("int8: deep", (3, 9), inputs=2059, outputs=72, scheme="int8"),
    GroupedCase("w8a8: mixed", (5, 0, 30, 1, 7), nobody=7, scheme="w8a8"),
    GroupedCase("w8a8: odd widths", (5, 0, 23, 2), nobody=3, inputs=37, outputs=51, scheme="w8a8"),
    GroupedCase("fp8: mixed", (5, 0, 130, 1, 17, 64), nobody=7, scheme="fp8_weight"),
    GroupedCase("fp8: odd widths", (5, 0, 23, 2), nobody=3, inputs=37, outputs=51, scheme="fp8_weight"),
    GroupedCase("int4: mixed", (5, 0, 130, 1, 17, 64), nobody=7, scheme="int4"),
    GroupedCase("int4: a last panel that is narrower", (5, 0, 3, 2), nobody=3, inputs=96, outputs=70, scheme="int4"),
    GroupedCase("int4: only nobody", (0, 0, 0), nobody=20, scheme="int4"),
    # More steps than a ring has slots, two warpgroups beside each other.
    GroupedCase(
        "words: int8", (5, 0, 12, 1), nobody=3, inputs=1280, outputs=128, result=None, scheme="int8", words=True, tiny=True
    ),
    # Groups of several tiles.
    GroupedCase("words: FP8", (70, 0, 19), nobody=7, inputs=256, outputs=192, scheme="fp8_weight", words=True, tiny=True),
    # Inputs that end within a block, half of its groups of 64 or three of its four of 32.
    GroupedCase("words: int4", (5, 0, 23, 2), nobody=3, inputs=192, outputs=64, scheme="int4", words=True, tiny=True),
    GroupedCase("words: MXFP4", (9, 30, 1), nobody=2, inputs=352, outputs=64, scheme="mxfp4", words=True, tiny=True),
    GroupedCase("words: only nobody", (0, 0, 0), nobody=20, inputs=128, outputs=64, scheme="int8", words=True, tiny=True),
    GroupedCase("words: wide", (130, 0, 64, 1, 300), nobody=5, inputs=768, outputs=2048, scheme="fp8_weight", words=True),
)

MATMUL_CASES = (
    MatmulCase("plain", 5, 64, 128, layout="plain"),
    MatmulCase("one of each", 1, 1, 1),
    MatmulCase("one row", 1, 128, 192),
    MatmulCase("two rows", 2, 128, 128),
    MatmulCase("a tile and a row", 7, 128, 64),
    MatmulCase("many rows", 67, 64, 128),
    MatmulCase("odd", 3, 37, 51),
    MatmulCase("odd, more than a panel", 13, 129, 133),
    MatmulCase("a block and a lane", 4, 64, 65),
    MatmulCase("a block less a lane", 4, 63, 63),
    # More inputs than any cache block has, and an odd number of them.
    MatmulCase("deep", 9, 4101, 72),
    MatmulCase("padded", 13, 37, 133, used=7),
    MatmulCase("padded, shared between threads", 70, 129, 133, used=35),
    MatmulCase("padding alone", 3, 64, 128, used=0),
    MatmulCase("rows: one of each", 1, 1, 1, layout="rows"),
    MatmulCase("rows: odd", 13, 37, 51, layout="rows"),
    MatmulCase("rows: wide", 6, 128, 199, layout="rows"),
    MatmulCase("rows: many", 35, 65, 64, layout="rows"),
    MatmulCase("rows: padded", 9, 37, 131, layout="rows", used=4),
    MatmulCase("int8: one of each", 1, 1, 1, scheme="int8"),
    MatmulCase("int8: one row", 1, 128, 192, scheme="int8"),
    MatmulCase("int8: a tile", 4, 72, 64, scheme="int8"),
    MatmulCase("int8: a tile and a row", 5, 64, 128, scheme="int8"),
    MatmulCase("int8: one input more", 3, 65, 64, scheme="int8"),
    MatmulCase("int8: two inputs more", 2, 66, 70, scheme="int8"),
    MatmulCase("int8: odd, more than a panel", 13, 131, 133, scheme="int8"),
    MatmulCase("int8: less than a word", 9, 3, 51, scheme="int8"),
    MatmulCase("int8: deep", 9, 2059, 72, scheme="int8"),
    MatmulCase("int8: padded, shared between threads", 70, 129, 133, scheme="int8", used=35),
    MatmulCase("int8: padding alone", 3, 64, 128, scheme="int8", used=0),
    MatmulCase("fp8: one of each", 1, 1, 1, scheme="fp8_weight"),
    MatmulCase("fp8: one row", 1, 128, 192, scheme="fp8_weight"),
    MatmulCase("fp8: odd, more than a panel", 13, 131, 133, scheme="fp8_weight"),
    MatmulCase("fp8: deep", 9, 2059, 72, scheme="fp8_weight"),
    MatmulCase("fp8: padded, shared between threads", 70, 129, 133, scheme="fp8_weight", used=35),
    MatmulCase("int8: plain", 9, 131, 133, layout="plain", scheme="int8"),
    MatmulCase("words: one row", 1, 128, 64, layout="words", scheme="int8", tiny=True),
    # More steps than there are slots of a ring.
    MatmulCase("words: deep", 9, 2304, 128, layout="words", scheme="int8", tiny=True),
    MatmulCase("words: three tiles of 64 outputs", 33, 256, 192, layout="words", scheme="int8"),
    MatmulCase("words: codes", 9, 1280, 128, layout="words", scheme="int4", tiny=True),
    MatmulCase("words: a last tile that begins earlier", 9, 256, 96, layout="words", scheme="int8", tiny=True),
    MatmulCase("words: codes, no whole tiles", 9, 256, 200, layout="words", scheme="int4"),
    MatmulCase("words: two tiles of rows", 150, 256, 256, layout="words", scheme="int8"),
)
