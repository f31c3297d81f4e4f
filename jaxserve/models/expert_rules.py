"""Weight rules of the layers that have experts, where a checkpoint stores each expert's matrices as tensors of their own."""

from __future__ import annotations

from dataclasses import dataclass, replace

from jaxserve.models.config import DecoderConfig
from jaxserve.models.rules import Output, Packing, Path, Source, WeightRule, columns, mlp_rules, whole


@dataclass(frozen=True, slots=True)
class ExpertNames:
    """What a family calls the tensors of a layer's experts.

    Attributes:
        block: the part of the layer that they all are in.
        gate, up, down: of one expert's projections, in `block`.experts.J.
        shared: of the expert that every token visits.
        correction: of the bias that is added to scores for the choice alone.
        latent_down, latent_up: of the projections of what routed experts see and make, if they have latents.
    """

    block: str = "mlp"
    gate: str = "gate_proj"
    up: str = "up_proj"
    down: str = "down_proj"
    shared: str = "shared_experts"
    correction: str = "gate.e_score_correction_bias"
    latent_down: str = "fc1_latent_proj"
    latent_up: str = "fc2_latent_proj"

    def rules(self, config: DecoderConfig, path: Path, prefix: str) -> list[WeightRule]:
        """The LayerRules of `decoder_rules` for these names. The config must have experts, without biases of their own."""
        experts, embed = config.experts, config.hidden_size
        assert experts is not None
        width = experts.latent_size or embed
        here, block, ffn = (*path, "mlp"), f"{prefix}.{self.block}", experts.ffn_size
        each = [f"{block}.experts.{expert}" for expert in range(experts.count)]
        parts = (self.gate, self.up) if config.gated else (self.up,)
        inputs = [Source(f"{name}.{part}.weight", (ffn, width)) for name in each for part in parts]
        outputs = [Source(f"{name}.{self.down}.weight", (width, ffn)) for name in each]
        rules = [
            WeightRule((*here, "router"), (Source(f"{block}.gate.weight", (experts.count, embed)),), Packing.TRANSPOSED),
            WeightRule((*here, "gate_up" if config.gated else "up"), tuple(inputs), Packing.COLUMNS, experts.count),
            WeightRule((*here, "down"), tuple(outputs), Packing.ROWS, experts.count),
        ]
        if experts.routing.correction:
            rules.append(whole((*here, "correction"), f"{block}.{self.correction}", (experts.count,)))
        if experts.shared_ffn_size:
            shared = replace(config, ffn_size=experts.shared_ffn_size)
            rules += mlp_rules(shared, (*here, "shared"), f"{block}.{self.shared}")
        if experts.latent_size:
            rules.append(columns((*here, "latent", "down"), [Output(f"{block}.{self.latent_down}", width)], embed))
            rules.append(columns((*here, "latent", "up"), [Output(f"{block}.{self.latent_up}", embed)], width))
        if experts.shared_gate:
            gate = Source(f"{block}.{self.shared}_gate.weight", (1, embed))
            rules.append(WeightRule((*here, "shared_gate"), (gate,), Packing.TRANSPOSED))
        return rules
