"""Measures an NVIDIA GPU (made for H100 and H200), or reports what was measured.

    python -m benchmarks.gpu                          # what decides, in ten minutes at most; writes benchmarks/results/gpu.json
    python -m benchmarks.gpu --more                   # the rest, as much again, into the same file; again goes on where it ended
    python -m benchmarks.gpu --sections decode tiles  # some of it, into a new file; with --more, into the same
    python -m benchmarks.gpu --report                 # from that file: docs/performance.md's table, and plots in docs/images
    python -m benchmarks.gpu --rehearse               # all of both on a CPU with tiny sizes: its figures mean nothing
    python -m benchmarks.gpu --predict h200           # what is expected of it, and why: benchmarks/results/gpu_predictions.json
    python -m benchmarks.gpu --compile-for h100       # compiles what a run compiles, where there is no GPU

jaxserve need not be installed: run it from the repository's root with jax (CUDA), flax, safetensors, jinja2, tokenizers, rich.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from benchmarks.gpu import compile_check, predict, report
from benchmarks.gpu.run import Plan, earlier_results, run, unmeasured
from benchmarks.gpu.sections import FIRST, SECTIONS

RESULTS = Path(__file__).parents[1] / "results"
MINUTES = 9.5  # leaves room in ten: what hangs at the end is ended 20 s later
REHEARSAL_MINUTES = 20.0


def main(argv: list[str] | None = None) -> int:
    """Run or report. Returns the exit code: 1 if a section failed, or there is no GPU."""
    arguments = _parser().parse_args(argv)
    output = arguments.output or RESULTS / ("gpu_rehearsal.json" if arguments.rehearse else "gpu.json")
    if arguments.report:
        return report.write(output)
    if arguments.predict:
        print(predict.write(arguments.predict, RESULTS / "gpu_predictions.json"))
        return 0
    if arguments.compile_for:
        return compile_check.check(arguments.compile_for, arguments.sections or list(SECTIONS))
    sizes = "rehearsal" if arguments.rehearse else "full"
    earlier = earlier_results(output, sizes) if arguments.more else {}
    usual = unmeasured(earlier) if arguments.more else list(SECTIONS) if arguments.rehearse else FIRST
    plan = Plan(
        sections=arguments.sections or usual,
        sizes=sizes,
        output=output,
        seconds=60 * (arguments.minutes or (REHEARSAL_MINUTES if arguments.rehearse else MINUTES)),
        flags=("--attention-kernel", arguments.attention_kernel),
        earlier=earlier,
    )
    result = run(plan)
    print(report.text(result))
    print(f"written to {output}")
    return 1 if any("error" in section for section in result["sections"].values()) else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    about = "; ".join(f"{name}: {entry.about}" for name, entry in SECTIONS.items())
    parser.add_argument("--sections", nargs="+", choices=SECTIONS, metavar="NAME", help=about)
    parser.add_argument("--more", action="store_true", help="what the results file has no figures of yet, into the same file")
    parser.add_argument("--output", type=Path, help="results file, benchmarks/results/gpu.json by default")
    parser.add_argument("--minutes", type=float, help=f"for everything, {MINUTES:g} by default; what does not fit is left out")
    parser.add_argument("--attention-kernel", default="auto", help="of the engine's part, such as xla")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--rehearse", action="store_true", help="on a CPU, with tiny sizes")
    what.add_argument("--report", action="store_true", help="turn the results file into a table and plots")
    what.add_argument("--predict", metavar="GPU", help="write what is expected of a GPU, such as h200, and how that comes about")
    what.add_argument("--compile-for", metavar="GPU", help="compile for a GPU that is not here, such as h100; time nothing")
    return parser


if __name__ == "__main__":
    sys.exit(main())
