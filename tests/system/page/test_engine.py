"""The engine page in a browser, against real servers."""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Locator, Page, expect

from tests.support.hash_server import hash_server
from tests.support.serve_process import Process

PATIENCE_MS = 20_000
SLIDER = "Turns of the engine"


def burst(server: Process, count: int, tokens: int, tenant: str = "acme") -> list[threading.Thread]:
    """Requests that run at the same time."""

    def ask(number: int) -> None:
        body = {"prompt": f"{number} + {number} = ", "max_tokens": tokens, "ignore_eos": True, "seed": number}
        reply = httpx.post(f"{server.http}/v1/completions", json=body, headers={"x-tenant": tenant}, timeout=60)
        assert reply.status_code == 200

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    return threads


def join(threads: list[threading.Thread]) -> None:
    for thread in threads:
        thread.join()


def metrics(server: Process) -> dict[str, float]:
    values: dict[str, float] = {}
    for line in httpx.get(f"{server.http}/metrics", timeout=60).text.splitlines():
        if line.startswith("jaxserve:"):
            series, value = line.rsplit(" ", 1)
            name = series.partition("{")[0].removeprefix("jaxserve:")
            values[name] = values.get(name, 0.0) + float(value)
    return values


def number(text: str | None) -> int:
    found = re.match(r"[\d,]+", text or "")
    assert found, text
    return int(found[0].replace(",", ""))


def figure(page: Page, name: str) -> Locator:
    return page.locator(f'[data-figure="{name}"]')


def watched(page: Page, server: Process) -> None:
    """The page is open and live, and has seen some requests come and end."""
    page.goto("/engine")
    expect(page.locator(".badge")).to_have_text("live")
    before = number(figure(page, "generated").text_content())
    join(burst(server, 6, 40))
    expect(figure(page, "generated")).to_have_text(f"{before + 6 * 40:,}", timeout=PATIENCE_MS)  # others' rows are there, too
    expect(page.locator(".requests tbody tr td:nth-child(4)").first).to_have_text("length")


def test_a_burst_is_shown_as_the_metrics_have_it(page: Page, pico: Process) -> None:
    page.goto("/engine")
    expect(page.locator(".badge")).to_have_text("live")
    before = metrics(pico)["generation_tokens_total"]
    shown = number(figure(page, "generated").text_content())  # also what nobody was left to read: others use this server
    threads = burst(pico, 12, 450)  # for some seconds: the page has four looks a second
    expect(figure(page, "running")).to_have_text("4", timeout=PATIENCE_MS)  # --max-num-seqs
    expect(page.get_by_role("region", name="Who waits")).to_contain_text("acme")
    expect(page.locator(".requests tbody")).to_contain_text("decode")
    expect(page.locator(".requests tbody")).to_contain_text("queued")
    assert number(page.locator('[data-pages="running"]').text_content()) > 0
    join(threads)
    expect(figure(page, "running")).to_have_text("0", timeout=PATIENCE_MS)
    expect(figure(page, "waiting")).to_have_text("0")
    values = metrics(pico)
    made = int(values["generation_tokens_total"] - before)
    expect(figure(page, "generated")).to_have_text(f"{shown + made:,}")
    expect(page.locator('[data-pages="running"]')).to_have_text("0 (0 %)")
    expect(page.locator('[data-pages="hits"]')).to_contain_text(f"of {int(values['prefix_cache_queries_total']):,} tokens")
    expect(page.locator('[data-programs="padding_tokens"]')).to_have_text(f"{int(values['padding_tokens_total']):,}")
    expect(page.get_by_text("Nothing waits.")).to_be_visible()


