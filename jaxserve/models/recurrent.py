"""Layers that keep a state of fixed size a sequence instead of keys and values: their numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class Division(NamedTuple):
    """What tensor-parallel devices divide: config.json's name of it, how much there is, whether fewer than devices will do."""

    name: str
    size: int
    replicates: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaNet:
    """Gated delta nets (Yang, Kautz and Hatamizadeh 2024) in some layers, in the place of attention.

    Attributes:
        layers: one entry a layer: whether it is one.
        width: W, taps of the convolution before it.
        key_heads: heads of queries and keys.
        heads: H, of values, a multiple of them.
        key_dim, value_dim: numbers of one head.
        interleaved: whether a checkpoint's projections have all that belongs to a key head side by side.
    """

    layers: tuple[bool, ...]
    width: int
    key_heads: int
    heads: int
    key_dim: int
    value_dim: int
    interleaved: bool

    @property
    def channels(self) -> int:
        """C, of the convolution."""
        return 2 * self.key_heads * self.key_dim + self.values

    def held_channels(self, shards: int) -> int:
        """C over all of so many devices, what several of them hold counted as often."""
        return self.channels

    @property
    def values(self) -> int:
        """Numbers that heads have together."""
        return self.heads * self.value_dim

    @property
    def columns(self) -> int:
        """Outputs of the projections before the convolution and of the gate that devices divide."""
        return self.channels + self.values

    @property
    def shared_columns(self) -> tuple[int, int]:
        """Other outputs of theirs, and heads that these are of: a device holds one or more."""
        return 0, 1

    @property
    def gates(self) -> int:
        """Outputs of the projections that say how much is written, and how fast states fade."""
        return 2 * self.heads

    @property
    def numbers(self) -> int:
        """Others, in float32."""
        return 2 * self.heads

    @property
    def stored_inputs(self) -> int:
        """Matrices that a checkpoint has of all these projections."""
        return 2 if self.interleaved else 6

    @property
    def conv_bias(self) -> bool:
        return False

    @property
    def state(self) -> tuple[int, int, int]:
        """[H, D, V] of a sequence."""
        return self.heads, self.key_dim, self.value_dim

    @property
    def divided(self) -> tuple[Division, ...]:
        """What tensor-parallel devices divide."""
        return Division("linear_num_key_heads", self.key_heads), Division("linear_num_value_heads", self.heads)

    @property
    def norms(self) -> int:
        """Weights of one layer's norm of its results."""
        return self.value_dim

    @property
    def divided_norms(self) -> int:
        """Of these, what devices divide."""
        return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Mamba2:
    """State spaces of Mamba-2 (Dao and Gu 2024) in some layers, in the place of attention. Attributes as in DeltaNet.

    Attributes:
        key_heads: groups of heads, each with a B and a C of its own: what linear attention calls keys and queries.
        key_dim: numbers of a state for each of a head's values.
        conv_bias: whether the convolution adds a bias.
        steps: bounds of the size of a step.
        fields: what config.json calls heads and groups.
    """

    layers: tuple[bool, ...]
    width: int
    key_heads: int
    heads: int
    key_dim: int
    value_dim: int
    conv_bias: bool
    steps: tuple[float, float]
    fields: tuple[str, str] = ("mamba_n_heads", "mamba_n_groups")

    @property
    def channels(self) -> int:
        return self.values + self.shared_columns[0]

    def held_channels(self, shards: int) -> int:
        return self.values + 2 * max(self.key_heads, shards) * self.key_dim

    @property
    def values(self) -> int:
        return self.heads * self.value_dim

    @property
    def columns(self) -> int:
        return 2 * self.values

    @property
    def shared_columns(self) -> tuple[int, int]:
        return 2 * self.key_heads * self.key_dim, self.key_heads

    @property
    def gates(self) -> int:
        return self.heads

    @property
    def numbers(self) -> int:
        return 3 * self.heads

    @property
    def stored_inputs(self) -> int:
        return 5

    @property
    def state(self) -> tuple[int, int, int]:
        return self.heads, self.key_dim, self.value_dim

    @property
    def divided(self) -> tuple[Division, ...]:
        heads, groups = self.fields
        return Division(heads, self.heads), Division(groups, self.key_heads, replicates=True)

    @property
    def norms(self) -> int:
        return self.values

    @property
    def divided_norms(self) -> int:
        return self.values


@dataclass(frozen=True, slots=True, kw_only=True)
class ShortConv:
    """Convolutions between gates (LFM2, Liquid AI 2025) in some layers, in the place of attention. Attributes as in DeltaNet.

    Attributes:
        channels: C, of the convolution: as many as the residual stream has numbers. Its inputs are all that is kept.
    """

    layers: tuple[bool, ...]
    width: int
    channels: int

    def held_channels(self, shards: int) -> int:
        return self.channels

    @property
    def values(self) -> int:
        return self.channels

    @property
    def columns(self) -> int:
        return 3 * self.channels

    @property
    def shared_columns(self) -> tuple[int, int]:
        return 0, 1

    @property
    def gates(self) -> int:
        return 0

    @property
    def numbers(self) -> int:
        return 0

    @property
    def stored_inputs(self) -> int:
        return 3

    @property
    def conv_bias(self) -> bool:
        return False

    @property
    def state(self) -> tuple[int, int, int]:
        return 0, 0, 0

    @property
    def divided(self) -> tuple[Division, ...]:
        return (Division("hidden_size", self.channels),)

    @property
    def norms(self) -> int:
        return 0

    @property
    def divided_norms(self) -> int:
        return 0


Recurrent = DeltaNet | Mamba2 | ShortConv


def parameters(recurrent: Recurrent, embed: int) -> int:
    """Weights of one layer but its norms."""
    outputs = recurrent.columns + recurrent.shared_columns[0] + recurrent.gates
    convolution = recurrent.channels * (recurrent.width + recurrent.conv_bias)
    return embed * (outputs + recurrent.values) + convolution + recurrent.numbers
