"""The pages in a browser: how much they are to load, how soon they can be used, and whether long conversations are smooth.

    python -m benchmarks.page [MEASUREMENT ...]

A server over an engine that computes nothing serves them to Chromium without a window, which draws on the CPU; both share the
machine's cores. Each measurement is a function, and a key in benchmarks/results/page.json, where the others stay as they are:

- `bundle`: bytes of all files, and of each folder, compressed as they travel;
- `usable`: milliseconds from the request to a field in which one can write, for a new visitor and for one who comes back;
- `conversation`: one of 100,000 tokens in 200 messages is opened and scrolled from its end to its beginning, 120 pixels a frame;
- `answer`: one answer of 100,000 tokens grows by 128 tokens a frame: what is drawn of it takes how long?

Times of frames are milliseconds between two of them; 16.7 is a screen's own. `load_before` is the machine's load average before.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import shutil
import statistics
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page, sync_playwright

from benchmarks import machine
from benchmarks.paced_server import paced_server
from server.page.bundle import assets

RESULTS = Path(__file__).parent / "results" / "page.json"
ARGUMENTS = ("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update", "--no-first-run")
TOKENS, CHARS_A_TOKEN, MESSAGES, VISITS = 100_000, 4, 200, 5
MARKDOWN = """## A heading

A paragraph of some length with *emphasis*, `code`, a [link](https://example.org) and a formula $a^2 + b^2 = c^2$ in it, which is
as much as models like to write about anything that they are asked for.

- one thing, and **another**
- a second

| name | value |
|---|--:|
| first | 1 |
| second | 2 |

```python
def add(left: int, right: int) -> int:
    \"\"\"The sum.\"\"\"
    return left + right
```

"""

_SCROLL = """(step) => new Promise((resolve) => {
  const thread = document.querySelector(".thread"), frames = [];
  let before = null;
  function frame(now) {
    if (before !== null) frames.push(now - before);
    before = now;
    if (thread.scrollTop <= 0) return resolve(frames);
    thread.scrollTop -= step;
    requestAnimationFrame(frame);
  }
  requestAnimationFrame(frame);
})"""

_GROW = """async ([text, step]) => {
  const { Blocks } = await import("/page/chat/blocks.js");
  const place = document.createElement("div"), drawn = [];
  document.querySelector(".messages").append(place);
  const blocks = new Blocks(place);
  await new Promise((resolve) => {
    let end = 0;
    function frame() {
      const begun = performance.now();
      blocks.update(text.slice(0, end += step), true);
      place.scrollIntoView({block: "end"});
      drawn.push(performance.now() - begun);
      if (end < text.length) requestAnimationFrame(frame); else resolve();
    }
    requestAnimationFrame(frame);
  });
  return drawn;
}"""


def bundle(_: Browser, __: str) -> dict[str, Any]:
    """Compressed bytes."""
    sizes: Counter[str] = Counter()
    for name, asset in assets().items():
        sizes[name.partition("/")[0] if "/" in name else "pages"] += len(gzip.compress(asset.content, 9))
    return {"bytes": sizes.total(), "folders": dict(sorted(sizes.items()))}


def usable(browser: Browser, address: str) -> dict[str, Any]:
    """Milliseconds to a field in which one can write: medians."""
    first, again = [], []
    for _ in range(VISITS):
        page = browser.new_page(base_url=address)
        first.append(_visit(page))
        again.append(_visit(page))
        page.close()
    return {"first_visit_ms": round(statistics.median(first), 1), "again_ms": round(statistics.median(again), 1)}


def conversation(browser: Browser, address: str) -> dict[str, Any]:
    """A long conversation, opened and scrolled."""
    page = browser.new_page(base_url=address, viewport={"width": 1280, "height": 800})
    _visit(page)
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(_long_conversation(), file)
        file.flush()
        page.locator("input[type=file]").set_input_files(file.name)
        page.locator(".conversations .open").wait_for()
    opening: float = page.evaluate(
        """async () => {
          const begun = performance.now();
          document.querySelector(".conversations .open").click();
          while (!document.querySelector(".message.assistant")) await new Promise((next) => requestAnimationFrame(next));
          await new Promise((next) => requestAnimationFrame(() => requestAnimationFrame(next)));
          return performance.now() - begun;
        }"""
    )
    frames = page.evaluate(_SCROLL, 120)
    elements = page.evaluate("document.querySelectorAll('.messages *').length")
    page.close()
    return {"tokens": TOKENS, "messages": MESSAGES, "open_ms": round(opening, 1), "elements": elements, "scrolling": told(frames)}


def answer(browser: Browser, address: str) -> dict[str, Any]:
    """A long answer that grows."""
    page = browser.new_page(base_url=address, viewport={"width": 1280, "height": 800})
    _visit(page)
    text = (MARKDOWN * (TOKENS * CHARS_A_TOKEN // len(MARKDOWN) + 1))[: TOKENS * CHARS_A_TOKEN]
    drawn = page.evaluate(_GROW, [text, 128 * CHARS_A_TOKEN])
    page.close()
    return {"tokens": TOKENS, "drawing": told(drawn), "drawing_of_the_last_tenth": told(drawn[-len(drawn) // 10 :])}


MEASUREMENTS: Mapping[str, Callable[[Browser, str], dict[str, Any]]] = {
    one.__name__: one for one in (bundle, usable, conversation, answer)
}


def told(milliseconds: Sequence[float]) -> dict[str, float]:
    """What is written down of many times."""
    ordered = sorted(milliseconds)
    found = {"p50_ms": statistics.median(ordered), "p99_ms": ordered[len(ordered) * 99 // 100], "max_ms": ordered[-1]}
    return {"frames": len(ordered), **{name: round(value, 1) for name, value in found.items()}}


def _visit(page: Page) -> float:
    page.goto("/")
    page.locator("#composer").wait_for()
    milliseconds: float = page.evaluate("performance.getEntriesByName('usable')[0].startTime")
    return milliseconds


def _long_conversation() -> dict[str, Any]:
    each = TOKENS * CHARS_A_TOKEN // (MESSAGES // 2)
    text = (MARKDOWN * (each // len(MARKDOWN) + 1))[:each]
    messages: list[dict[str, str]] = []
    for number in range(MESSAGES):
        parent = messages[-1]["id"] if messages else ""
        role, content = ("assistant", text) if number % 2 else ("user", f"Question {number}")
        messages.append({"id": str(number), "parent": parent, "role": role, "content": content})
    return {"format": "jaxserve-conversations", "version": 1, "conversations": [{"title": "Long", "messages": messages}]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("measurements", nargs="*", metavar="MEASUREMENT", help=", ".join(MEASUREMENTS))
    wanted = parser.parse_args().measurements or list(MEASUREMENTS)
    if unknown := set(wanted) - set(MEASUREMENTS):
        parser.error(f"no such measurement: {', '.join(sorted(unknown))}")
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    with paced_server(front_ends=1, rows=4, step_seconds=0.002) as served, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=list(ARGUMENTS))
        results["machine"] = {**machine.describe(), "browser": f"Chromium {browser.version}"}
        for name in wanted:
            load = os.getloadavg()[0]
            results[name] = {"load_before": round(load, 1), **MEASUREMENTS[name](browser, served.http)}
            print(name, json.dumps(results[name]))
            RESULTS.write_text(json.dumps(results, indent=1) + "\n")
        browser.close()


if __name__ == "__main__":
    main()
