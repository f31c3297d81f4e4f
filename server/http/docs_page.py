"""GET /openapi.json, and /docs: the same as one page, which needs neither scripts nor the network."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import HTMLResponse

from server.http.failures import json_response

router = APIRouter(include_in_schema=False)

STYLE = """
:root { color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif }
body { max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
summary { cursor: pointer; padding: .4rem 0; border-bottom: 1px solid #8884 }
code, pre { font-family: ui-monospace, monospace; font-size: .85rem }
pre { overflow-x: auto; padding: .7rem; background: #8881; border-radius: .3rem }
table { border-collapse: collapse; width: 100% } td, th { text-align: left; vertical-align: top; padding: .15rem .8rem .15rem 0 }
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


# Writing the document takes a good part of a second once: these two are no coroutines, so that it happens in a thread.
@router.get("/openapi.json")
def document(request: Request) -> Response:
    """The API's document."""
    return json_response(request.app.openapi())


@router.get("/docs")
def docs(request: Request) -> HTMLResponse:
    """The page."""
    return HTMLResponse(page(request.app.openapi(), f"{request.scope['scheme']}://{request.headers.get('host', 'localhost')}"))


def page(document: Mapping[str, Any], base_url: str) -> str:
    """An OpenAPI document as HTML; examples call `base_url`."""
    info = document["info"]
    title = escape(f"{info['title']} {info['version']}")
    body = "".join(
        _operation(document, method, path, operation, base_url)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    )
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title><style>{STYLE}</style>'
        f"<h1>{title}</h1><pre>{escape(info['description'].strip())}</pre>{body}"
        '<p><a href="openapi.json">openapi.json</a></p></html>'
    )


def _operation(document: Mapping[str, Any], method: str, path: str, operation: Mapping[str, Any], base_url: str) -> str:
    what = escape(operation.get("description") or operation["summary"]).split("\n")[0]
    parts = [f'<details><summary><code><span class="method">{method.upper()}</span>{escape(path)}</code>']
    parts.append(f' <span class="quiet">{what}</span></summary>')
    for schema in _bodies(document, operation):
        parts.append(f"<h4>{escape(schema.get('title', 'body'))}</h4><table>{''.join(_fields(document, schema))}</table>")
        parts += [f"<pre>{escape(_curl(base_url + path, example))}</pre>" for example in schema.get("examples", ())]
    if _FORM in operation.get("requestBody", {}).get("content", {}):
        parts.append(f"<pre>{escape(f'curl {base_url}{path} -F purpose=batch -F file=@requests.jsonl')}</pre>")
    parts.append(f"<h4>answers</h4><table>{''.join(_answers(operation))}</table></details>")
    return "".join(parts)


def _bodies(document: Mapping[str, Any], operation: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """What the body may be: one schema, or one of several."""
    for content in operation.get("requestBody", {}).get("content", {}).values():
        schema = content["schema"]
        for one in schema.get("anyOf", schema.get("oneOf", [schema])):
            yield _resolved(document, one)


def _fields(document: Mapping[str, Any], schema: Mapping[str, Any]) -> Iterator[str]:
    required = schema.get("required", ())
    for name, field in schema.get("properties", {}).items():
        limits = [words.format(field[key]) for key, words in _LIMITS.items() if key in field]
        notes = [field.get("description", ""), *limits, "required" if name in required else ""]
        told = escape("; ".join(note for note in notes if note))
        yield f"<tr><td><code>{escape(name)}</code><td><code>{escape(_kind(document, field))}</code><td>{told}"


def _kind(document: Mapping[str, Any], schema: Mapping[str, Any]) -> str:
    """A schema's type in a few words."""
    for several in ("anyOf", "oneOf"):
        if several in schema:
            kinds = [_kind(document, one) for one in schema[several]]
            return " | ".join(dict.fromkeys(kind for kind in kinds if kind != "null"))
    if "$ref" in schema:
        return str(_resolved(document, schema).get("title", "object"))
    if "enum" in schema or "const" in schema:
        return " | ".join(json.dumps(value) for value in schema.get("enum", [schema.get("const")]))
    if schema.get("type") == "array":
        return f"list of {_kind(document, schema['items'])}"
    return str(schema.get("type", "anything"))


def _answers(operation: Mapping[str, Any]) -> Iterator[str]:
    for status, response in operation["responses"].items():
        kinds = ", ".join(response.get("content", ()))
        yield f'<tr><td><code>{escape(status)}</code><td>{escape(response["description"])}<td class="quiet">{escape(kinds)}'


def _curl(url: str, example: Any) -> str:
    return f"curl {url} -H 'content-type: application/json' -d '{json.dumps(example)}'"


def _resolved(document: Mapping[str, Any], schema: Mapping[str, Any]) -> Mapping[str, Any]:
    reference = schema.get("$ref")
    if reference is None:
        return schema
    found: Mapping[str, Any] = document["components"]["schemas"][reference.rsplit("/", 1)[1]]
    return found
