"""The shape of a decoder as far as memory and arithmetic go: dense or mixture of experts, grouped-query or latent attention."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from jaxserve.models.config import Experts, Fed, Heads
from jaxserve.models.latent import Latent
from jaxserve.models.recurrent import Recurrent

Weight = Callable[[Heads], int]
Split = Literal["tensor", "none"] | int


@dataclass(frozen=True, slots=True)
class Part:
    """Weights that are stored and split alike.

    Attributes:
        name: what they are.
        count: number of weights, of all layers together.
        split: over all devices, over at most so many (as there are KV heads), or a copy on each.
        quantized: whether they take the weight format; embeddings, logits, norms, routers and biases keep their own.
        use: read at every step, a row a token (embedding), or by the tokens sent there (routed experts).
        multiplied: whether they are a matrix that tokens are multiplied with.
        bits: of one of them, where they do not take the weight format.
        rows: of a table, whose rows are padded so that each device has as many; None of what divides evenly.
        scales: one for each output, of matrices that --quantization rounds; none of what it does not.
        matrices: what those are: how many weights have how many inputs.
    """

    name: str
    count: int
    split: Split = "tensor"
    quantized: bool = True
    use: Literal["step", "row", "routed", "last"] = "step"
    multiplied: bool = True
    bits: int = 16
    rows: int | None = None
    scales: tuple[Part, ...] = ()
    matrices: tuple[tuple[int, int], ...] = ()

    def on_device(self, tp: int) -> float:
        """Number of these weights on each of `tp` devices."""
        if self.rows is not None:
            return -(-self.rows // tp) * (self.count // self.rows)
        if isinstance(self.split, int):
            return self.count / min(tp, self.split)
        return self.count / {"tensor": tp, "none": 1}[self.split]


@dataclass(frozen=True, kw_only=True)
class ModelShape:
    """A decoder-only transformer.

    Attributes:
        name: for people.
        nominal_billions: size in the model's name, 1e9 weights; None if it has none.
        vocab_size, hidden_size, num_heads, num_kv_heads, head_dim, ffn_size: V, E, H, K, D, F.
        windows: one entry a layer that has attention: how many of the latest positions a token sees; None for all.
        max_position_embeddings: longest context, tokens.
        tie_embeddings: the logits use the embedding table.
        qkv_bias, output_bias, mlp_bias: which projections add a bias (mlp_bias: the experts' too).
        norms: of all layers together, and the last one: how many weights they have.
        heads_norms: whether queries and keys have norms over all heads, which are split as the heads are.
        sinks: one learned attention sink a head.
        experts, latent: as in DecoderConfig; None for a dense MLP and for grouped-query attention.
        fed: of a draft head, as in DecoderConfig; None of a model.
        recurrent, output_gate: as in DecoderConfig.
        heads, kv_sources, gated, ffn_sizes, layer_input, layer_scales: as in DecoderConfig.
    """

    name: str
    nominal_billions: float | None
    vocab_size: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    ffn_size: int
    windows: tuple[int | None, ...]
    max_position_embeddings: int
    tie_embeddings: bool
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
    norms: int
    heads_norms: bool
    sinks: bool
    experts: Experts | None
    latent: Latent | None
    fed: Fed | None = None
    recurrent: Recurrent | None = None
    output_gate: bool = False
    heads: tuple[Heads, ...] = ()
    kv_sources: tuple[int, ...] = ()
    gated: bool = True
    ffn_sizes: tuple[int, ...] = ()
    layer_input: int = 0
    layer_scales: bool = False

    @property
    def num_layers(self) -> int:
        return self.attending_layers + self.recurrent_layers

    @property
    def attending_layers(self) -> int:
        """Those that have attention."""
        return len(self.windows)

    @property
    def recurrent_layers(self) -> int:
        """Those that keep a state of fixed size instead."""
        return 0 if self.recurrent is None else sum(self.recurrent.layers)

    @property
    def usual_heads(self) -> Heads:
        """Of every layer, but for those that `heads` says otherwise of."""
        return Heads(kv_heads=self.num_kv_heads, head_dim=self.head_dim)

    @property
    def layer_heads(self) -> tuple[Heads, ...]:
        """Of each layer that has attention."""
        return self.heads or (self.usual_heads,) * len(self.windows)

    @property
    def kept(self) -> tuple[bool, ...]:
        """Whether each of them has keys and values of its own."""
        return tuple(not self.kv_sources or self.kv_sources[layer] == layer for layer in range(len(self.windows)))

    @property
    def cache_windows(self) -> tuple[int | None, ...]:
        """Of the layers that have."""
        return tuple(window for window, kept in zip(self.windows, self.kept, strict=True) if kept)

    @property
    def dense_layers(self) -> int:
        return sum(self.dense_sizes.values())

    @property
    def dense_sizes(self) -> Mapping[int, int]:
        """F of the layers that have an MLP and no experts, and how many have it."""
        sparse = self.experts.layers if self.experts else (False,) * self.num_layers
        sizes = self.ffn_sizes or (self.ffn_size,) * self.num_layers
        return Counter(size for size, has_experts in zip(sizes, sparse, strict=True) if size and not has_experts)

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        """Every weight, by how it is stored and split."""
        table = self.vocab_size * self.hidden_size
        use: Literal["row", "last"] = "last" if self.tie_embeddings else "row"
        embedding = Part("embedding", table, quantized=False, use=use, rows=self.vocab_size)
        choices = self.vocab_size if self.fed is None else self.fed.vocab_size
        logits = choices * self.hidden_size
        scales = (Part("scales", choices, bits=32, rows=choices),)
        matrices = ((logits, self.hidden_size),)
        untied = Part("logits", logits, quantized=False, use="last", rows=choices, scales=scales, matrices=matrices)
        head = () if self.tie_embeddings else (untied,)
        layers = (*self._attention(), *self._recurrent(), *self._mlp(), *self._layer_inputs())
        parts = (embedding, *head, *self._entry(), *layers, *self._norms())
        return tuple(part for part in parts if part.count)

    @cached_property
    def num_parameters(self) -> int:
        """Number of weights; a tied table counts once."""
        return sum(part.count for part in self.parts)

    @cached_property
    def num_active(self) -> int:
        """Number of weights that one token is multiplied with; a row of the embedding table is no multiplication."""
        return round(sum(part.count * self.touched(part, 1) for part in self.parts if part.use != "row"))

    def touched(self, part: Part, tokens: int) -> float:
        """Expected share of a part that a step over `tokens` tokens reads, if experts are drawn evenly and apart."""
        if part.use != "routed" or self.experts is None:
            return 1.0
        return 1.0 - (1.0 - self.experts.active / self.experts.count) ** tokens

    def _entry(self) -> tuple[Part, ...]:
        """What a draft head makes of its target's hidden states, and the norm of the embeddings beside them."""
        if self.fed is None:
            return ()
        embed = self.hidden_size
        return (
            Part("entry", self.fed.size * embed, "none", False),
            Part("norm of embeddings", embed, "none", False, multiplied=False),
        )

    def _attention(self) -> tuple[Part, ...]:
        embed, layers, heads = self.hidden_size, self.attending_layers, self.num_heads
        inputs = embed if self.fed is None else 2 * embed
        if self.latent:
            mla = self.latent
            rank, query = mla.query_rank or 0, heads * (mla.nope_dim + mla.rope_dim)
            down = embed * (mla.key_dim + rank)
            absorbed = mla.kv_rank * heads * (mla.nope_dim + mla.value_dim)
            width = layers * (mla.key_dim + rank)
            values = heads * mla.value_dim
            outer = ((layers * (rank or embed) * query, rank or embed), (layers * values * embed, values))
            return (
                _matrices("attention", outer, _scales(layers * query, layers * embed)),
                Part("absorbed projections", layers * absorbed),
                _matrices("latent projections", ((layers * down, embed),), (Part("scales", width, "none", bits=32),), "none"),
                *self._indexer(rank or embed),
            )
        kinds = Counter(zip(self.layer_heads, self.kept, strict=True))
        gate = 1 + self.output_gate
        gated = gate * sum(count * heads * kind.head_dim for (kind, _), count in kinds.items())
        return (
            _matrices(
                "attention",
                tuple(
                    matrix
                    for (kind, _), count in kinds.items()
                    for matrix in _there_and_back(inputs, count * heads * kind.head_dim, heads * kind.head_dim, embed, gate)
                ),
                _scales(gated, layers * embed),
            ),
            *(self._keys_and_values(inputs, kind, count) for (kind, kept), count in kinds.items() if kept),
            Part("query biases", self.qkv_bias * gated, quantized=False, multiplied=False),
            *(
                Part("key and value biases", count * self.qkv_bias * kind.columns, kind.kv_heads, False, multiplied=False)
                for (kind, kept), count in kinds.items()
                if kept
            ),
            Part("output biases", layers * self.output_bias * embed, "none", False, multiplied=False),
            Part("sinks", layers * self.sinks * heads, quantized=False, multiplied=False),
        )

    def _indexer(self, rank: int) -> tuple[Part, ...]:
        """What chooses the tokens that attention sees, from queries' latents of `rank`: every device has all of it."""
        if self.latent is None or self.latent.indexer is None:
            return ()
        indexer, embed, layers = self.latent.indexer, self.hidden_size, sum(self.latent.indexer.layers)
        queries = layers * indexer.heads * indexer.dim
        keys = layers * indexer.dim
        scales = (Part("scales", queries + keys, "none", bits=32),)
        return (
            _matrices("indexers", ((queries * rank, rank), (keys * embed, embed)), scales, "none"),
            Part("weights of indexers' heads", layers * embed * indexer.heads, "none", False),
        )

    def _keys_and_values(self, inputs: int, heads: Heads, layers: int) -> Part:
        columns = layers * heads.columns
        scales = (Part("scales", columns, heads.kv_heads, bits=32),)
        return _matrices("keys and values", ((inputs * columns, inputs),), scales, heads.kv_heads)

    def _recurrent(self) -> tuple[Part, ...]:
        if self.recurrent is None:
            return ()
        net, embed, layers = self.recurrent, self.hidden_size, self.recurrent_layers
        shared, heads = net.shared_columns
        taps = layers * (net.width + net.conv_bias)
        outer = ((layers * embed * net.columns, embed), (layers * net.values * embed, net.values))
        scales = (Part("scales", layers * shared, heads, bits=32),)
        return (
            _matrices("recurrent", outer, _scales(layers * net.columns, layers * embed)),
            _matrices("keys and queries of states", ((layers * embed * shared, embed),), scales, heads),
            Part("gates of states", layers * embed * net.gates, quantized=False),
            Part("convolutions", taps * (net.channels - shared), quantized=False, multiplied=False),
            Part("convolutions of keys and queries", taps * shared, heads, False, multiplied=False),
            Part("decays", layers * net.numbers, quantized=False, multiplied=False, bits=32),
        )

    def state_bytes(self, activation_bytes: int, tp: int | None = None) -> int:
        """Bytes of one sequence's recurrent states, in all or on one of `tp` devices: float32, but the convolutions' inputs."""
        if self.recurrent is None:
            return 0
        net, devices = self.recurrent, tp or 1
        inputs, memory = (net.width - 1) * net.held_channels(devices), math.prod(net.state)
        return self.recurrent_layers * (activation_bytes * inputs + 4 * memory) // devices

    def _mlp(self) -> tuple[Part, ...]:
        embed, moe, sizes = self.hidden_size, self.experts, self.dense_sizes
        dense_width = sum(layers * ffn for ffn, layers in sizes.items())
        dense = (
            *(self._mlps("mlp", layers, ffn) for ffn, layers in sizes.items()),
            Part("gate and up biases", self.mlp_bias * (1 + self.gated) * dense_width, quantized=False, multiplied=False),
            Part("down biases", self.mlp_bias * self.dense_layers * embed, "none", False, multiplied=False),
        )
        if moe is None:
            return dense
        layers, routing = sum(moe.layers), moe.routing
        each = layers * moe.count
        biased, inner, width = each * self.mlp_bias, 1 + self.gated, moe.latent_size or embed
        return (
            *dense,
            Part("routed experts", each * (inner + 1) * width * moe.ffn_size, use="routed"),
            self._expert_latents(layers, moe.latent_size),
            self._mlps("shared expert", layers, moe.shared_ffn_size),
            Part("router", layers * embed * (moe.count + moe.shared_gate), "none", False),
            Part("router scales", layers * routing.scaled * (embed + moe.count), "none", False, multiplied=False),
            Part("router corrections", each * routing.correction, "none", False, multiplied=False, bits=32),
            Part("router biases", each * routing.bias, "none", False, multiplied=False),
            Part("experts' gate and up biases", biased * inner * moe.ffn_size, quantized=False, use="routed", multiplied=False),
            Part("experts' down biases", biased * embed, "none", False, "routed", multiplied=False),
        )

    def _expert_latents(self, layers: int, width: int) -> Part:
        embed = self.hidden_size
        matrices = ((layers * embed * width, embed), (layers * width * embed, width))
        return _matrices("expert latents", matrices, (Part("scales", layers * (width + embed), "none", bits=32),), "none")

    def _mlps(self, name: str, layers: int, ffn: int) -> Part:
        embed, width = self.hidden_size, (1 + self.gated) * layers * ffn
        matrices = ((embed * width, embed), (layers * ffn * embed, ffn))
        return _matrices(name, matrices, _scales(width, layers * embed))

    def _norms(self) -> tuple[Part, ...]:
        queries, keys = (
            self.heads_norms * self.attending_layers * heads * self.head_dim for heads in (self.num_heads, self.num_kv_heads)
        )
        states = 0 if self.recurrent is None else self.recurrent_layers * self.recurrent.divided_norms
        return (
            Part("norms", self.norms - queries - keys - states, "none", False, multiplied=False),
            Part("norms of states", states, quantized=False, multiplied=False),
            Part("norms of queries", queries, quantized=False, multiplied=False),
            Part("norms of keys", keys, self.num_kv_heads, False, multiplied=False),
            Part("layer scales", self.layer_scales * self.num_layers, "none", False, multiplied=False),
        )

    def _layer_inputs(self) -> tuple[Part, ...]:
        """What every layer is given of a token besides, and makes of it."""
        if not self.layer_input:
            return ()
        embed, size = self.hidden_size, self.layer_input
        width = self.num_layers * size
        table, scales = self.vocab_size * width, (Part("scales", width, "none", bits=32),)
        return (
            Part("embeddings of layers", table, quantized=False, use="row", rows=self.vocab_size),
            _matrices("projection to layers", ((embed * width, embed),), scales, "none"),
            _matrices("inputs of layers", _there_and_back(embed, width, size, embed), _scales(width, self.num_layers * embed)),
        )

    def kv_values(self, tp: int | None = None) -> int:
        """Values that one layer's cache holds per token: in all, or on one of `tp` devices.

        A device holds at least one KV head, so heads are copied when tp > K; a latent is whole on every device. Of layers that
        differ, every one has room for what the largest needs.
        """
        if self.latent:
            return self.latent.cached
        return max(heads.head_dim * _vectors(heads, tp) for heads in self.layer_heads)

    def kv_vectors(self, tp: int | None = None) -> int:
        """The vectors that those values are: a key and a value of each KV head, or one latent."""
        return 1 if self.latent else max(_vectors(heads, tp) for heads in self.layer_heads)

    def read_values(self, heads: Heads, tp: int) -> int:
        """Values of a token on one device that a layer with such heads reads."""
        return self.kv_values(tp) if self.latent else heads.head_dim * _vectors(heads, tp)

    def held(self, context: int) -> int:
        """Positions that the cache has of a request of `context` tokens, summed over the layers with keys and values."""
        return sum(min(context, window or context) for window in self.cache_windows)

    def seen(self, context: int, weight: Weight | None = None) -> int:
        """Positions that a token at the end of `context` tokens sees, summed over layers, which count as their heads weigh."""
        return self._summed(lambda window: min(context, window or context), weight)

    def seen_by_all(self, prompt: int, weight: Weight | None = None) -> int:
        """Positions that the tokens of a prompt see, summed over tokens and layers."""

        def seen(window: int | None) -> int:
            short = min(prompt, window or prompt)  # tokens that see all that came before them
            return short * (short + 1) // 2 + (prompt - short) * short

        return self._summed(seen, weight)

    def _summed(self, count: Callable[[int | None], int], weight: Weight | None) -> int:
        if weight is None:
            return sum(map(count, self.windows))
        kinds = Counter(zip(self.windows, self.layer_heads, strict=True))
        return sum(layers * count(window) * weight(heads) for (window, heads), layers in kinds.items())

    def attention_flops(self, heads: Heads | None = None, *, decode: bool) -> int:
        """FLOPs of all heads for one token to see one position in one layer (scores and values; 2 a multiply-add).

        Latent attention decodes in the latent's space, which costs FLOPs and saves the bytes of per-head keys and values.
        """
        if self.latent is None:
            return 4 * self.num_heads * (heads or self.usual_heads).head_dim
        mla = self.latent
        scores, values = (mla.kv_rank, mla.kv_rank) if decode else (mla.nope_dim, mla.value_dim)
        return 2 * self.num_heads * (scores + mla.rope_dim + values)


def _vectors(heads: Heads, tp: int | None) -> int:
    """A key and a value of each KV head, of all or of those on one of `tp` devices."""
    return 2 * (-(-heads.kv_heads // tp) if tp else heads.kv_heads)


def _there_and_back(
    inputs: int, columns: int, width: int, outputs: int, there: int = 1
) -> tuple[tuple[int, int], tuple[int, int]]:
    """A matrix to `there` times so many columns, in all layers, and one from so many: `width` of them are in one layer."""
    return (there * inputs * columns, inputs), (columns * outputs, width)


def _matrices(name: str, matrices: tuple[tuple[int, int], ...], scales: tuple[Part, ...], split: Split = "tensor") -> Part:
    """Matrices that --quantization rounds: weights and inputs of each."""
    return Part(name, sum(count for count, _ in matrices), split, scales=scales, matrices=matrices)


def _scales(columns: int, rows: int) -> tuple[Part, ...]:
    """Of a matrix whose outputs are divided, and of the next, whose inputs are: each device has all of its outputs."""
    return (Part("scales", columns, bits=32), Part("scales", rows, "none", bits=32))
