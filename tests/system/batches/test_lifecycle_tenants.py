"""Batches of tenants: each runs at its own tenant's cost, within its budget of the day, out of reach of the others."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.support.batches import begin, check_answers, count_done, lines, request, sdk, wait
from tests.support.hash_server import HashServer, hash_server, until

KEYS: dict[str, dict[str, object]] = {
    "limited": {"tenant": "limited", "rpm": 1, "tpm": 30, "max_concurrent": 1},
    "daily": {"tenant": "daily", "daily_tokens": 100},
    "one": {"tenant": "one"},
    "other": {"tenant": "other"},
    "revoked": {"tenant": "twice"},
    "kept": {"tenant": "twice"},
}


def keys_toml(*names: str) -> str:
    """A file with some of the keys; each is its own name."""
    entries = []
    for name in names:
        fields = {"sha256": hashlib.sha256(name.encode()).hexdigest(), "id": name, **KEYS[name]}
        entries += ["[[key]]", *(f"{field} = {json.dumps(value)}" for field, value in fields.items()), ""]
    return "\n".join(entries)


@dataclass(frozen=True)
class Gated:
    server: HashServer
    folder: Path

    def sdk(self, key: str) -> openai.OpenAI:
        return sdk(self.server, key)

    def allow(self, *names: str) -> None:
        """From now on there are these keys."""
        new = self.folder / "new.toml"
        new.write_text(keys_toml(*names))
        new.replace(self.folder / "keys.toml")

    def usage(self, tenant: str) -> list[dict[str, Any]]:
        found = [json.loads(line) for line in (self.folder / "usage.jsonl").read_text().splitlines()]
        return [one for one in found if one["tenant"] == tenant]


@pytest.fixture(scope="module")
def gated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gated]:
    folder = tmp_path_factory.mktemp("gated")
    (folder / "keys.toml").write_text(keys_toml(*KEYS))
    settings = {name: str(folder / file) for name, file in (("keys", "keys.toml"), ("usage_log", "usage.jsonl"))}
    with hash_server(folder, {**settings, "state_dir": str(folder / "state")}, step_seconds=0.01) as running:
        yield Gated(running, folder)


def test_limits_of_the_minute_are_for_those_who_wait_and_every_token_is_on_the_bill(gated: Gated) -> None:
    requests = [request(number, 10) for number in range(20)]
    with gated.sdk("limited") as client:
        batch = wait(client, begin(client, requests))
        assert (batch.status, count_done(batch), batch.error_file_id) == ("completed", 20, None)
        check_answers(requests, lines(client, batch.output_file_id))
        assert client.completions.create(model="hash", prompt="x", max_tokens=5).usage is not None, "the limit is untouched"

    def billed() -> list[dict[str, Any]]:
        return [one for one in gated.usage("limited") if one["request_id"].startswith(batch.id)]

    until(lambda: sum(one["final"] for one in billed()) == 20)
    assert batch.usage is not None
    assert sum(one["prompt_tokens"] for one in billed()) == batch.usage.input_tokens == 80
    assert sum(one["completion_tokens"] for one in billed()) == batch.usage.output_tokens == 200
    assert {(one["key_id"], one["service_class"], one["model"]) for one in billed()} == {("limited", "batch", "hash")}
    assert {one["request_id"] for one in billed()} == {f"{batch.id}-{number}" for number in range(1, 21)}


def test_lines_wait_for_the_budget_of_another_day(gated: Gated) -> None:
    requests = [request(number, 10) for number in range(30)]  # 14 tokens each
    with gated.sdk("daily") as client:
        batch = wait(client, begin(client, requests), done=7)
        with gated.sdk("other") as elsewhere:
            assert wait(elsewhere, begin(elsewhere, requests)).status == "completed"
        found = client.batches.retrieve(batch.id)
        assert (found.status, count_done(found)) == ("in_progress", 7)
        client.batches.cancel(batch.id)
        ended = wait(client, batch)
        assert (ended.status, count_done(ended)) == ("cancelled", 7)
        check_answers(requests, lines(client, ended.output_file_id))


def test_a_tenants_batch_finds_no_prefix_of_anothers(gated: Gated) -> None:
    requests = [request(number, 1, prompt=[50, *range(100, 140), number]) for number in range(3)]
    for key in ("one", "other"):
        with gated.sdk(key) as client:
            alone = wait(client, begin(client, requests[:1]))
            assert alone.usage is not None
            assert alone.usage.input_tokens_details.cached_tokens == 0
            more = wait(client, begin(client, requests[1:]))
            assert more.usage is not None
            assert more.usage.input_tokens_details.cached_tokens == 80


def test_without_its_key_a_batch_is_not_answered_any_further(gated: Gated) -> None:
    requests = [request(number, 100) for number in range(200)]
    with gated.sdk("revoked") as client, gated.sdk("kept") as other_key:
        batch = wait(client, begin(client, requests), done=1)
        gated.allow(*KEYS.keys() - {"revoked"})
        ended = wait(other_key, batch)
        output, errors = lines(other_key, ended.output_file_id), lines(other_key, ended.error_file_id)
    assert ended.status == "completed"
    assert len(output) + len(errors) == 200
    check_answers(requests, output)
    assert {(one["response"], one["error"]["code"]) for one in errors.values()} == {(None, "invalid_api_key")}
