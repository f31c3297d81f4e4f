"""The chat page as its user has it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from playwright.sync_api import Locator, Page, Request, Route, expect

COMPLETIONS = "**/v1/chat/completions"

_STORED = """() => new Promise((resolve, reject) => {
  const opening = indexedDB.open("jaxserve");
  opening.onerror = () => reject(opening.error);
  opening.onsuccess = () => {
    const all = opening.result.transaction("messages").objectStore("messages").getAll();
    all.onsuccess = () => { opening.result.close(); resolve(all.result.sort((one, other) => one.created - other.created)); };
  };
})"""

Delta = Mapping[str, Any]


def sse(deltas: Sequence[Delta], finish: str = "stop") -> str:
    """What a server sends for an answer of these deltas."""
    chunks: list[dict[str, Any]] = [{"choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
    chunks.append({"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]})
    chunks.append({"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": len(deltas)}})
    return "".join(f"data: {json.dumps({'model': 'scripted', **chunk})}\n\n" for chunk in chunks) + "data: [DONE]\n\n"


def calls(*called: tuple[str, str]) -> Delta:
    """A delta with calls of tools: name and arguments of each."""
    return {
        "tool_calls": [
            {"index": index, "id": f"call_{index}", "type": "function", "function": {"name": name, "arguments": arguments}}
            for index, (name, arguments) in enumerate(called)
        ]
    }


class Chat:
    """A tab with the page.

    Attributes:
        asked: bodies of the completions that the page has asked for.
    """

    def __init__(self, page: Page) -> None:
        self.page = page
        self.asked: list[dict[str, Any]] = []
        page.on("request", self._note)
        page.goto("./")
        self.field = page.get_by_label("Message", exact=True)
        self.field.wait_for()

    def _note(self, request: Request) -> None:
        if request.url.endswith("/v1/chat/completions") and request.post_data:
            self.asked.append(json.loads(request.post_data))

    def send(self, text: str) -> None:
        self.field.fill(text)
        self.field.press("Enter")

    def ask(self, text: str) -> str:
        """Send a message and wait for the answer's text."""
        before = self.answers.count()
        self.send(text)
        expect(self.answers).to_have_count(before + 1)
        self.wait()
        return self.text()

    def wait(self) -> None:
        """Until no answer is on its way."""
        expect(self.page.locator(".message.streaming")).to_have_count(0)
        expect(self.page.get_by_role("button", name="Send", exact=True)).to_be_visible()

    @property
    def answers(self) -> Locator:
        return self.page.locator(".message.assistant")

    @property
    def questions(self) -> Locator:
        return self.page.locator(".message.user")

    def text(self, place: int = -1) -> str:
        """The text of an answer; not only what of it is in sight."""
        return (self.answers.nth(place).locator(".body > .blocks").text_content() or "").strip()

    def stored(self) -> list[dict[str, Any]]:
        """All messages that the browser keeps, oldest first."""
        found: list[dict[str, Any]] = self.page.evaluate(_STORED)
        return found

    def begun(self) -> None:
        """Until some of the last answer is shown, and kept."""
        expect(self.answers.last.locator(".body > .blocks")).to_have_text(re.compile(r"\S"))
        while not self.stored()[-1]["content"]:
            self.page.wait_for_timeout(20)

    def prefer(self, **preferences: Any) -> None:
        """Set what the settings panel sets, before the next answer."""
        self.page.evaluate("(given) => localStorage.setItem('jaxserve.chat', JSON.stringify(given))", preferences)

    def script(self, *replies: Sequence[Delta] | str) -> None:
        """Answer the next requests with these deltas, or these bodies, instead of the server."""
        left = list(replies)

        def answer(route: Route) -> None:
            reply = left.pop(0)
            route.fulfill(body=reply if isinstance(reply, str) else sse(reply), content_type="text/event-stream")

        self.page.unroute(COMPLETIONS)
        self.page.route(COMPLETIONS, answer)

    def add_to_bodies(self, **fields: Any) -> None:
        """Let the next requests have these fields too: those that the page has no field for."""

        def go_on(route: Route) -> None:
            route.continue_(post_data=json.dumps({**(route.request.post_data_json or {}), **fields}))

        self.page.route(COMPLETIONS, go_on)

    def import_file(self, content: Any, folder: Path) -> None:
        path = folder / "given.json"
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        self.page.locator("input[type=file]").set_input_files(path)
