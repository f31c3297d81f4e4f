"""Shares of the bounds, the targets and the report, from figures whose shares can be told by heart."""

import pytest

from benchmarks.gpu import derive, plots, report

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
                        "device": {"seconds": roofline * step * (1 - gap)},
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


def test_plots_are_drawn_of_what_there_is(tmp_path):
    drawn = list(plots.draw(result(), tmp_path / "images"))
    assert [path.name for path in drawn] == ["gpu_decode.png", "gpu_prefill.png", "gpu_engine.png"]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in drawn)
    assert list(plots.draw({"sections": {}, "sizes": "full", "date": ""}, tmp_path / "none")) == []
