"""What the shapes of an executor's programs follow from, beside the model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from jaxserve.config.fields import EngineConfig, Quantization
from jaxserve.config.kernels import AUTOMATIC, Kernels, check_kernels
from jaxserve.config.lora import LoraShape
from jaxserve.config.resolve import ResolvedConfig
from jaxserve.config.states import StatePlaces
from jaxserve.step.plan import STATE_WORDS
from jaxserve.weights.stored_schemes import Schemes
from pallas_kernels import grouped_matmul, kv_write, ragged_paged_attention


@dataclass(frozen=True, slots=True)
class ExecutorOptions:
    """Shapes of an executor: rows, tokens and pages; `dtype` and `kv_dtype` name the dtypes of activations and of the cache.

    Attributes:
        kernels: what computes the layers.
        quantization: what matrices are rounded to.
        stored: in which schemes the checkpoint has parameters that may be held so.
        max_drafts: that a row may have in a step.
        first_alone: be ready when a few steps are compiled that hold every plan.
        fewest_shapes: compile two step shapes that hold every plan, and no others.
        strict: a compilation inside a step is an error.
        swap_slots: pages that the swap space holds; 0 for none.
        adapters: slots and rank of adapters; None for none.
        routed_experts: whether pages keep which experts their tokens visited.
        deterministic: a token's logits do not depend on what else is in a step (`executor.invariance`).
        states: places of recurrent states; None for a model without.
        autotune_results: directory of what XLA measured of kernels on a GPU; programs do not depend on it but in their speed.
    """

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    num_pages: int
    page_size: int
    dtype: str
    kv_dtype: str
    kernels: Kernels = AUTOMATIC
    quantization: Quantization = "none"
    stored: Schemes = ()
    max_drafts: int = 0
    first_alone: bool = False
    fewest_shapes: bool = False
    strict: bool = False
    swap_slots: int = 0
    adapters: LoraShape | None = None
    routed_experts: bool = False
    deterministic: bool = False
    states: StatePlaces | None = None
    autotune_results: Path | None = None

    @classmethod
    def of(cls, config: EngineConfig, resolved: ResolvedConfig, kernels: Kernels, stored: Schemes = ()) -> ExecutorOptions:
        tuned = config.compile.autotune_results
        return cls(
            max_num_seqs=config.scheduler.max_num_seqs,
            max_num_batched_tokens=config.scheduler.max_num_batched_tokens,
            max_model_len=resolved.max_model_len,
            num_pages=resolved.num_pages,
            page_size=config.cache.page_size,
            dtype=resolved.dtype,
            kv_dtype=resolved.kv_dtype,
            kernels=kernels,
            quantization=config.model.quantization,
            stored=stored,
            max_drafts=config.speculation.max_drafts,
            first_alone=resolved.compile_first,
            fewest_shapes=config.compile.before_ready == "fewest",
            strict=config.compile.late_compiles == "raise",
            swap_slots=resolved.swap_slots,
            adapters=config.lora.shape,
            routed_experts=config.model.enable_return_routed_experts,
            deterministic=config.kernels.deterministic,
            states=resolved.states,
            autotune_results=None if tuned is None else Path(tuned),
        )

    @property
    def state_words(self) -> int:
        """What every row of a plan says of recurrent states."""
        return 0 if self.states is None else STATE_WORDS + self.states.width

    @property
    def max_pages(self) -> int:
        """M, pages of the longest sequence."""
        return -(-self.max_model_len // self.page_size)


def chosen_kernels(config: EngineConfig, num_layers: int) -> Kernels:
    """What the layers were given. Raises ConfigError for an implementation or a layer that there is not."""
    kernels = config.kernels.parse()
    check_kernels(kernels.attention, ragged_paged_attention.NAMES, num_layers, "attention_kernel")
    check_kernels(kernels.kv_write, kv_write.NAMES, num_layers, "kv_write_kernel")
    check_kernels(kernels.grouped_matmul, grouped_matmul.NAMES, num_layers, "grouped_matmul_kernel")
    return kernels