def test_pause_and_step_through_the_record(page: Page, pico: Process) -> None:
    watched(page, pico)
    slider = page.get_by_role("slider", name=SLIDER)
    page.get_by_role("button", name="Newest turn").click()
    expect(page.locator(".badge")).to_have_text("paused")
    newest = number(slider.get_attribute("aria-valuenow"))
    before = figure(page, "generated").text_content()
    page.get_by_role("button", name="One turn back").click()
    page.get_by_role("button", name="Ten turns back").click()
    expect(slider).to_have_attribute("aria-valuenow", str(newest - 11))
    expect(page.locator(".detail")).to_contain_text(re.compile(r"Turn \d+: launched step \d+: \d+ rows?, \d+ tokens?"))
    join(burst(pico, 2, 20))
    expect(slider).to_have_attribute("aria-valuenow", str(newest - 11))
    page.get_by_role("button", name="Oldest turn").click()
    expect(slider).to_have_attribute("aria-valuenow", "0")
    expect(figure(page, "generated")).not_to_have_text(before or "")
    page.get_by_role("button", name="Live", exact=True).click()
    expect(page.locator(".badge")).to_have_text("live")
    expect(slider).not_to_have_attribute("aria-valuenow", str(newest))  # what came meanwhile is asked for now
    assert number(slider.get_attribute("aria-valuenow")) > newest


def test_the_life_of_a_request(page: Page, pico: Process) -> None:
    watched(page, pico)
    row = page.locator(".requests tbody tr").first
    row.click()
    life = page.locator(".life-of")
    expect(life.get_by_role("img")).to_have_attribute("aria-label", re.compile("queued .*, prefill .*, decode "))
    expect(life).to_contain_text("40 output tokens")
    expect(life).to_contain_text("of acme · length")
    life.get_by_role("button", name="Show in the timeline").click()
    expect(page.locator(".badge")).to_have_text("paused")
    life.get_by_role("button", name="Close").click()
    expect(life).to_be_hidden()
    page.get_by_label("Filter").fill("no such request")
    expect(page.get_by_text("None of them is like that.")).to_be_visible()


def test_all_of_it_with_the_keyboard(page: Page, pico: Process) -> None:
    watched(page, pico)
    focused = "document.activeElement.getAttribute('aria-label') ?? document.activeElement.textContent"

    def tab_to(what: Callable[[str], bool]) -> None:
        for _ in range(200):  # every request that was seen is a stop
            page.keyboard.press("Tab")
            if what(page.evaluate(focused) or ""):
                return
        raise AssertionError("it is not reached")

    tab_to(lambda name: name == SLIDER)
    slider = page.get_by_role("slider", name=SLIDER)
    page.keyboard.press("Space")
    expect(page.locator(".badge")).to_have_text("paused")
    page.keyboard.press("End")
    newest = number(slider.get_attribute("aria-valuenow"))
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("Shift+ArrowLeft")
    expect(slider).to_have_attribute("aria-valuenow", str(newest - 11))
    expect(slider).to_have_attribute("aria-valuetext", re.compile("Turn .* plan .* running"))
    window = page.locator(".toolbar .window")
    expect(window).to_have_text("2.00 s")
    page.keyboard.press("+")
    expect(window).to_have_text("1.00 s")
    page.keyboard.press("Escape")
    expect(page.locator(".badge")).to_have_text("live")
    tab_to(lambda name: name.startswith("cmpl-"))
    page.keyboard.press("Enter")
    expect(page.locator(".life-of")).to_be_visible()
    tab_to(lambda name: name == "The last turns as a table")
    page.keyboard.press("Enter")
    table = page.get_by_role("region", name="Turns")
    expect(table.locator("tbody tr")).to_have_count(20)


def violations(page: Page) -> list[str]:
    found: list[dict[str, Any]] = Axe().run(page).response["violations"]
    return [f"{one['id']}: {node['html'][:200]}" for one in found for node in one["nodes"]]


@pytest.mark.parametrize("colours", ["light", "dark"])
def test_no_barriers(page: Page, pico: Process, colours: str) -> None:
    page.emulate_media(color_scheme=colours)  # type: ignore[arg-type]  # it takes words
    watched(page, pico)
    page.locator(".requests tbody tr").first.click()
    page.get_by_text("The last turns as a table").click()
    assert not violations(page)


def test_it_fits_a_phone(page: Page, pico: Process) -> None:
    page.set_viewport_size({"width": 360, "height": 740})
    watched(page, pico)
    assert page.evaluate("document.documentElement.scrollWidth") <= 360


