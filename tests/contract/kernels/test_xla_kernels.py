"""The XLA implementations under the shared suites."""

from .add_lora_suite import AddLoraSuite
from .attention_suite import AttentionSuite
from .causal_conv1d_suite import CausalConv1dSuite
from .gated_linear_attention_suite import GatedLinearAttentionSuite
from .grouped_matmul_suite import GroupedMatmulSuite
from .kv_write_suite import KvWriteSuite
from .lightning_index_suite import LightningIndexSuite
from .matmul_suite import MatmulSuite
from .ragged_attention_suite import RaggedAttentionSuite
from .rotate_and_write_suite import RotateAndWriteSuite
from .rotate_write_attend_suite import RotateWriteAttendSuite
from .round_rows_suite import RoundRowsSuite
from .sparse_paged_attention_suite import SparsePagedAttentionSuite


class TestAddLora(AddLoraSuite):
    implementation = "xla"


class TestAddLoraInBlocks(AddLoraSuite):
    implementation = "xla_blocks"


class TestAttention(AttentionSuite):
    implementation = "xla"


class TestCausalConv1d(CausalConv1dSuite):
    implementation = "xla"


class TestGatedLinearAttention(GatedLinearAttentionSuite):
    implementation = "xla"


class TestKvWrite(KvWriteSuite):
    implementation = "xla"


class TestGroupedMatmul(GroupedMatmulSuite):
    implementation = "xla"


class TestLightningIndex(LightningIndexSuite):
    implementation = "xla"


class TestMatmul(MatmulSuite):
    implementation = "xla"


class TestRaggedAttention(RaggedAttentionSuite):
    implementation = "xla"


class TestRotateAndWrite(RotateAndWriteSuite):
    implementation = "xla"


class TestRotateWriteAttend(RotateWriteAttendSuite):
    """Composed of two operations, each of which is in what suits a CPU."""

    implementation = "composed"


class TestRoundRows(RoundRowsSuite):
    implementation = "xla"


class TestSparsePagedAttention(SparsePagedAttentionSuite):
    implementation = "xla"
