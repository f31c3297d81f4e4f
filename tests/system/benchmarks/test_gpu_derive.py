"""Shares of the bounds, the targets and the report, from figures whose shares can be told by heart."""

import pytest

from benchmarks.gpu import derive, plots, predict, report

COPY = 4e12  # bytes a second
MATMUL = 8e14


def result(decode_share=0.9, prefill_share=0.8, step=1.2, gap=0.04):
    """A run with these shares."""
    kv_bytes, flops = 64 * 4096 * 4096, 10**12
    weight_bytes, engine_kv = 15 * 10**9, 9 * 10**9
    roofline = (weight_bytes + engine_kv) / COPY
    prefill = {"queries": 8192, "context": 8192, "rows": 1, "flops": flops}
    return {
        "sizes": "full",
        "date": "2026-01-01 00:00",
        "sections": {
            "device": {"figures": [{"device": "NVIDIA H200", "devices": 1, "versions": {"jax": "0"}, "nvidia_smi": ["H200"]}]},
            "bandwidth": {
                "figures": [
                    {"what": "copy", "bytes": 8e9, "seconds": 8e9 / COPY * 2},
                    {"what": "kernel copy", "bytes": 8e9, "seconds": 8e9 / COPY},
                    {"what": "read", "bytes": 8e9, "seconds": 8e9 / COPY / 2},
                    {"what": "matmul", "flops": 1e12, "seconds": 1e12 / MATMUL},
                ]
            },
            "decode": {
                "figures": [
                    _decode("mosaic_gpu", kv_bytes, kv_bytes / COPY / decode_share),
                    _decode("xla", kv_bytes, kv_bytes / COPY * 4),
                ]
            },
            "prefill": {
                "figures": [
                    prefill | {"implementation": "mosaic_gpu", "seconds": 1e-3 / prefill_share},
                    prefill | {"implementation": "dense cudnn", "seconds": 1e-3},
                ]
            },
            "engine": {
                "figures": [
                    {
                        "what": "decode",
                        "rows": 64,
                        "context": 1024,
                        "devices": 1,
                        "seconds": roofline * step,
                        "device": {"seconds": roofline * step * (1 - gap), "host_seconds": 1e-4},
                        "choice": "greedy",
                        "weight_bytes": weight_bytes,
                        "kv_bytes": engine_kv,
                        "flops": 10**12,
                        "tokens_per_second": 1.0,
                    }
                ]
            },
            "transformers": {"figures": [{"rows": 64, "tokens_per_second": 1234.0}], "stopped": "its 70 s were over"},
            "tiles": {"figures": [{"rows": 1, "context": 2, "error": {"type": "ValueError", "message": "too large\nmore"}}]},
            "sharded": {"figures": [{"skipped": "there is one device"}]},
        },
    }


def _decode(kernel, kv_bytes, seconds):
    return {
        "rows": 64,
        "queries": 1,
        "context": 4096,
        "implementation": kernel,
        "kv_bytes": kv_bytes,
        "seconds": seconds,
        "host_bound": False,
    }


def test_the_faster_copy_is_the_bound_and_a_reduction_is_not():
    assert derive.copy_bandwidth(result()) == pytest.approx(COPY)


def test_every_target_is_held_against_its_own_figure():
    found = derive.targets(result())
    assert [target.value for target in found] == pytest.approx([0.9, 0.8, 1.2, 0.04])
    assert all(target.met for target in found)


@pytest.mark.parametrize(
    ("worse", "place"), [({"decode_share": 0.84}, 0), ({"prefill_share": 0.74}, 1), ({"step": 1.26}, 2), ({"gap": 0.06}, 3)]
)
def test_a_target_that_is_missed_is_said_so(worse, place):
    assert [target.met for target in derive.targets(result(**worse))] == [number != place for number in range(4)]


def test_the_roofline_is_arithmetic_where_that_takes_longer():
    slow = result()
    figure = slow["sections"]["engine"]["figures"][0]
    figure["flops"] = 10**15
    (step,) = derive.steps(slow)
    assert step["roofline_seconds"] == pytest.approx(10**15 / MATMUL)
    figure["devices"] = 4
    (step,) = derive.steps(slow)
    assert step["roofline_seconds"] == pytest.approx(10**15 / MATMUL / 4)


def test_a_device_that_is_not_faster_than_the_loop_leaves_no_gap():
    (step,) = derive.steps(result(gap=-0.5))
    assert step["host_gap"] == 0.0


def test_a_submit_that_blocks_tells_no_gap():
    blocking = result()
    device = blocking["sections"]["engine"]["figures"][0]["device"]
    device["host_seconds"] = 0.9 * device["seconds"]
    (step,) = derive.steps(blocking)
    assert step["host_gap"] is None
    assert derive.targets(blocking)[3].met is None


def test_predictions_stand_beside_what_was_measured():
    found = predict.of_device("NVIDIA H200")
    assert predict.of_device("NVIDIA GeForce 256") == []
    assert all(0 < one.seconds < 1 and 0 < one.reach < 1 for one in found)
    (decode,) = [one for one in found if one.section == "decode" and (one.case["rows"], one.case["context"]) == (64, 4096)]
    keys = 64 * 4096 * 2 * 8 * 128 * 2  # both bfloat16
    assert keys / 4.8e12 < decode.seconds < decode.reach < keys / 4.8e12 / 0.7
    measured = result()
    (ours, xla), engine = measured["sections"]["decode"]["figures"], measured["sections"]["engine"]["figures"][0]
    assert predict.find("decode", ours, found) == decode
    assert predict.find("decode", xla, found) is None
    step = predict.find("engine", engine, found)
    assert step is not None
    assert step.case["rows"] == 64
    assert f"{ours['seconds'] / decode.seconds:.2f}" in report.text(measured)


