"""What models write, as the chat page shows it: markdown, code, formulas; long texts in pieces; and what must never run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, Request, expect

from tests.system.page.chat import Chat

TEXT = r"""# Title

Some *words* with `code`, a [link](https://example.org/a?b=1&c=2), H<sub>2</sub>O, ~~gone~~; $5 and $10.

- [x] done
  1. nested

| a | b |
|---|--:|
| 1 | 2 |

Inline $e^{i\pi}+1=0$ and \(a^2\), and

$$\frac{1}{2}$$

\[ \sum_{i=1}^n i \]

```python
def add(a, b):
    return a + b
```
"""


def test_markdown_code_and_formulas(chat: Chat) -> None:
    chat.script([{"content": TEXT[start : start + 5]} for start in range(0, len(TEXT), 5)])
    chat.send("Show me")
    body = chat.answers.last.locator(".blocks").last
    expect(body.locator("h3")).to_have_text("Title")
    expect(body.locator("em")).to_have_text("words")
    expect(body.locator("sub")).to_have_text("2")
    expect(body.locator("del")).to_have_text("gone")
    expect(body.get_by_text("$5 and $10.")).to_be_visible()
    expect(body.locator("td").last).to_have_attribute("align", "right")
    expect(body.locator("li ol li")).to_have_text("nested")
    expect(body.locator("math")).to_have_count(4)
    expect(body.locator('math[display="block"]')).to_have_count(2)
    expect(body.locator("mfrac")).to_have_count(1)
    expect(body.locator(".hljs-keyword")).to_have_text(["def", "return"])
    link = body.locator("a")
    expect(link).to_have_attribute("href", "https://example.org/a?b=1&c=2")
    expect(link).to_have_attribute("target", "_blank")
    expect(link).to_have_attribute("rel", "noopener noreferrer nofollow")
    assert chat.answers.last.locator("annotation").count() == 0

    chat.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    body.get_by_role("button", name="Copy code").click()
    expect(body.get_by_role("button", name="Copied")).to_be_visible()
    assert chat.page.evaluate("navigator.clipboard.readText()") == "def add(a, b):\n    return a + b"
    chat.answers.last.get_by_role("button", name="Copy message").click()
    expect(chat.answers.last.locator(".foot").get_by_role("button", name="Copied")).to_be_visible()
    assert chat.page.evaluate("navigator.clipboard.readText()") == TEXT


_GROW = """async ([text, step]) => {
  const { Blocks } = await import("/page/chat/blocks.js");
  const grown = document.createElement("div"), whole = document.createElement("div");
  document.querySelector(".thread").append(grown, whole);
  const blocks = new Blocks(grown);
  for (let end = step; end < text.length + step; end += step) blocks.update(text.slice(0, end), true);
  new Blocks(whole).update(text, true);
  const all = (root) => [...root.children].map((block) => (block.piece.show(), block.innerHTML));
  const found = [all(grown), all(whole)];
  grown.remove(); whole.remove();
  return found;
}"""

GROWING = [
    TEXT,
    "- a\n\n- b\n\n1\n\n1. c\n2. d\n\ntext\n",
    "Heading\n=\n\nmore\n\n    code\n\n    code\n\n> quote\nlazy\n\n***\n",
    "a paragraph\n| a | b |\n|---|---|\n| 1 | 2 |\n\nend",
    "```js\nlet a;\n\n```\n\n````md\n```js\n```\n````\n\nend\n\n```\nopen",
    "one [link][x]\n\ntwo\n\n[x]: https://example.org\n\nthree [x]\n\nfour",
]


def test_a_text_that_grows_looks_as_if_it_had_come_at_once(chat: Chat) -> None:
    for text in GROWING:
        for step in (1, 7):
            grown, whole = chat.page.evaluate(_GROW, [text, step])
            assert grown == whole, (step, text)


def test_long_blocks_are_laid_out_in_pieces(chat: Chat) -> None:
    page = chat.page
    code = "\n".join(f"line {number}" for number in range(1000))
    items = "".join(f"{number + 1}. item {number}\n" for number in range(200))
    rows = "| a |\n|---|\n" + "".join(f"| row {number} |\n" for number in range(250))
    words = "word " * 5000
    chat.script([{"content": f"```text\n{code}\n```\n\n{items}\n{rows}\n{words}"}])
    chat.send("Much")
    chat.wait()
    answer = chat.answers.last
    parts = answer.locator(".block")
    expect(parts.locator(".code")).to_have_count(7)
    expect(parts.locator("ol")).to_have_count(5)
    expect(parts.locator("table")).to_have_count(3)
    expect(parts.locator("p").last).to_be_attached()
    longest = page.evaluate("Math.max(...[...document.querySelectorAll('.block')].map((block) => block.textContent.length))")
    assert longest <= 4500
    assert answer.locator("li").all_text_contents() == [f"item {number}" for number in range(200)]
    expect(answer.locator("ol").nth(1)).to_have_attribute("start", "41")
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    answer.get_by_role("button", name="Copy code").click()
    expect(answer.get_by_role("button", name="Copied")).to_be_visible()
    assert page.evaluate("navigator.clipboard.readText()") == code


HOSTILE = [
    "<script>window.hit = 1</script>",
    '<img src="x" onerror="window.hit = 1">',
    '<img src="https://evil.example/a.png"> ![a](https://evil.example/b.png) ![b](//evil.example/c.png)',
    '<svg onload="window.hit = 1"><script>window.hit = 1</script></svg>',
    '<svg><a xlink:href="javascript:window.hit = 1"><text y="20">click</text></a></svg>',
    '<iframe srcdoc="<script>parent.hit = 1</script>"></iframe>',
    '<object data="https://evil.example/x"></object><embed src="https://evil.example/y">',
    '<form action="https://evil.example"><button>Send</button></form>',
    '<base href="https://evil.example/"><meta http-equiv="refresh" content="0; url=https://evil.example">',
    '<link rel="stylesheet" href="https://evil.example/x.css"><style>body { display: none }</style>',
    '<p style="position: fixed; inset: 0; background: url(https://evil.example/s.png)">over all</p>',
    '<a id="chat" name="jaxserve" href="x">clobbered</a><form id="document"><input name="getElementById"></form>',
    '<b onmouseover="window.hit = 1" class="dialog">bold</b><br onclick="window.hit = 1">',
    "[a](javascript:window.hit=1) [b](JaVaScRiPt:window.hit=1) [c](java&#10;script:window.hit=1)",
    "[d](data:text/html,<script>1</script>)",
    "[e](vbscript:x) [f](file:///etc/passwd) [g](blob:x) [h](//evil.example) [i](engine) [j]( javascript:window.hit=1)",
    "<javascript:window.hit=1> <https://example.org/\"onmouseover=\"window.hit=1>",
    '[k](https://example.org/"onmouseover="window.hit=1 "t\\"onmouseover=\\"window.hit=1")',
    '![l](data:image/svg+xml;base64,PHN2ZyBvbmxvYWQ9ImFsZXJ0KDEpIi8+) ![m](data:text/html;base64,PHNjcmlwdD4=)',
    "$\\href{javascript:window.hit=1}{x}$ $\\htmlData{a=b}{x}$",
    "$\\includegraphics{https://evil.example/x.png}$ $\\url{javascript:1}$",
    "$$\\htmlStyle{position: fixed}{x} \\htmlId{chat}{x} \\unicode{x} \\def\\a{\\a\\a}\\a$$",
    "$\\text{</math><script>window.hit=1</script>}$",
    "$<img src=x onerror=window.hit=1>$ $$</span><script>window.hit=1</script>$$",
    "```mermaid\ngraph LR; A[<img src=x onerror=window.hit=1>]-->B; click A \"javascript:window.hit=1\"\n```",
    "```\"><img src=x onerror=window.hit=1>\n</code></pre><script>window.hit=1</script>\n```",
    "```html\n<script>window.hit = 1</script>\n```",
    "<math><mtext><table><mglyph><style><!--</style><img title=\"--&gt;&lt;img src=1 onerror=window.hit=1&gt;\">",
    "<noscript><p title=\"</noscript><img src=x onerror=window.hit=1>\">",
    "| a |\n|---|\n| <img src=x onerror=window.hit=1> |",
    "\x00 \u202e reversed \ufeff",
]  # fmt: skip
EVERYTHING = "\n\n".join(HOSTILE)
DEEP = ["> " * 3000 + "deep", "[" * 5000 + "](x) end", "*" * 3000 + "a" + "_" * 3000, "- " * 2000 + "deep", "$" * 5001]

_FOUND = """() => {
  const all = [...document.querySelectorAll(".blocks *")];
  const forbidden = /^(script|iframe|object|embed|form|base|meta|link|style|input|foreignobject)$/i;
  const attributes = all.flatMap((one) => [...one.attributes]);
  const addresses = attributes.filter((one) => /^(href|src|xlink:href)$/.test(one.name)).map((one) => one.value);
  return {
    hit: window.hit ?? null,
    elements: all.filter((one) => forbidden.test(one.tagName)).map((one) => one.outerHTML),
    attributes: attributes.filter((one) => /^on|^style$|^srcdoc$|^id$|^name$/.test(one.name)).map((one) => one.name),
    addresses: addresses.filter((one) => !/^(https?:|mailto:|data:image.png)/.test(one)),
    pictures: [...document.querySelectorAll(".blocks img")].filter((one) => !one.src.startsWith("data:")).length,
    buttons: all.filter((one) => one.tagName === "BUTTON" && !one.closest(".code-head")).length,
    main: document.getElementById("chat").tagName,
    address: location.href,
  };
}"""
NOTHING: dict[str, Any] = {
    "hit": None,
    "elements": [],
    "attributes": [],
    "addresses": [],
    "pictures": 0,
    "buttons": 0,
    "main": "DIV",
}


def check_nothing_ran(page: Page, address: str) -> None:
    assert page.evaluate(_FOUND) == {**NOTHING, "address": address}


@pytest.fixture
def elsewhere(chat: Chat) -> list[str]:
    """What is asked of other servers."""
    asked: list[str] = []
    own = (chat.page.url, "data:", "blob:")

    def note(request: Request) -> None:
        if not request.url.startswith(own):
            asked.append(request.url)

    chat.page.context.on("request", note)
    return asked


def test_nothing_that_a_model_writes_runs_or_loads(chat: Chat, elsewhere: list[str]) -> None:
    """As an answer in pieces, as thinking and as a call's arguments; the policy would report what got through to it."""
    page = chat.page
    address = page.url
    call = {"index": 0, "id": "<b>", "function": {"name": HOSTILE[1], "arguments": json.dumps(HOSTILE[:5])}}
    pieces = [{"content": EVERYTHING[start : start + 9]} for start in range(0, len(EVERYTHING), 9)]
    chat.script([{"reasoning_content": EVERYTHING}, *pieces], [{"tool_calls": [call]}])
    chat.send(HOSTILE[0] + HOSTILE[1])
    chat.wait()
    chat.answers.last.locator("summary").click()
    expect(chat.answers.last.locator(".block.plain")).to_have_count(0)
    assert chat.answers.last.locator(".body > .blocks > .block").count() > 25  # read as markdown, not given up
    check_nothing_ran(page, address)
    for element in page.locator(".blocks b, .blocks a").all():
        element.dispatch_event("mouseover")
    chat.send("Call")
    expect(page.get_by_label("Tool call")).to_be_visible()
    check_nothing_ran(page, address)
    expect(page.locator(".conversations .title")).to_have_text((HOSTILE[0] + HOSTILE[1])[:59].rstrip() + "…")
    assert elsewhere == []
    expect(
        page.locator(".blocks").get_by_text("<script>window.hit = 1</script>").first
    ).to_be_visible()  # shown as it was written


def test_texts_without_an_end_of_nesting_are_shown(chat: Chat) -> None:
    chat.script(*[[{"content": text}] for text in DEEP])
    for text in DEEP:
        assert chat.ask("Go deep")[-1] == text[-1]
    expect(chat.page.locator(".block.plain")).to_have_count(0)


def test_nothing_in_an_imported_file_runs(chat: Chat, elsewhere: list[str], tmp_path: Path) -> None:
    page = chat.page
    address = page.url
    picture, elsewhere_stream = HOSTILE[1], {"id": "../../v1/models", "last": 1}
    hostile_answer = {
        **dict.fromkeys(("model", "finish", "error"), picture),
        **dict.fromkeys(("content", "reasoning"), EVERYTHING),
        "state": "error",
        "usage": {"prompt": picture, "completion": {}},
        "times": {"first": picture},
        "logprobs": [[picture, "x", [[HOSTILE[0], -1], 7]], 7],
        "toolCalls": [{"id": "1", "name": picture, "arguments": picture}, 7],
        "stream": elsewhere_stream,
    }
    half = {"role": "assistant", "content": "half", "state": "streaming", "stream": elsewhere_stream}
    messages: list[dict[str, Any]] = [
        {"id": "__proto__", "parent": "", "role": "user", "content": EVERYTHING, "created": "x", "state": "<b>"},
        {"id": "b", "parent": "__proto__", "role": "assistant", **hostile_answer},
        {"id": "c", "parent": "b", "role": "tool", "content": picture, "toolCallId": "1"},
        {"id": "d", "parent": "c", **half},
    ]
    one = {"id": HOSTILE[1], "title": HOSTILE[1], "chosen": {"__proto__": "b", "constructor": "x"}, "messages": messages}
    chat.import_file(json.dumps({"format": "jaxserve-conversations", "version": 1, "conversations": [one]}), tmp_path)
    page.locator(".conversations .open").click()
    expect(chat.answers).to_have_count(2)
    chat.answers.first.locator("summary").click()
    chat.answers.first.get_by_role("button", name="Tokens and their probabilities").click()
    page.locator(".token").first.hover()
    chat.answers.first.get_by_role("button", name="Tokens and their probabilities").click()
    expect(page.locator(".block.plain")).to_have_count(0)
    check_nothing_ran(page, address)
    expect(chat.answers.last.locator(".notice")).to_contain_text("no more of this answer")  # it is asked for nowhere
    assert elsewhere == []
    assert page.evaluate("({}).polluted === undefined && Object.keys(Object.prototype).length") == 0
