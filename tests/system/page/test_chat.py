"""Conversations on the chat page, with the bundled model behind it: asked, stopped, edited, branched, kept, found, moved."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.system.page.chat import Chat

SUM = "What is 17 + 25?"
GREEDY: dict[str, Any] = {"numbers": {"temperature": 0}}


def test_answers_stream_and_tell_how_long_they_took(chat: Chat) -> None:
    assert chat.ask(SUM) == "42"
    expect(chat.answers.last.locator(".statistics")).to_contain_text("14 + 3 tokens")
    [body] = chat.asked
    assert body == {  # what is not set is not sent
        "messages": [{"role": "user", "content": SUM}],
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    chat.add_to_bodies(ignore_eos=True, max_tokens=300)
    chat.ask(SUM)
    expect(chat.answers.last.locator(".statistics")).to_have_text(re.compile(r"^[0-9.]+ s[0-9.]+ tokens/s\d+ \+ 300 tokens$"))
    chat.field.fill("first line")
    chat.field.press("Shift+Enter")
    chat.field.press_sequentially("second line")
    assert chat.field.input_value() == "first line\nsecond line"


def test_branches_of_edits_and_new_answers(chat: Chat) -> None:
    page = chat.page
    chat.prefer(**GREEDY)
    assert chat.ask(SUM) == "42"
    chat.answers.last.get_by_role("button", name="Regenerate").click()
    expect(chat.answers.last.locator(".branches")).to_contain_text("2/2")
    chat.wait()
    assert chat.ask("What is 30 + 12?") == "42"

    chat.questions.first.get_by_role("button", name="Edit and send again").click()
    page.get_by_label("Edit message").fill("What is 20 + 11?")
    page.get_by_label("Edit message").press("Enter")
    expect(chat.questions).to_have_count(1)  # what followed is on the other branch
    chat.wait()
    assert chat.text() == "31"
    assert len(chat.asked[-1]["messages"]) == 1

    chat.questions.first.get_by_role("button", name="Earlier branch").click()
    expect(chat.questions).to_have_count(2)
    expect(chat.answers.first.locator(".branches")).to_contain_text("2/2")
    chat.answers.first.get_by_role("button", name="Earlier branch").click()
    expect(chat.questions).to_have_count(1)
    page.reload()  # the choice of branches is kept
    expect(chat.answers.first.locator(".branches")).to_contain_text("1/2")
    expect(chat.questions.first.locator(".branches")).to_contain_text("1/2")

    chat.answers.first.get_by_role("button", name="Delete message").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    expect(chat.answers.first.locator(".branches")).to_have_count(0)
    expect(chat.questions).to_have_count(2)
    assert len(chat.stored()) == 6


def test_conversations_are_found_renamed_moved_and_deleted(chat: Chat, tmp_path: Path) -> None:
    page = chat.page
    chat.ask(SUM)
    page.keyboard.press("Control+Shift+O")
    expect(chat.questions).to_have_count(0)
    chat.ask('Reverse the word "stone".')
    items = page.locator(".conversations li")
    expect(items).to_have_count(2)

    page.keyboard.press("Control+k")
    search = page.get_by_label("Search conversations")
    expect(search).to_be_focused()
    search.fill("42")  # said by the model, in no title
    expect(items).to_have_count(1)
    expect(items.locator(".title")).to_have_text(SUM)
    items.get_by_role("button", name=SUM, exact=False).first.click()
    expect(chat.questions.locator(".body")).to_have_text([SUM])

    items.hover()
    items.get_by_role("button", name="Rename").click()
    page.get_by_label("Rename conversation").last.fill("Sums")
    page.get_by_role("button", name="Rename", exact=True).click()
    search.fill("sums")
    expect(items.locator(".title")).to_have_text(["Sums"])
    search.fill("")
    expect(items).to_have_count(2)

    with page.expect_download() as downloading:
        page.get_by_role("button", name="Export all").click()
    downloading.value.save_as(tmp_path / "all.json")
    written = json.loads((tmp_path / "all.json").read_text())
    assert {one["title"] for one in written["conversations"]} == {"Sums", 'Reverse the word "stone".'}

    for _ in range(2):
        items.first.hover()
        items.first.get_by_role("button", name="Delete").click()
        page.get_by_role("dialog").get_by_role("button", name="Delete").click()
        expect(page.get_by_role("dialog")).to_have_count(0)
    expect(items).to_have_count(0)
    assert chat.stored() == []

    page.locator("input[type=file]").set_input_files(tmp_path / "all.json")
    expect(items).to_have_count(2)
    page.get_by_role("button", name="Sums", exact=True).click()
    expect(chat.questions.locator(".body")).to_have_text([SUM])
    assert chat.text() == "42"
    assert chat.ask("What is 30 + 12?") == "42"  # and it goes on
    assert len(chat.asked[-1]["messages"]) == 3


NO_STORAGE = """
Object.defineProperty(window, "indexedDB", {get() { throw new DOMException("no storage", "SecurityError"); }});
Object.defineProperty(window, "localStorage", {get() { throw new DOMException("no storage", "SecurityError"); }});
"""


def test_without_storage_it_lasts_as_long_as_the_tab(page: Page) -> None:
    page.add_init_script(NO_STORAGE)
    chat = Chat(page)
    expect(page.get_by_text("This browser stores nothing here")).to_be_visible()
    assert chat.ask(SUM) == "42"
    page.keyboard.press("Control+Shift+O")
    expect(chat.questions).to_have_count(0)
    page.get_by_role("button", name=SUM, exact=True).click()
    expect(chat.questions.locator(".body")).to_have_text([SUM])
    page.get_by_label("Search conversations").fill("nothing of that")
    expect(page.locator(".told")).to_have_text("0 found")


def test_settings_are_sent_and_kept(chat: Chat) -> None:
    page = chat.page
    page.get_by_role("button", name="Settings").click()
    values = {
        "Temperature": "0", "Top p": "0.9", "Top k": "40", "Min p": "0.05", "Max tokens": "6", "Seed": "7",
        "Presence penalty": "0.1", "Frequency penalty": "0.2", "Repetition penalty": "1.1",
    }  # fmt: skip
    for label, value in values.items():
        page.get_by_label(label).fill(value)
    page.get_by_label("Stop strings").fill("END\\n\nSTOP")
    page.get_by_label("System prompt").fill("Be brief.")
    page.get_by_role("button", name="Close settings").click()
    page.reload()
    chat.ask(SUM)
    body = chat.asked[-1]
    assert body["messages"][0] == {"role": "system", "content": "Be brief."}
    assert body["stop"] == ["END\n", "STOP"]
    names = [label.lower().replace(" ", "_") for label in values]
    assert [body[name] for name in names] == [float(value) for value in values.values()]

    page.get_by_role("button", name="Settings").click()
    page.get_by_role("button", name="All as the server has it").click()
    expect(page.get_by_label("Temperature")).to_have_value("")
    page.get_by_role("button", name="Close settings").click()
    chat.ask(SUM)
    assert set(chat.asked[-1]) == {"messages", "stream", "stream_options"}


def test_a_schema_gives_the_answer_its_form_and_a_wrong_one_is_told_at_once(chat: Chat) -> None:
    page = chat.page
    page.get_by_role("button", name="Settings").click()
    field = page.get_by_label("JSON schema")
    field.fill('{"type": ')
    expect(page.locator("#set-schema-error")).to_contain_text("No JSON")
    expect(field).to_have_attribute("aria-invalid", "true")
    page.get_by_role("button", name="Close settings").click()
    chat.send(SUM)  # is not sent: the field is shown instead
    expect(field).to_be_focused()
    assert chat.asked == []
    properties = {"sum": {"type": "integer"}}
    field.fill(json.dumps({"type": "object", "properties": properties, "required": ["sum"], "additionalProperties": False}))
    expect(page.locator("#set-schema-error")).to_be_empty()
    page.get_by_role("button", name="Close settings").click()
    assert isinstance(json.loads(chat.ask(SUM))["sum"], int)


def test_errors_are_told_in_place_and_can_be_tried_again(chat: Chat) -> None:
    chat.prefer(numbers={"temperature": -1})
    chat.send(SUM)
    notice = chat.answers.last.locator(".notice")
    expect(notice).to_contain_text("temperature")
    chat.prefer()
    notice.get_by_role("button", name="Retry").click()
    expect(chat.answers.last.locator(".branches")).to_contain_text("2/2")
    chat.wait()
    assert chat.text() == "42"


def test_probabilities_of_tokens(chat: Chat) -> None:
    page = chat.page
    page.get_by_role("button", name="Settings").click()
    page.get_by_label("Probabilities of tokens").check()
    page.get_by_role("button", name="Close settings").click()
    chat.ask(SUM)
    chat.answers.last.get_by_role("button", name="Tokens and their probabilities").click()
    tokens = page.locator(".token")
    expect(tokens).to_have_text(["4", "2", "<|end|>"])
    tokens.first.hover()
    told = page.locator(".token-told")
    expect(told.locator(".token-head")).to_contain_text("99.")
    expect(told.locator("li")).to_have_count(5)
    expect(told.locator("li.taken")).to_contain_text("4")
    tokens.first.focus()
    page.keyboard.press("ArrowRight")
    expect(tokens.nth(1)).to_be_focused()
    expect(told.locator("li.taken")).to_contain_text("2")
    page.keyboard.press("End")
    expect(tokens.last).to_be_focused()
    page.reload()  # they are kept with the message
    chat.answers.last.get_by_role("button", name="Tokens and their probabilities").click()
    expect(tokens).to_have_count(3)


def one_message(**fields: str) -> dict[str, Any]:
    """A file with one message that is like this."""
    message = {"id": "a", "parent": "", "role": "user", "content": "", **fields}
    return {"format": "jaxserve-conversations", "version": 1, "conversations": [{"messages": [message]}]}


BROKEN_FILES = [
    ("{", "no JSON"),
    ({"conversations": []}, "format"),
    ({"format": "jaxserve-conversations", "version": 9, "conversations": []}, "version 9"),
    ({"format": "jaxserve-conversations", "version": 1, "conversations": [{}]}, "conversations[0] has no messages"),
    (one_message(parent="a"), "messages[0].parent"),
    (one_message(role="system"), "messages[0].role"),
]


def test_files_that_are_wrong_are_told_what_is_wrong(chat: Chat, tmp_path: Path) -> None:
    dialog = chat.page.get_by_role("dialog")
    for content, told in BROKEN_FILES:
        chat.import_file(content, tmp_path)
        expect(dialog).to_contain_text(told)
        dialog.get_by_role("button", name="OK").click()
        expect(dialog).to_have_count(0)
    assert chat.stored() == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_colours_are_those_of_the_system_until_chosen(chat: Chat, scheme: Any) -> None:
    page = chat.page
    page.emulate_media(color_scheme=scheme)
    background = "getComputedStyle(document.body).backgroundColor"
    assert page.evaluate(background) == {"light": "rgb(255, 255, 255)", "dark": "rgb(20, 22, 26)"}[scheme]
    page.get_by_role("button", name="Colours: system").click()
    page.get_by_role("button", name="Colours: light").click()
    page.reload()
    expect(page.get_by_role("button", name="Colours: dark")).to_be_visible()
    assert page.evaluate(background) == "rgb(20, 22, 26)"
