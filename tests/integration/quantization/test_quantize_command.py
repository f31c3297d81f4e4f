"""The command jaxserve.quantize: what it says, and how it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from jaxserve import quantize
from jaxserve.weights.manifest import read_manifest
from jaxserve.weights.quality import check_quality
from tests.golden.reading import DATA

PLAIN = DATA / "llama-linear"


def test_what_was_done_and_what_was_kept_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert quantize.main([str(PLAIN), str(tmp_path / "out"), "--scheme", "fp8", "--keep", "*.down_proj", "*.0.*.o_proj"]) == 0
    assert capsys.readouterr().out.splitlines()[:2] == [
        "kept, matches *.0.*.o_proj: model.layers.0.self_attn.o_proj",
        "kept, matches *.down_proj: model.layers.0.mlp.down_proj, model.layers.1.mlp.down_proj",
    ]


def test_nothing_is_told_of_keeping_where_nothing_was_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert quantize.main([str(PLAIN), str(tmp_path / "out"), "--scheme", "w4a16", "--group-size", "32"]) == 0
    assert capsys.readouterr().out.splitlines()[0] == f"{tmp_path / 'out'}: 14 matrices in w4a16"


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ([], "model: name what to quantize"),
        (["PLAIN"], "output: name the directory to write"),
        (["nowhere", "OUT"], "nowhere"),
        (["PLAIN", "OUT", "--scheme", "int3"], "invalid choice: 'int3'"),
        (["PLAIN", "OUT", "--scheme", "w4a16"], "nothing is left to quantize: 32 inputs are no multiple of 128"),
        (["PLAIN", "OUT", "--scheme", "w4a16", "--group-size", "48"], "group_size must be 32, 64, 128, got 48"),
        (["PLAIN", "OUT", "--group-size", "32"], "group_size is for schemes with groups, not fp8"),
        (["PLAIN", "OUT", "--keep", "*.mpl.*"], "keep: no module of the model matches '*.mpl.*'"),
        (["PLAIN", "--audit"], "calibration: an audit needs a text"),
        (["PLAIN", "--audit", "--calibration", "TEXT", "--budget", "0"], "budget must be above 0 and finite, got 0.0"),
        (["PLAIN", "OUT", "--plot", "audit.png"], "plot is of an audit"),
        (["PLAIN", "OUT", "--budget", "1"], "budget is of an audit"),
        (["PLAIN", "--audit", "--calibration", "TEXT", "--plot", "EMPTY"], "it is a directory"),
        (["PLAIN", "OUT", "--calibration", "nowhere.txt"], "calibration: cannot read nowhere.txt"),
        (["PLAIN", "OUT", "--calibration", "TEXT"], "has 9 tokens; needed are 4096: 2048 to fit by, and as many to measure"),
        (["PLAIN", "OUT", "--calibration", "LINES"], 'line 2 has no "text"'),
        (["PLAIN", "OUT", "--calibration", "JUNK"], "line 1 is not JSON"),
        (["PLAIN", "OUT", "--calibration", "BYTES"], "is not UTF-8"),
        (["PLAIN", "PLAIN"], "is there already and not empty"),
        (["FP8", "OUT"], "is quantized already (fp8); name the model that it was made from"),
        (["EMPTY", "OUT"], "has no config.json"),
        (["PLAIN", "OUT", "more"], "unrecognized arguments: more"),
    ],
)
def test_mistakes_are_told_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], complaint: str
) -> None:
    (tmp_path / "empty").mkdir()
    for name, data in {"t.txt": b"few words", "l.jsonl": b'{"text": "a"}\n{}', "j.jsonl": b"text", "b.txt": b"\xff"}.items():
        (tmp_path / name).write_bytes(data)
    texts = {"TEXT": "t.txt", "LINES": "l.jsonl", "JUNK": "j.jsonl", "BYTES": "b.txt"}
    places = {name: tmp_path / file for name, file in texts.items()} | {
        "PLAIN": PLAIN,
        "OUT": tmp_path / "out",
        "EMPTY": tmp_path / "empty",
        "FP8": DATA / "qwen3-fp8",
    }
    assert quantize.main([str(places.get(word, word)) for word in arguments]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert complaint in told.err
    assert told.err.startswith("jaxserve: ")
    assert told.err.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_an_audit_is_printed_drawn_and_written_down(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = tmp_path / "text.txt"
    text.write_text("".join(chr(97 + number * number % 23) + " " * (number % 3 == 0) for number in range(4600)))
    options = ["--scheme", "w4a16", "--group-size", "32", "--calibration", str(text)]
    audit = ["--audit", "--budget", "1000", "--plot", str(tmp_path / "audit.png")]
    assert quantize.main([str(PLAIN), str(tmp_path / "out"), *options, *audit]) == 0
    told = capsys.readouterr().out
    for part in ("layers.1.attention.qkv", "perplexity with nothing else rounded", "with everything rounded", "held-out tokens"):
        assert part in told
    assert (tmp_path / "audit.png").read_bytes().startswith(b"\x89PNG")
    manifest = read_manifest(tmp_path / "out")
    assert manifest is not None
    assert manifest.quality is not None
    assert f"({manifest.quality.increase_percent:+.3f} %)" in told
    check_quality(tmp_path / "out", max(manifest.quality.increase_percent, 0.0), "none")
