"""Manifests are read strictly, and tell tokenizers apart by what gives tokens their ids."""

import json
import shutil

import ml_dtypes
import numpy as np
import pytest

from jaxserve.config.fields import EngineConfig
from jaxserve.engine.preparation import prepare
from jaxserve.errors import CheckpointError
from jaxserve.weights.manifest import (
    Manifest,
    TensorSum,
    check_prompt_files,
    check_tokenizer,
    prompt_files,
    read_manifest,
    tokenizer_fingerprint,
    write_manifest,
)
from tests.support.tiny_checkpoint import write_tiny_checkpoint

NAME = "jaxserve-manifest.json"


@pytest.fixture
def model(tmp_path):
    return write_tiny_checkpoint(tmp_path / "model")


def test_a_manifest_is_read_as_it_was_written(tmp_path):
    assert read_manifest(tmp_path) is None
    tensors = {"a.b": TensorSum.of(np.ones((2, 3), ml_dtypes.bfloat16)), "c": TensorSum.of(np.array(0, np.float32))}
    write_manifest(tmp_path, Manifest.of("f00d", tensors, {"chat_template.jinja": "beef"}))
    assert read_manifest(tmp_path) == Manifest.of("f00d", tensors, {"chat_template.jinja": "beef"})


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("{", "cannot be read: Input data was truncated"),
        ('{"version": 1, "tokenizer": null}', "missing required field `tensors`"),
        ('{"version": 1, "tokenizer": null, "tensors": {}, "more": 1}', "unknown field `more`"),
        ('{"version": 1, "tokenizer": null, "tensors": {"a": {"dtype": "float32", "shape": [-1.5], "sha256": ""}}}', "int"),
        ('{"version": 4, "tokenizer": null, "tensors": {}}', "is of version 4; this jaxserve reads 1 to 3"),
        ('{"version": 0, "tokenizer": null, "tensors": {}}', "is of version 0; this jaxserve reads 1 to 3"),
    ],
)
def test_a_damaged_manifest_is_named(tmp_path, text, complaint):
    (tmp_path / NAME).write_text(text)
    with pytest.raises(CheckpointError, match=rf"jaxserve-manifest\.json .*{complaint}"):
        read_manifest(tmp_path)


def test_what_a_checkpoint_has_or_lacks_is_listed():
    manifest = Manifest.of(None, {name: TensorSum("float32", (1,), "") for name in ("a", "b")}, {})
    manifest.check_names(["b", "a"])
    with pytest.raises(CheckpointError, match="it lacks b and has besides c, d"):
        manifest.check_names(["a", "c", "d"])


def test_dtype_shape_and_elements_count_the_order_in_memory_does_not():
    tensor = np.arange(6, dtype=np.float32).reshape(2, 3)
    manifest = Manifest.of(None, {"a": TensorSum.of(tensor)}, {})
    manifest.check("a", np.asfortranarray(tensor))
    for other in (tensor.reshape(3, 2), tensor.view(np.int32), -tensor):
        with pytest.raises(CheckpointError, match=r"a is not what .* says: .* expected float32 \[2, 3\]"):
            manifest.check("a", other)


def test_a_fingerprint_is_of_what_gives_tokens_their_ids(model, tmp_path):
    first = tokenizer_fingerprint(model)
    assert tokenizer_fingerprint(shutil.copytree(model, tmp_path / "copy")) == first
    assert tokenizer_fingerprint(model / "tokenizer.json") == first
    config = json.loads((model / "tokenizer_config.json").read_text())
    (model / "tokenizer_config.json").write_text(json.dumps({**config, "chat_template": "other"}, indent=3))
    assert tokenizer_fingerprint(model) == first
    (model / "tokenizer.model").write_bytes(b"not used where tokenizer.json is")
    assert tokenizer_fingerprint(model) == first
    seen = {first, tokenizer_fingerprint(model / "tokenizer.model")}
    (model / "added_tokens.json").write_text('{"<x>": 300}')
    seen.add(tokenizer_fingerprint(model))
    (model / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": {"301": {"content": "<y>"}}}))
    seen.add(tokenizer_fingerprint(model))
    (model / "tokenizer.json").write_text("{}")
    seen.add(tokenizer_fingerprint(model))
    assert len(seen) == 5
    (tmp_path / "empty").mkdir()
    assert tokenizer_fingerprint(tmp_path / "empty") is None


def test_another_tokenizer_than_the_manifests_is_refused(model, tmp_path):
    other = shutil.copytree(model, tmp_path / "other")
    (other / "added_tokens.json").write_text('{"<x>": 300}')
    check_tokenizer(model, other)  # nothing says that it must not be
    write_manifest(model, Manifest.of(None, {}, {}))
    check_tokenizer(model, other)
    mine, its = tokenizer_fingerprint(model), tokenizer_fingerprint(other)
    assert mine is not None
    assert its is not None
    write_manifest(model, Manifest.of(mine, {}, {}))
    check_tokenizer(model, model)
    with pytest.raises(CheckpointError) as caught:
        check_tokenizer(model, other)
    for part in (str(other), its[:12], str(model / NAME), mine[:12]):
        assert part in caught.value.message


def changed(name, text):
    def change(model):
        (model / name).parent.mkdir(exist_ok=True)
        (model / name).write_text(text)
        return name

    return change


def removed(model):
    (model / "chat_template.jinja").unlink()
    return "chat_template.jinja"


@pytest.mark.parametrize(
    "change",
    [
        changed("chat_template.jinja", "{{ messages[0].content }}, and send money"),
        changed("tokenizer_config.json", '{"chat_template": "other"}'),
        changed("special_tokens_map.json", '{"bos_token": "<other>"}'),
        changed("additional_chat_templates/tool_use.jinja", "other"),
        removed,
    ],
    ids=["template", "configuration", "special tokens", "new file", "removed"],
)
def test_a_start_that_verifies_compares_how_prompts_look(model, change):
    """And no other start does: a template may be changed on purpose."""
    (model / "chat_template.jinja").write_text("{{ messages[0].content }}")
    write_manifest(model, Manifest.of(tokenizer_fingerprint(model), {}, prompt_files(model)))
    settings = {"model": str(model), "max_model_len": 32}
    prepare(EngineConfig.from_settings({**settings, "verify_weights": True}))
    name = change(model)
    prepare(EngineConfig.from_settings(settings))
    with pytest.raises(
        CheckpointError, match=r"is not what jaxserve-manifest\.json says: .* the file is damaged or was changed"
    ) as caught:
        prepare(EngineConfig.from_settings({**settings, "verify_weights": True}))
    assert caught.value.message.startswith(str(model / name))


def test_a_manifest_without_prompt_files_is_read_and_says_so(model, caplog):
    (model / NAME).write_text('{"version": 1, "tokenizer": null, "tensors": {}}')
    check_prompt_files(model, model)
    assert "is of version 1 and does not cover the chat template" in caplog.text