@contextmanager
def tab(chromium: Browser, server: Process) -> Iterator[Page]:
    context = chromium.new_context(base_url=server.http)
    context.set_default_timeout(PATIENCE_MS)
    yield context.new_page()
    context.close()


def test_keys_are_asked_for(chromium: Browser, tmp_path: Path) -> None:
    keys = tmp_path / "keys.toml"
    lines = [
        f'[[key]]\nsha256 = "{hashlib.sha256(name.encode()).hexdigest()}"\ntenant = "{name}"\nadmin = {admin}\n'
        for name, admin in (("plain", "false"), ("chief", "true"))
    ]
    keys.write_text("\n".join(lines))
    with hash_server(tmp_path, {"keys": str(keys)}) as server, tab(chromium, server) as page:
        page.goto("/engine")
        dialog = page.get_by_role("dialog")
        for key in ("wrong", "plain", "chief"):
            expect(dialog).to_contain_text("admin key")
            dialog.get_by_label("Key").fill(key)
            dialog.get_by_role("button", name="Save").click()
            expect(dialog).to_be_hidden()
        expect(page.locator(".badge")).to_have_text("live", timeout=PATIENCE_MS)
        page.evaluate("localStorage.clear()")
        page.reload()
        dialog.get_by_role("button", name="Cancel").click()
        expect(page.locator(".state")).to_contain_text("Key")
        page.get_by_role("button", name="Key", exact=True).click()
        dialog.get_by_label("Key").fill("chief")
        dialog.get_by_role("button", name="Save").click()
        expect(page.locator(".badge")).to_have_text("live")


def test_an_engine_that_died_is_shown_with_its_dump(chromium: Browser, tmp_path: Path) -> None:
    dumps = tmp_path / "the dumps"
    with hash_server(tmp_path, fails_at=50, step_seconds=0.03, dump_dir=str(dumps)) as server, tab(chromium, server) as page:
        page.goto("/engine")
        expect(page.locator(".badge")).to_have_text("live")
        reply = httpx.post(
            f"{server.http}/v1/completions", json={"prompt": "a", "max_tokens": 60, "ignore_eos": True}, timeout=60
        )
        assert reply.status_code == 200, "it resumes in another engine"
        death = page.locator(".death")
        expect(death).to_contain_text("RuntimeError('the device is gone')", timeout=PATIENCE_MS)
        (dump,) = dumps.glob("*.record")
        expect(death).to_contain_text(f"python -m jaxserve.simulate --replay '{dump}' MODEL --replay-on model")
        assert str(dump) not in reply.text
        expect(page.locator(".badge")).to_have_text("live", timeout=PATIENCE_MS)  # another engine
        slider = page.get_by_role("slider", name=SLIDER)
        assert number(slider.get_attribute("aria-valuemax")) >= 10, "turns of the dead one can still be looked at"
        death.get_by_role("button", name="Hide").click()
        expect(death).to_be_hidden()


def test_nothing_is_asked_while_the_page_is_hidden(page: Page, pico: Process) -> None:
    watched(page, pico)
    closed = []
    page.on("requestfailed", lambda request: closed.append(request.url))
    hide = """value => {
        Object.defineProperty(document, 'hidden', {value, configurable: true});
        document.dispatchEvent(new Event('visibilitychange'));
    }"""
    page.evaluate(hide, True)
    page.wait_for_function("true")
    with page.expect_request("**/debug/engine*"):
        page.evaluate(hide, False)
    assert closed == [f"{pico.http}/debug/engine"]
    expect(page.locator(".badge")).to_have_text("live")


def test_what_an_engine_says_is_text_and_no_markup(page: Page, pico: Process) -> None:
    page.goto("/engine")
    expect(page.locator(".badge")).to_have_text("live")
    name = "<img src=x onerror=alert(1)>"
    join(burst(pico, 1, 3, tenant=name))
    expect(page.locator(".requests tbody tr").first).to_contain_text(name)
    assert page.locator(".requests img").count() == 0
