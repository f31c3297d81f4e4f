"""A server of the bundled model, and a browser to open its pages with."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Error, Page, sync_playwright

from tests.support.serve_process import Process, Served
from tests.system.interop.conftest import SMALL
from tests.system.page.chat import Chat

# What keeps it from looking for anything outside this machine.
_ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """Of a module at most: while it is there its event loop runs, and no other test can have one."""
    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if path is None:
        pytest.skip("no chromium on this machine: pages are not checked in a browser")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=list(_ARGUMENTS))
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def pico(served: Served, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    """The bundled model, which can add."""
    yield from served(tmp_path_factory.mktemp("pico"), *SMALL)


@contextmanager
def tab_at(chromium: Browser, address: str) -> Iterator[Page]:
    """A tab of its own, with storage of its own; a test fails if a script does, or if the policy stopped anything."""
    context = chromium.new_context(base_url=address, locale="en-GB", viewport={"width": 1280, "height": 800})
    context.set_default_timeout(15_000)
    tab = context.new_page()
    failures: list[str] = []

    def on_error(error: Error) -> None:
        failures.append(str(error))

    def on_console(message: ConsoleMessage) -> None:
        if message.type == "error" and "Failed to load resource" not in message.text:  # statuses are for tests to look at
            failures.append(message.text)

    tab.on("pageerror", on_error)
    tab.on("console", on_console)
    yield tab
    context.close()
    assert not failures


@pytest.fixture
def page(chromium: Browser, pico: Process) -> Iterator[Page]:
    """A tab of a server of the bundled model."""
    with tab_at(chromium, pico.http) as tab:
        yield tab


@pytest.fixture
def chat(page: Page) -> Chat:
    """The chat page in it."""
    return Chat(page)
