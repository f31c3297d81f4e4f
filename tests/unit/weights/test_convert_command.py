"""The command jaxserve.convert: what it writes and says, and how it refuses."""

import json
import shutil

import pytest

from jaxserve import convert
from jaxserve.weights.manifest import read_manifest
from tests.golden.reading import DATA

PLAIN = DATA / "llama3-layout4"


def test_a_model_directory_is_converted(tmp_path, capsys):
    assert convert.main([str(PLAIN), str(tmp_path / "out"), "--dtype", "float16"]) == 0
    assert capsys.readouterr().out.startswith(f"{tmp_path / 'out'}: 20 tensors in ")
    assert json.loads((tmp_path / "out" / "config.json").read_text())["dtype"] == "float16"


def test_a_manifest_is_written_for_what_is_there(tmp_path, capsys):
    source = shutil.copytree(PLAIN, tmp_path / "source")
    assert convert.main([str(source), "--manifest"]) == 0
    assert "jaxserve-manifest.json: checksums of 20 tensors in " in capsys.readouterr().out
    manifest = read_manifest(source)
    assert manifest is not None
    assert len(manifest.tensors) == 20


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ([], "source: name what to convert"),
        (["PLAIN"], "output: name the directory to write"),
        (["nowhere", "OUT"], "source: there is no directory nowhere"),
        (["nowhere", "--manifest"], "source: there is no directory nowhere"),
        (["PLAIN", "OUT", "--manifest"], "manifest goes with a model directory alone"),
        (["PLAIN", "--manifest", "--dtype", "float16"], "manifest goes with a model directory alone"),
        (["PLAIN", "OUT", "--dtype", "int8"], "invalid choice: 'int8'"),
        (["PLAIN", "OUT", "--from", "keras"], "invalid choice: 'keras'"),
        (["PLAIN", "OUT", "--from", "maxtext"], "config: a checkpoint of MaxText does not say what model it is of"),
        (["PLAIN", "OUT", "--from", "maxtext", "--config", "nowhere.json"], "nowhere.json cannot be read"),
        (["PLAIN", "OUT", "--maxtext-rope", "halves"], "maxtext_rope is for checkpoints of MaxText"),
        (["PLAIN", "PLAIN"], "is there already and not empty"),
        (["EMPTY", "OUT"], "has no config.json"),
        (["EMPTY", "--manifest"], "has neither model.safetensors nor"),
        (["PLAIN", "OUT", "more"], "unrecognized arguments: more"),
    ],
)
def test_mistakes_are_told_in_one_line(tmp_path, capsys, arguments, complaint):
    (tmp_path / "empty").mkdir()
    places = {"PLAIN": PLAIN, "OUT": tmp_path / "out", "EMPTY": tmp_path / "empty"}
    assert convert.main([str(places.get(word, word)) for word in arguments]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert complaint in told.err
    assert told.err.startswith("jaxserve: ")
    assert told.err.count("\n") == 1
    assert not (tmp_path / "out").exists()
