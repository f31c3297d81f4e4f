"""What an encoder has in other places than a decoder."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderConfig:
    """Where an encoder differs from a decoder: norms are LayerNorms, one of them over the embeddings.

    Attributes:
        positions: rows of a table of positions; 0 for none.
        first_position: the row of the first token.
        token_types: rows of a table that tells the second of two texts from the first; 0 for none.
        separator: the token behind which the second text begins; None if nobody knows.
        norms_first: whether norms are before the blocks and behind the last layer; otherwise behind the sum of each block.
        norm_bias: whether norms add a bias.
        head: what the layer of a head that classifies ends with: tanh, or GELU and a norm.
        head_bias: whether that layer adds a bias.
    """

    positions: int
    first_position: int
    token_types: int
    separator: int | None = None
    norms_first: bool
    norm_bias: bool
    head: Literal["tanh", "gelu"]
    head_bias: bool

    def norms_of(self, layer: int) -> tuple[int | None, int]:
        """The numbers of the norms of a layer's attention and of its MLP: the first is that of the embeddings.

        With `norms_first` the first layer's attention has none: what it would normalise is normalised already.
        """
        mlp = 2 * layer + (1 if self.norms_first else 2)
        return (mlp - 1 if layer or not self.norms_first else None), mlp

    def num_norms(self, layers: int) -> int:
        return 1 + 2 * layers

    def parameters(self, embed: int, layers: int, labels: int) -> int:
        """Weights of tables, norms and, with `labels`, of the layer before the one that gives these their scores."""
        norms = self.num_norms(layers) + (labels > 0 and self.head == "gelu")
        head = (embed * (embed + self.head_bias) + labels) if labels else 0
        return (self.positions + self.token_types) * embed + norms * embed * (1 + self.norm_bias) + head
