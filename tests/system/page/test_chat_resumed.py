"""Answers whose connection breaks, whose page is loaded again, or that are stopped: nothing comes twice, and nothing is lost."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, expect

from tests.support.serve_process import Process
from tests.support.stream_proxy import StreamProxy, stream_proxy
from tests.system.page.chat import Chat
from tests.system.page.conftest import tab_at

LONG: dict[str, Any] = {"ignore_eos": True, "max_tokens": 300}  # the bundled model's own answers are short
SOME_BYTES = 1500  # less than a long answer has, however few events the server makes of it


@pytest.fixture
def proxy(pico: Process) -> Iterator[StreamProxy]:
    with stream_proxy(int(pico.http.rpartition(":")[2])) as one:
        yield one


@pytest.fixture
def far(chromium: Browser, proxy: StreamProxy) -> Iterator[Chat]:
    """The page, reached through the proxy, asking for long answers."""
    with tab_at(chromium, f"http://127.0.0.1:{proxy.port}") as tab:
        chat = Chat(tab)
        chat.add_to_bodies(**LONG)
        yield chat


def recorded(pico: Process, message: dict[str, Any]) -> tuple[str, int]:
    """The text of an answer, and the number of its last event, as the server has them."""
    reply = httpx.get(f"{pico.http}/v1/streams/{message['stream']['id']}", timeout=60)
    assert reply.status_code == 200, reply.text
    text, last = "", 0
    for line in reply.text.splitlines():
        if line.startswith("id: "):
            last = int(line[4:])
        elif line.startswith("data: {"):
            for choice in json.loads(line[6:])["choices"]:
                text += choice["delta"].get("content") or ""
    return text, last


def check_whole(chat: Chat, pico: Process) -> None:
    message = chat.stored()[-1]
    text, last = recorded(pico, message)
    assert message["state"] == "done"
    assert message["content"] == text
    assert message["stream"]["last"] == last - 1  # [DONE] is the last
    assert message["usage"]["completion"] == LONG["max_tokens"]


def test_a_broken_connection_is_gone_on_with(far: Chat, proxy: StreamProxy, pico: Process) -> None:
    proxy.hold_after(SOME_BYTES)
    far.send("What is 17 + 25?")
    far.begun()  # a browser drops what came just before a connection broke
    with far.page.expect_response("**/v1/streams/*") as going_on:
        proxy.cut()
    assert int(going_on.value.url.partition("?from=")[2]) > 0
    far.wait()
    check_whole(far, pico)
    assert len(far.asked) == 1


def test_a_page_that_is_loaded_again_goes_on(far: Chat, proxy: StreamProxy, pico: Process) -> None:
    proxy.hold_after(SOME_BYTES)
    far.send("What is 17 + 25?")
    far.begun()
    far.page.reload()
    expect(far.answers).to_have_count(1)
    far.wait()
    check_whole(far, pico)
    assert len(far.asked) == 1
    shown = far.text()
    far.page.reload()
    expect(far.answers.last.locator(".statistics")).to_be_visible()
    assert far.text() == shown


def test_what_the_server_has_forgotten_is_broken_off_and_can_be_continued(far: Chat, proxy: StreamProxy, pico: Process) -> None:
    proxy.hold_after(SOME_BYTES)
    far.send("What is 17 + 25?")
    far.begun()
    message = far.stored()[-1]
    assert httpx.delete(f"{pico.http}/v1/streams/{message['stream']['id']}", timeout=60).status_code == 200
    far.page.reload()
    notice = far.answers.last.locator(".notice")
    expect(notice).to_contain_text("no more of this answer")
    before = far.stored()[-1]["content"]
    notice.get_by_role("button", name="Continue").click()
    far.wait()
    after = far.stored()[-1]
    assert after["state"] == "done", after.get("error")
    assert after["content"].startswith(before)
    assert len(after["content"]) > len(before)
    assert far.asked[-1]["continue_final_message"]
    assert far.asked[-1]["messages"][-1] == {"role": "assistant", "content": before}


def test_stopping_ends_the_stream_on_the_server(far: Chat, proxy: StreamProxy, pico: Process) -> None:
    proxy.hold_after(SOME_BYTES)
    far.send("What is 17 + 25?")
    far.begun()
    far.page.keyboard.press("Escape")
    expect(far.answers.last.locator(".notice")).to_contain_text("Stopped.")
    far.wait()
    message = far.stored()[-1]
    assert message["state"] == "stopped"
    assert message["content"]
    reply = httpx.get(f"{pico.http}/v1/streams/{message['stream']['id']}", timeout=60)
    assert reply.status_code == 404
    far.answers.last.get_by_role("button", name="Continue").click()
    far.wait()
    assert len(far.stored()[-1]["content"]) > len(message["content"])
