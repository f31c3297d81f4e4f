"""GET /openapi.json, and /docs: the same as one page, which needs neither scripts nor the network."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from html import escape
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import HTMLResponse
from markdown_it import MarkdownIt

from server.http.failures import json_response
from server.observe.rendered import RenderedOnce
from server.unsupported.table import FIELDS, Kind

router = APIRouter(include_in_schema=False)

STYLE = """
:root { color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif }
body { max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
summary { cursor: pointer; padding: .4rem 0; border-bottom: 1px solid #8884 }
code, pre { font-family: ui-monospace, monospace; font-size: .85rem; overflow-wrap: anywhere }
pre { white-space: pre-wrap; padding: .7rem; background: #8881; border-radius: .3rem }
table { border-collapse: collapse; width: 100% } td, th { text-align: left; vertical-align: top; padding: .15rem .8rem .15rem 0 }
td:first-child { white-space: nowrap } .advice td:first-child { white-space: normal; width: 30% }
.method { display: inline-block; width: 4rem; font-weight: 600 } .quiet { opacity: .7 }
"""

_LIMITS = {
    "minimum": "at least {}",
    "exclusiveMinimum": "above {}",
    "exclusiveMaximum": "below {}",
    "maximum": "at most {}",
    "minLength": "at least {} long",
    "maxLength": "at most {} long",
    "minItems": "at least {} of them",
    "maxItems": "at most {} of them",
}

_FORM = "multipart/form-data"  # only files come so
_REFERENCE = "#/components/schemas/"

_KINDS = {
    Kind.REFUSED: "refused with a 400, unless they ask for nothing",
    Kind.WARNED: "answered without them, which the header <code>x-jaxserve-warning</code> and the log say",
    Kind.NO_EFFECT: "taken, without effect on the answer",
}

# HTML in texts is shown as it was written: what is described may come from a model's files.
_MARKDOWN = MarkdownIt("commonmark", {"html": False})


_BASE_URL = "http://base-url.invalid"  # stands for the address by which a client reached the server


class Documents:
    """The API's document and its page: both take a good part of a second to write, and do not change."""

    def __init__(self, openapi: Callable[[], Mapping[str, Any]]) -> None:
        self.json = RenderedOnce(lambda: bytes(json_response(openapi()).body))
        self.page = RenderedOnce(lambda: page(openapi(), _BASE_URL).encode())


@router.get("/openapi.json")
async def document(request: Request) -> Response:
    """The API's document."""
    documents: Documents = request.app.state.documents
    return Response(await documents.json.text(), media_type="application/json")


@router.get("/docs")
async def docs(request: Request) -> HTMLResponse:
    """The page."""
    documents: Documents = request.app.state.documents
    base_url = f"{request.scope['scheme']}://{request.headers.get('host', 'localhost')}"
    return HTMLResponse((await documents.page.text()).replace(_BASE_URL.encode(), escape(base_url).encode()))


def page(document: Mapping[str, Any], base_url: str) -> str:
    """An OpenAPI document as HTML; examples call `base_url`."""
    info = document["info"]
    title = escape(f"{info['title']} {info['version']}")
    operations = "".join(
        _operation(document, method, path, operation, base_url)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    )
    shapes = "".join(_shape(name, schema) for name, schema in document["components"]["schemas"].items() if "properties" in schema)
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title><style>{STYLE}</style>'
        f"<h1>{title}</h1>{_MARKDOWN.render(info['description'].strip())}{operations}"
        f"<h2>Fields of other servers</h2>{''.join(_unsupported(kind) for kind in Kind)}"
        f"<h2>Shapes</h2>{shapes}"
        '<p><a href="openapi.json">openapi.json</a></p></html>'
    )


def _operation(document: Mapping[str, Any], method: str, path: str, operation: Mapping[str, Any], base_url: str) -> str:
    what = operation.get("description") or operation["summary"]
    parts = [f'<details><summary><code><span class="method">{method.upper()}</span>{escape(path)}</code>']
    parts.append(f' <span class="quiet">{_inline(what.partition(chr(10))[0])}</span></summary>{_MARKDOWN.render(what)}')
    parameters = operation.get("parameters", ())
    if parameters:
        parts.append(f"<h4>parameters</h4><table>{''.join(map(_parameter, parameters))}</table>")
    for schema in _bodies(document, operation):
        parts.append(f"<h4>{escape(schema.get('title', 'body'))}</h4><table>{''.join(_fields(schema))}</table>")
        parts += [f"<pre>{escape(_curl(base_url + path, example))}</pre>" for example in schema.get("examples", ())]
    if _FORM in operation.get("requestBody", {}).get("content", {}):
        parts.append(f"<pre>{escape(f'curl {base_url}{path} -F purpose=batch -F file=@requests.jsonl')}</pre>")
    parts.append(f"<h4>answers</h4><table>{''.join(_answers(operation))}</table>{''.join(_answered(operation))}</details>")
    return "".join(parts)


def _bodies(document: Mapping[str, Any], operation: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """What the body may be: one schema, or one of several."""
    for content in operation.get("requestBody", {}).get("content", {}).values():
        schema = content["schema"]
        for one in schema.get("anyOf", schema.get("oneOf", [schema])):
            yield _resolved(document, one)


def _shape(name: str, schema: Mapping[str, Any]) -> str:
    what = _inline(schema.get("description", "").partition("\n")[0])
    return (
        f'<details id="{escape(name)}"><summary><code>{escape(name)}</code> <span class="quiet">{what}</span></summary>'
        f"<table>{''.join(_fields(schema))}</table></details>"
    )


def _fields(schema: Mapping[str, Any]) -> Iterator[str]:
    required = schema.get("required", ())
    for name, field in schema.get("properties", {}).items():
        yield _row(name, field, field.get("description", ""), required=name in required)


def _parameter(parameter: Mapping[str, Any]) -> str:
    return _row(
        parameter["name"], parameter["schema"], parameter.get("description", ""), required=parameter.get("required", False)
    )


def _row(name: str, field: Mapping[str, Any], description: str, *, required: bool) -> str:
    notes = [description, *(words.format(field[key]) for key, words in _LIMITS.items() if key in field)]
    if "default" in field:
        notes.append(f"default `{json.dumps(field['default'])}`")
    if required:
        notes.append("required")
    told = _inline("; ".join(note for note in notes if note))
    return f"<tr><td><code>{escape(name)}</code><td><code>{_kind(field)}</code><td>{told}"


def _kind(schema: Mapping[str, Any]) -> str:
    for several in ("anyOf", "oneOf"):
        if several in schema:
            kinds = [_kind(one) for one in schema[several] if "x-numeral" not in one]
            return " | ".join(dict.fromkeys(kind for kind in kinds if kind != "null"))
    if "$ref" in schema:
        name = escape(schema["$ref"].removeprefix(_REFERENCE))
        return f'<a href="#{name}">{name}</a>'
    if "enum" in schema or "const" in schema:
        return " | ".join(escape(json.dumps(value)) for value in schema.get("enum", [schema.get("const")]))
    if schema.get("type") == "array":
        return f"list of {_kind(schema.get('items', {}))}"
    return escape(str(schema.get("type", "anything")))


def _answers(operation: Mapping[str, Any]) -> Iterator[str]:
    for status, response in operation["responses"].items():
        contents = response.get("content", {})
        shapes = " | ".join(_kind(content["schema"]) for content in contents.values() if "$ref" in content.get("schema", {}))
        kinds = escape(", ".join(contents))
        told = f'{escape(response["description"])} {shapes}<td class="quiet">{kinds}'
        yield f"<tr><td><code>{escape(status)}</code><td>{told}"


def _answered(operation: Mapping[str, Any]) -> Iterator[str]:
    for response in operation["responses"].values():
        for content in response.get("content", {}).values():
            if "example" in content:
                example = content["example"]
                text = example if isinstance(example, str) else json.dumps(example, indent=2)
                yield f"<pre>{escape(text.strip())}</pre>"


def _unsupported(kind: Kind) -> str:
    by_advice: dict[str, list[str]] = {}
    for name, field in FIELDS.items():
        if field.kind is kind:
            by_advice.setdefault(field.instead, []).append(f"<code>{escape(name)}</code>")
    rows = "".join(f"<tr><td>{escape(advice)}<td>{', '.join(names)}" for advice, names in by_advice.items())
    return f"<details><summary>{_KINDS[kind]}</summary><table class=advice>{rows}</table></details>"


def _inline(text: str) -> str:
    rendered: str = _MARKDOWN.renderInline(text)
    return rendered


def _curl(url: str, example: Any) -> str:
    body = json.dumps(example, indent=2).replace("'", "'\\''")
    return f"curl {url} -H 'content-type: application/json' -d '{body}'"


def _resolved(document: Mapping[str, Any], schema: Mapping[str, Any]) -> Mapping[str, Any]:
    reference = schema.get("$ref")
    if reference is None:
        return schema
    found: Mapping[str, Any] = document["components"]["schemas"][reference.removeprefix(_REFERENCE)]
    return found
