"""What an engine says of itself when it is ready, for people."""

from __future__ import annotations

from jaxserve.engine.build import EngineReport
from jaxserve.engine.phases import StartTimes
from jaxserve.versions import version_of


def banner(report: EngineReport) -> str:
    model, memory = report.model, report.memory
    scheduler = report.scheduler
    target = scheduler.itl_target
    promise = f"{target * 1000:g} ms between tokens promised" if target else "no time between tokens promised"
    cache = f"{memory.kv_tokens:,} in the KV cache" if memory.kv_cache else "computed whole, without a KV cache"
    workspace = f"workspace {_size(memory.temporary)}"
    if memory.adapters:
        workspace += f", adapters {_size(memory.adapters)}"
    return "\n".join(
        (
            f"jaxserve {version_of('jaxserve')}",
            f"  model    {model.name}: {model.architecture}, {model.parameters / 1e6:,.1f}M parameters in {model.dtype}",
            f"  context  {model.max_model_len:,} tokens a request, {cache}",
            f"  mesh     {report.mesh}",
            f"  memory   a device: weights {_size(memory.weights)}, KV cache {_size(memory.kv_cache)}, {workspace}",
            *((f"  pages    {report.page_size} tokens each, in {report.kv_dtype}",) if memory.kv_cache else ()),
            f"  steps    of at most {scheduler.max_num_batched_tokens} tokens in {scheduler.max_num_seqs} rows, {promise}",
            f"  buckets  {' '.join(report.buckets)} (tokens x rows)",
            start_line(report.start),
        )
    )


def start_line(times: StartTimes) -> str:
    beside = f"weights {times.weights:.1f} s and programs {times.programs:.1f} s at once"
    before = f"imports {times.imports:.1f} s, files {times.files:.1f} s"
    return f"  start    {before}, {beside}, warm {times.warm:.1f} s, rest {times.rest:.1f} s"


def _size(count: int) -> str:
    return f"{count / 2**30:.2f} GiB" if count >= 2**30 else f"{count / 2**20:.1f} MiB"
