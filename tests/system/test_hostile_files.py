"""Files that are nested too deeply, or whose numbers ask for memory: one line that names the file, before anything is made."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from jaxserve.config.fields import CacheConfig
from jaxserve.config.file import read_settings
from jaxserve.config.policies_file import load_policies
from jaxserve.engine.preparation import BUNDLED_MODEL, model_directory
from jaxserve.engine.warm import read_warm_prompts
from jaxserve.errors import CheckpointError, JaxserveError
from jaxserve.evaluation.result import read_results
from jaxserve.models.checkpoint import read_hf_config
from jaxserve.models.registry import decoder_config
from jaxserve.simulation.profile import read_profile
from jaxserve.tokenizer.config_files import read_tokenizer_config
from jaxserve.tokenizer.load import load_tokenizer
from jaxserve.weights.manifest import MANIFEST, read_manifest

PICO = model_directory(BUNDLED_MODEL)
ROOT = Path(__file__).resolve().parents[2]
DEEP = '{"a": ' + "[" * 100_000 + "]" * 100_000 + "}"
READERS = {
    "config.json": lambda path: read_hf_config(path.parent),
    "tokenizer_config.json": lambda path: read_tokenizer_config(path.parent),
    "tokenizer.json": load_tokenizer,
    MANIFEST: lambda path: read_manifest(path.parent),
    "policies.json": lambda path: load_policies(str(path)),
    "settings.yaml": lambda path: read_settings(str(path), ["a"]),
    "warm.jsonl": lambda path: read_warm_prompts(CacheConfig(warm_prompts=str(path))),
    "scores.json": read_results,
    "profile.json": lambda path: read_profile(str(path)),
}


@pytest.mark.parametrize("name", READERS)
def test_a_file_that_is_nested_too_deeply_is_named(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_text(DEEP)
    with pytest.raises(JaxserveError) as caught:
        READERS[name](path)
    assert name in caught.value.message
    assert "\n" not in caught.value.message
    assert len(caught.value.message) < 400


@pytest.mark.parametrize("name", ["num_hidden_layers", "num_experts", "num_local_experts", "n_routed_experts"])
def test_numbers_of_things_have_an_end(name: str) -> None:
    families = {"num_experts": "Qwen2Moe", "num_local_experts": "Mixtral", "n_routed_experts": "DeepseekV3"}
    golden = ROOT / "tests/golden/data"
    architecture = f"{families.get(name, 'Llama')}ForCausalLM"
    configs = [json.loads(path.read_text()) for path in golden.rglob("config.json")]
    config = next(config for config in configs if config["architectures"] == [architecture])
    with pytest.raises(CheckpointError, match=rf"config\.json: {name} must be at most \d+, got 1000000000$"):
        decoder_config(config | {name: 10**9})


def test_a_token_id_is_an_int32() -> None:
    config = read_hf_config(PICO)
    with pytest.raises(
        CheckpointError, match="eos_token_id must be a token id, at most 2147483647, or a list of them, got 2147483648"
    ):
        decoder_config(config | {"eos_token_id": 2**31})


def hostile_vocabulary(folder: Path) -> None:
    tokenizer = json.loads((PICO / "tokenizer.json").read_text())
    tokenizer["model"]["vocab"]["an odd one"] = 2**31
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))


def hostile_added_token(folder: Path) -> None:
    config = json.loads((PICO / "tokenizer_config.json").read_text())
    config["added_tokens_decoder"] = {str(2**31): {"content": "<odd>"}}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def hostile_layers(folder: Path) -> None:
    config = json.loads((PICO / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 10**9}))


def nested(folder: Path) -> None:
    (folder / "config.json").write_text(DEEP)


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (hostile_vocabulary, "tokenizer.json has a token of the id 2147483648; the largest that is read is 4194303"),
        (hostile_added_token, "tokenizer_config.json has a token of the id 2147483648; the largest that is read is 4194303"),
        (hostile_layers, "config.json: num_hidden_layers must be at most 1024, got 1000000000"),
        (nested, "config.json cannot be read: maximum recursion depth exceeded"),
    ],
)
def test_a_server_says_it_in_one_line_and_little_memory(tmp_path: Path, spoil, says: str) -> None:
    folder = tmp_path / "model"
    shutil.copytree(PICO, folder)
    spoil(folder)
    limited = ["sh", "-c", f'ulimit -v {12 << 20}; exec "$@"', "sh"]  # KiB of addresses: jax itself takes many
    command = [*limited, sys.executable, "-m", "jaxserve.serve", str(folder), "--check"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)
    assert result.returncode == 2
    assert result.stderr.startswith("jaxserve: ")
    assert says in result.stderr
    assert result.stderr.count("\n") == 1
