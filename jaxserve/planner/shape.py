"""The shape of a decoder as far as memory and arithmetic go: dense or mixture of experts, grouped-query or latent attention."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from jaxserve.models.config import Experts, Fed, Latent

Split = Literal["tensor", "kv_heads", "none"]


@dataclass(frozen=True, slots=True)
class Part:
    """Weights that are stored and split alike.

    Attributes:
        name: what they are.
        count: number of weights, of all layers together.
        split: over all devices, over at most as many as there are KV heads, or a copy on each.
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

    def on_device(self, tp: int, kv_heads: int) -> float:
        """Number of these weights on each of `tp` devices."""
        if self.rows is not None:
            return -(-self.rows // tp) * (self.count // self.rows)
        return self.count / {"tensor": tp, "kv_heads": min(tp, kv_heads), "none": 1}[self.split]


@dataclass(frozen=True, kw_only=True)
class ModelShape:
    """A decoder-only transformer with a gated MLP.

    Attributes:
        name: for people.
        nominal_billions: size in the model's name, 1e9 weights; None if it has none.
        vocab_size, hidden_size, num_heads, num_kv_heads, head_dim, ffn_size: V, E, H, K, D, F.
        windows: one entry a layer: how many of the latest positions a token sees; None for all.
        max_position_embeddings: longest context, tokens.
        tie_embeddings: the logits use the embedding table.
        qkv_bias, output_bias, mlp_bias: which projections add a bias (mlp_bias: the experts' too).
        norms: of all layers together, and the last one: how many weights they have.
        heads_norms: whether queries and keys have norms over all heads, which are split as the heads are.
        sinks: one learned attention sink a head.
        experts, latent: as in DecoderConfig; None for a dense MLP and for grouped-query attention.
        fed: of a draft head, as in DecoderConfig; None of a model.
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

    @property
    def num_layers(self) -> int:
        return len(self.windows)

    @property
    def dense_layers(self) -> int:
        return self.num_layers - (sum(self.experts.layers) if self.experts else 0)

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
        parts = (embedding, *head, *self._entry(), *self._attention(), *self._mlp(), *self._norms())
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
        embed, layers, heads = self.hidden_size, self.num_layers, self.num_heads
        inputs = embed if self.fed is None else 2 * embed
        if self.latent:
            mla = self.latent
            rank, query = mla.query_rank or 0, heads * (mla.nope_dim + mla.rope_dim)
            down = embed * (mla.kv_rank + mla.rope_dim) + embed * rank
            absorbed = mla.kv_rank * heads * (mla.nope_dim + mla.value_dim)
            width = layers * (mla.kv_rank + mla.rope_dim + rank)
            values = heads * mla.value_dim
            outer = ((layers * (rank or embed) * query, rank or embed), (layers * values * embed, values))
            return (
                _matrices("attention", outer, _scales(layers * query, layers * embed)),
                Part("absorbed projections", layers * absorbed),
                _matrices("latent projections", ((layers * down, embed),), (Part("scales", width, "none", bits=32),), "none"),
            )
        query, kv = heads * self.head_dim, 2 * self.num_kv_heads * self.head_dim
        return (
            _matrices(
                "attention",
                ((layers * inputs * query, inputs), (layers * query * embed, query)),
                _scales(layers * query, layers * embed),
            ),
            _matrices(
                "keys and values",
                ((layers * inputs * kv, inputs),),
                (Part("scales", layers * kv, "kv_heads", bits=32),),
                "kv_heads",
            ),
            Part("query biases", layers * self.qkv_bias * query, quantized=False, multiplied=False),
            Part("key and value biases", layers * self.qkv_bias * kv, "kv_heads", False, multiplied=False),
            Part("output biases", layers * self.output_bias * embed, "none", False, multiplied=False),
            Part("sinks", layers * self.sinks * heads, quantized=False, multiplied=False),
        )

    def _mlp(self) -> tuple[Part, ...]:
        embed, moe, biased = self.hidden_size, self.experts, self.mlp_bias * self.dense_layers
        dense = (
            self._gated_mlp("mlp", self.dense_layers, self.ffn_size),
            Part("gate and up biases", biased * 2 * self.ffn_size, quantized=False, multiplied=False),
            Part("down biases", biased * embed, "none", False, multiplied=False),
        )
        if moe is None:
            return dense
        layers, routing = sum(moe.layers), moe.routing
        each = layers * moe.count
        biased = each * self.mlp_bias
        return (
            *dense,
            Part("routed experts", each * 3 * embed * moe.ffn_size, use="routed"),
            self._gated_mlp("shared expert", layers, moe.shared_ffn_size),
            Part("router", layers * embed * (moe.count + moe.shared_gate), "none", False),
            Part("router corrections", each * routing.correction, "none", False, multiplied=False, bits=32),
            Part("router biases", each * routing.bias, "none", False, multiplied=False),
            Part("experts' gate and up biases", biased * 2 * moe.ffn_size, quantized=False, use="routed", multiplied=False),
            Part("experts' down biases", biased * embed, "none", False, "routed", multiplied=False),
        )

    def _gated_mlp(self, name: str, layers: int, ffn: int) -> Part:
        embed = self.hidden_size
        matrices = ((layers * 2 * embed * ffn, embed), (layers * ffn * embed, ffn))
        return _matrices(name, matrices, _scales(layers * 2 * ffn, layers * embed))

    def _norms(self) -> tuple[Part, ...]:
        queries, keys = (
            self.heads_norms * self.num_layers * heads * self.head_dim for heads in (self.num_heads, self.num_kv_heads)
        )
        return (
            Part("norms", self.norms - queries - keys, "none", False, multiplied=False),
            Part("norms of queries", queries, quantized=False, multiplied=False),
            Part("norms of keys", keys, "kv_heads", False, multiplied=False),
        )

    def kv_values(self, tp: int | None = None) -> int:
        """Values that one layer's cache holds per token: in all, or on one of `tp` devices.

        A device holds at least one KV head, so heads are copied when tp > K; a latent is whole on every device.
        """
        dim = self.latent.kv_rank + self.latent.rope_dim if self.latent else self.head_dim
        return dim * self.kv_vectors(tp)

    def kv_vectors(self, tp: int | None = None) -> int:
        """The vectors that those values are: a key and a value of each KV head, or one latent."""
        if self.latent:
            return 1
        return 2 * (-(-self.num_kv_heads // tp) if tp else self.num_kv_heads)

    def seen(self, context: int) -> int:
        """Positions that a token at the end of `context` tokens sees, summed over layers."""
        return sum(min(context, window or context) for window in self.windows)

    def seen_by_all(self, prompt: int) -> int:
        """Positions that the tokens of a prompt see, summed over tokens and layers."""
        total = 0
        for window in self.windows:
            short = min(prompt, window or prompt)  # tokens that see all that came before them
            total += short * (short + 1) // 2 + (prompt - short) * short
        return total

    def attention_flops(self, *, decode: bool) -> int:
        """FLOPs of all heads for one token to see one position in one layer (scores and values; 2 a multiply-add).

        Latent attention decodes in the latent's space, which costs FLOPs and saves the bytes of per-head keys and values.
        """
        if self.latent is None:
            return 4 * self.num_heads * self.head_dim
        mla = self.latent
        scores, values = (mla.kv_rank, mla.kv_rank) if decode else (mla.nope_dim, mla.value_dim)
        return 2 * self.num_heads * (scores + mla.rope_dim + values)


def _matrices(name: str, matrices: tuple[tuple[int, int], ...], scales: tuple[Part, ...], split: Split = "tensor") -> Part:
    """Matrices that --quantization rounds: weights and inputs of each."""
    return Part(name, sum(count for count, _ in matrices), split, scales=scales, matrices=matrices)


def _scales(columns: int, rows: int) -> tuple[Part, ...]:
    """Of a matrix whose outputs are divided, and of the next, whose inputs are: each device has all of its outputs."""
    return (Part("scales", columns, bits=32), Part("scales", rows, "none", bits=32))
