"""When speculation pays: the speed of decoding with drafts over that without, by rows and acceptance.

A row with d drafts, each right with chance a if those before it are, gets 1 + a + ... + a^d tokens of a step. The step is padded
to as many drafts as a row may have. Drafts of the host cost the time in which the device waits for it, those of a model on the
device what the model computes: the step's tokens, and a step of its own for every guess.
"""

from __future__ import annotations

from dataclasses import dataclass

from jaxserve.config.speculative import SpeculativeConfig
from jaxserve.planner.memory import Layout
from jaxserve.planner.roofline import Machine, decode_step, machine, prefill_step, verify_step

CHANCES = (0.3, 0.5, 0.6, 0.7, 0.8, 0.9)
BATCHES = (1, 4, 16, 32, 64, 128, 256)
WORTH = 1.02  # as the engine has it: less is noise
HOST_S = 1e-3  # from a step's end to the next one's launch, where tokens must be known between


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain:
    """What speculation comes to at one number of rows and one acceptance.

    Attributes:
        chance: that a draft is right if those before it are.
        drafts: of each row that give most tokens a second; 0 if none pay.
        speedup: of decoding, over steps without drafts.
    """

    chance: float
    drafts: int
    speedup: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GainRow:
    """One number of rows.

    Attributes:
        batch: rows that decode.
        plain_s, verify_s: seconds of a step without drafts, and with them, what guesses them apart.
        guess_s: seconds that guessing takes: of the host, or of a draft model that makes as many as a row may have.
        gains: by acceptance.
    """

    batch: int
    plain_s: float
    verify_s: float
    guess_s: float
    gains: tuple[Gain, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculationPlan:
    """When speculation pays.

    Attributes:
        method, draft: who guesses; the draft's name if it is a model or a head.
        most: drafts of a row at most.
        draft_bytes_device: weights of the draft on one GPU.
        draft_kv_bytes_device: bytes of a token of its keys and values on one GPU, in every page.
        prefill_share: by how much longer a prompt takes because a draft model follows it; 0 for drafts of the host.
        rows: by the number of rows.
    """

    method: str
    draft: str | None
    most: int
    draft_bytes_device: float
    draft_kv_bytes_device: int
    prefill_share: float
    rows: tuple[GainRow, ...]


class _Costs:
    """Seconds of steps with and without drafts at one number of rows."""

    def __init__(self, layout: Layout, rates: Machine, drafts: Machine | None, batch: int, context: int, most: int) -> None:
        self.plain = decode_step(layout, rates, batch, context).total_s
        self.verify = verify_step(layout, rates, batch, most, context).total_s
        self._follow = self._guess = 0.0
        if layout.draft is not None and drafts is not None:
            self._follow = verify_step(layout.draft, drafts, batch, most, context).total_s
            self._guess = decode_step(layout.draft, drafts, batch, context).total_s

    def guessing(self, count: int) -> float:
        return HOST_S if not self._guess else self._follow + count * self._guess

    def gain(self, chance: float, most: int) -> Gain:
        best = Gain(chance=chance, drafts=0, speedup=1.0)
        tokens, right = 1.0, 1.0
        for count in range(1, most + 1):
            right *= chance
            tokens += right
            speedup = tokens * self.plain / (self.verify + self.guessing(count))
            if speedup > max(best.speedup, WORTH):
                best = Gain(chance=chance, drafts=count, speedup=speedup)
        return best


def speculation_plan(
    layout: Layout,
    config: SpeculativeConfig | None,
    rates: Machine,
    efficiencies: tuple[float, float],
    *,
    largest: int,
    prompt: int,
    context: int,
) -> SpeculationPlan | None:
    """When drafts pay on a layout; None without speculation.

    Args:
        config: who guesses.
        rates: of the layout's steps.
        efficiencies: shares of the peak FLOP/s and bandwidth that are reached.
        largest: rows that the KV cache holds.
        prompt, context: tokens of a prompt, and that decoding rows hold.
    """
    if config is None:
        return None
    draft, most = layout.draft, config.num_speculative_tokens
    of_draft = None if draft is None else machine(draft, *efficiencies)
    rows = []
    for batch in [batch for batch in BATCHES if batch < largest] + [largest]:
        costs = _Costs(layout, rates, of_draft, batch, context, most)
        rows.append(
            GainRow(
                batch=batch,
                plain_s=costs.plain,
                verify_s=costs.verify,
                guess_s=costs.guessing(most),
                gains=tuple(costs.gain(chance, most) for chance in CHANCES),
            )
        )
    share = 0.0
    if draft is not None and of_draft is not None:
        share = prefill_step(draft, of_draft, prompt).total_s / prefill_step(layout, rates, prompt).total_s
    return SpeculationPlan(
        method=config.method,
        draft=None if draft is None else draft.shape.name,
        most=most,
        draft_bytes_device=0.0 if draft is None else draft.weight_bytes_device,
        draft_kv_bytes_device=layout.held_token_bytes_device - layout.kv_token_bytes_device,
        prefill_share=share,
        rows=tuple(rows),
    )
