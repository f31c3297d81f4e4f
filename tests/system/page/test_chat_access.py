"""The chat page without a mouse, with a screen reader, on a phone, and behind a key."""

from __future__ import annotations

import asyncio
import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect

from tests.support.scripted import ScriptedClient
from tests.support.serving import Serving, serving
from tests.system.page.chat import Chat, calls
from tests.system.page.conftest import tab_at
from tests.system.page.test_chat_text import TEXT

SUM = "What is 17 + 25?"


def check_accessible(page: Page) -> None:
    found = Axe().run(page).response["violations"]
    assert [(one["id"], [node["html"] for node in one["nodes"]]) for one in found] == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_view_breaks_a_rule_of_axe(chat: Chat, scheme: Any) -> None:
    page = chat.page
    page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
    check_accessible(page)
    chat.prefer(logprobs=True, calculator=True, system="x")
    chat.ask(SUM)
    chat.answers.last.get_by_role("button", name="Tokens and their probabilities").click()
    page.locator(".token").first.hover()
    chat.script([{"reasoning_content": "Hm."}, {"content": TEXT}, calls(("weather", "{}"))], '{"error": 1}')
    chat.send("Show me")
    expect(page.get_by_label("Answer of weather")).to_be_visible()
    chat.answers.last.locator("summary").click()
    chat.questions.last.get_by_role("button", name="Edit and send again").click()
    expect(page.locator("math").first).to_be_attached()
    expect(page.locator(".hljs-keyword").first).to_be_attached()
    check_accessible(page)
    page.get_by_label("Edit message").press("Escape")
    page.get_by_role("button", name="Settings").click()
    page.get_by_label("JSON schema").fill("{")
    check_accessible(page)
    page.keyboard.press("Escape")
    page.keyboard.press("Control+/")
    check_accessible(page)
    page.keyboard.press("Escape")
    page.set_viewport_size({"width": 360, "height": 740})
    page.get_by_role("button", name="Conversations", exact=True).click()
    expect(page.get_by_role("button", name="New chat")).to_be_focused()
    check_accessible(page)


def test_everything_by_keys(chat: Chat) -> None:
    page = chat.page
    expect(chat.field).to_be_focused()
    page.keyboard.type(SUM)
    page.keyboard.press("Enter")
    expect(chat.answers).to_have_count(1)
    chat.wait()
    expect(chat.field).to_be_focused()
    page.keyboard.press("Control+/")
    expect(page.get_by_role("dialog")).to_contain_text("new line")
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    page.keyboard.press("Control+k")
    page.keyboard.type("17")
    expect(page.locator(".told")).to_have_text("1 found")
    page.keyboard.press("Tab")
    expect(page.locator(".conversations .open")).to_be_focused()
    page.keyboard.press("Tab")
    expect(page.get_by_role("button", name=f"Rename {SUM}")).to_be_focused()
    page.keyboard.press("Control+Shift+O")
    expect(chat.answers).to_have_count(0)
    expect(chat.field).to_be_focused()
    chat.field.dispatch_event("keydown", {"key": "Enter", "isComposing": True})  # chooses a word of an input method
    assert len(chat.asked) == 1


_HEARD = """() => {
  window.heard = [];
  for (const region of document.querySelectorAll("[aria-live=polite], [role=status], [role=alert]")) {
    const observer = new MutationObserver(() => window.heard.push(region.textContent));
    observer.observe(region, {childList: true, characterData: true, subtree: true});
  }
}"""


def test_a_screen_reader_hears_answers_whole(chat: Chat) -> None:
    page = chat.page
    expect(page.get_by_role("log", name="Conversation")).to_have_attribute("aria-live", "off")
    page.evaluate(_HEARD)
    chat.script([{"content": word} for word in ("one ", "two ", "three")])
    chat.send("Count")
    chat.wait()
    expect(page.locator("body > [role=status]")).to_have_text("Answer: one two three")
    assert [text for text in page.evaluate("window.heard") if text] == ["Answer: one two three"]
    expect(chat.answers.last.get_by_role("heading")).to_have_text("scripted")
    expect(chat.questions.last.get_by_role("heading")).to_have_text("You")


def test_on_a_phone_the_conversations_are_a_drawer(chat: Chat) -> None:
    page = chat.page
    page.set_viewport_size({"width": 360, "height": 740})
    chat.script([{"content": TEXT + "\n" + "wide" * 200}])
    chat.send(SUM)
    chat.wait()
    assert page.evaluate("document.documentElement.scrollWidth") == 360
    drawer = page.get_by_role("complementary", name="Conversations")
    expect(drawer).not_to_be_visible()
    menu = page.get_by_role("button", name="Conversations", exact=True)
    menu.click()
    expect(drawer).to_be_visible()
    expect(menu).to_have_attribute("aria-expanded", "true")
    page.keyboard.press("Escape")
    expect(drawer).not_to_be_visible()
    expect(menu).to_be_focused()
    menu.click()
    page.locator(".conversations .open").click()
    expect(drawer).not_to_be_visible()
    menu.click()
    page.locator(".shade").click(position={"x": 340, "y": 300})
    expect(drawer).not_to_be_visible()


@contextmanager
def served_with_key(key: str) -> Iterator[Serving]:
    """A server that wants a key, in a thread."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    opened = serving(ScriptedClient(), api_key_hashes=(hashlib.sha256(key.encode()).hexdigest(),))
    try:
        yield asyncio.run_coroutine_threadsafe(opened.__aenter__(), loop).result()
        asyncio.run_coroutine_threadsafe(opened.__aexit__(None, None, None), loop).result()
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def test_a_server_with_keys_asks_for_one(chromium: Browser) -> None:
    key = "a-key-of-this-test"
    with served_with_key(key) as running, tab_at(chromium, running.http) as page:
        chat = Chat(page)
        dialog = page.get_by_role("dialog", name="API key")
        field = dialog.get_by_label("Key", exact=True)
        expect(field).to_be_focused()
        check_accessible(page)
        dialog.get_by_role("button", name="Cancel").click()
        chat.send("Hello")
        field.fill("wrong")
        field.press("Enter")
        expect(field).to_have_value("wrong")  # asked again, for that was refused
        field.fill(key)
        field.press("Enter")
        expect(dialog).to_have_count(0)
        chat.wait()
        assert chat.text() == "Hello"  # the question was not lost
        page.reload()
        expect(page.get_by_label("Model", exact=True).locator("option")).to_have_text(["echo"])
        page.get_by_role("button", name="Settings").click()
        expect(page.get_by_text("A key is sent.")).to_be_visible()
        assert key not in page.evaluate("document.body.innerHTML")