def test_what_was_not_measured_meets_nothing():
    found = derive.targets({"sections": {}})
    assert [(target.value, target.met) for target in found] == [(None, None)] * 4


def test_the_report_names_figures_peers_errors_and_what_was_left_out():
    text = report.text(result())
    assert "1 x NVIDIA H200" in text
    assert "kernel copy 4,000 GB/s" in text
    assert "| 64 x 4096 | 298.3 | 1073.7 | 90% / 25% |" in text
    assert "| 8192 on 8192 | mosaic_gpu | 1.250 | 800 | 80% |" in text
    assert "| 64 x 1024 | 7.20 | 6.91 | 6.00 | 1.20 | 4.0% | 1 | 1,234 |" in text
    assert "- tiles rows 1, context 2: ValueError: too large" in text
    assert "- transformers: its 70 s were over" in text
    assert "- sharded: there is one device" in text
    assert "rehearsal" not in text


def test_flashinfer_stands_beside_our_kernels_on_the_same_batch():
    measured = result()
    prefill = {"rows": 1, "queries": 8192, "context": 8192, "implementation": "flashinfer", "flops": 10**12, "seconds": 2e-3}
    shape = {"shape": "64 x 1024 at TP=8", "implementation": "flashinfer", "kv_bytes": 4e8, "seconds": 2e-4}
    ours = shape | {"implementation": "mosaic_gpu", "seconds": 1e-4}
    measured["sections"]["shapes"] = {"figures": [ours]}
    measured["sections"]["flashinfer"] = {"figures": [_decode("flashinfer", 10**9, 5e-4), prefill, shape]}
    text = report.text(measured)
    assert "| 64 x 4096 | 298.3 | 1073.7 | 500.0 | 90% / 25% / 50% |" in text
    assert "| 8192 on 8192 | flashinfer | 2.000 | 500 | 50% |" in text
    assert "| 64 x 1024 at TP=8 | mosaic_gpu | 100.0 | 100% |\n| 64 x 1024 at TP=8 | flashinfer | 200.0 | 50% |" in text
    assert [target.met for target in derive.targets(measured)] == [True] * 4


def test_the_second_commands_figures_join_those_of_the_first():
    measured = result()
    other = _decode("mosaic_gpu", 10**9, 1e-3) | {"context": 512}
    measured["sections"]["more_decode"] = {"figures": [other]}
    assert [figure["context"] for figure in derive.decodes(measured)] == [4096, 4096, 512]


def test_all_reduces_stand_beside_each_other_by_size():
    measured = result()
    labels = {"bytes": 2**20, "devices": 8}
    figures = [labels | {"way": "NCCL", "seconds": 2e-5}, labels | {"way": "symmetric", "seconds": 1.5e-5}]
    measured["sections"]["all_reduce"] = {"figures": [*figures, labels | {"bytes": 2**21, "way": "NCCL", "seconds": 3e-5}]}
    text = report.text(measured)
    assert "| 1.05 on 8 | 20.0 us | 15.0 us | symmetric |\n| 2.10 on 8 | 30.0 us | - | NCCL |" in text
    assert "| all_reduce: 1048576, NCCL, 8 |" in text, "beside what was expected"


def test_what_the_engine_shows_is_said_in_lines():
    measured = result()
    engine = measured["sections"]["engine"]["figures"]
    device = {"seconds": 0.057, "host_seconds": 1e-3}
    engine.append({"what": "alternating", "rows": 63, "prompt": 1985, "devices": 1, "seconds": 0.06, "device": device})
    engine.append({"what": "launches", "rows": 64, "command_buffers": 2, "single": 1, "kernels": 342, "programs": 2})
    start = {"what": "start", "loaded": 9, "compiled": ["copy_pages"], "compile_seconds": 1.5}
    tokens = {"what": "tokens", "sequences": 4, "same": 3}
    measured["sections"]["saved"] = {"figures": [start, tokens]}
    tuning = {"rows": 64, "layers": 4, "seconds": 1e-3, "compile_seconds": 30.0, "files_before": 0, "files": 20}
    measured["sections"]["autotune"] = {"figures": [tuning | {"variant": "measured"}]}
    text = report.text(measured)
    assert "60.00 ms for both, the device 57.00 ms, host gap 5.0%." in text
    assert "A step of 64 rows is 2 programs: 2 command buffers and 1 launches beside them, 342 kernels." in text
    assert "From saved programs (9 loaded, compiled: copy_pages): 1.5 s in place of compiling." in text
    assert "Its tokens are the same in 3 of 4 sequences." in text
    assert "| measured | 64 | 4 | 30.0 | 1.00 | 0 before, 20 after |" in text


def test_plots_are_drawn_of_what_there_is(tmp_path):
    drawn = list(plots.draw(result(), tmp_path / "images"))
    assert [path.name for path in drawn] == ["gpu_decode.png", "gpu_prefill.png", "gpu_engine.png"]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in drawn)
    assert list(plots.draw({"sections": {}, "sizes": "full", "date": ""}, tmp_path / "none")) == []
