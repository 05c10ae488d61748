"""The OpenAPI document as one page of HTML: no script, no outside resource, dark and light, made to be searched.

Everything that stands in the document is text here (`html.escape`); the one style sheet is allowed by its hash.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html import escape
from shlex import quote
from typing import Any

_STYLE = """
:root { color-scheme: light dark; --text: #1b1f24; --soft: #57606a; --line: #d0d7de; --back: #fff; --code: #f4f6f8;
  --get: #0a6b3d; --post: #0b57b0; --patch: #8a5a00; --delete: #b3261e; }
@media (prefers-color-scheme: dark) { :root { --text: #e6edf3; --soft: #9aa4ae; --line: #30363d; --back: #0d1117;
  --code: #161b22; --get: #4cc38a; --post: #6cb0ff; --patch: #e3b341; --delete: #ff8b82; } }
* { box-sizing: border-box; }
body { margin: 0; font: 16px/1.5 system-ui, sans-serif; color: var(--text); background: var(--back); }
.page { display: grid; grid-template-columns: 19rem minmax(0, 1fr); max-width: 80rem; margin: auto; }
nav { position: sticky; top: 0; height: 100vh; overflow: auto; padding: 1.5rem 1rem; font-size: .875rem; }
nav ul { list-style: none; margin: 0 0 1rem; padding: 0; } nav a { display: block; padding: .1rem 0; }
main { padding: 1.5rem; min-width: 0; }
a { color: var(--post); text-decoration: none; } a:hover { text-decoration: underline; }
h1 { margin-top: 0; } h2 { margin-top: 3rem; border-bottom: 1px solid var(--line); padding-bottom: .3rem; }
article { margin: 2rem 0; padding-top: .5rem; } h3 { margin: 0 0 .5rem; overflow-wrap: anywhere; }
h4 { margin: 1rem 0 .25rem; } .soft { color: var(--soft); }
code, pre { font: .875rem/1.45 ui-monospace, monospace; background: var(--code); border-radius: .3rem; }
code { padding: .1rem .3rem; overflow-wrap: anywhere; } pre { padding: .75rem; overflow: auto; max-height: 24rem; }
pre code { padding: 0; } pre.copy { user-select: all; white-space: pre-wrap; overflow-wrap: anywhere; }
.table { overflow-x: auto; } table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; vertical-align: top; padding: .35rem .6rem .35rem 0; border-bottom: 1px solid var(--line); }
th { font-weight: 600; } summary { cursor: pointer; padding: .2rem 0; }
.GET { color: var(--get); } .POST { color: var(--post); } .PATCH { color: var(--patch); }
.DELETE { color: var(--delete); }
@media (max-width: 50rem) { .page { display: block; } nav { position: static; height: 40vh;
  border-bottom: 1px solid var(--line); } }
"""
CONTENT_SECURITY_POLICY = (
    "default-src 'none'; style-src 'sha256-"
    + base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
    + "'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_METHODS = ("get", "post", "patch", "put", "delete")
_FIRST_ERROR = 400


def docs_page(document: dict[str, Any]) -> str:
    """The page of an OpenAPI document."""
    operations = [
        (path, method, methods[method])
        for path, methods in document["paths"].items()
        for method in _METHODS
        if method in methods
    ]
    rooms = [(tag, [one for one in operations if tag["name"] in one[2]["tags"]]) for tag in document["tags"]]
    info = document["info"]
    contents = ""
    for tag, found in rooms:
        names = [escape(one["operationId"]) for _, _, one in found]
        links = "".join(f'<li><a href="#{name}">{name}</a></li>' for name in names)
        contents += f"<strong>{escape(tag['name'])}</strong><ul>{links}</ul>"
    sections = "".join(
        f'<section><h2 id="room-{escape(tag["name"])}">{escape(tag["name"].capitalize())}</h2>'
        f"<p>{_marked(tag['description'])}</p>{''.join(_article(*one) for one in found)}</section>"
        for tag, found in rooms
    )
    schemas = "".join(_schema(name, one) for name, one in document["components"]["schemas"].items())
    errors = "".join(
        f'<article id="{escape(name)}"><h3><code>{escape(name.replace("-", " "))}</code></h3>'
        f"<p>{_marked(one['summary'])}</p>{_code(one['value'])}</article>"
        for name, one in document["components"]["examples"].items()
    )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(info['title'])} {escape(info['version'])}: HTTP</title><style>{_STYLE}</style></head>"
        f'<body><div class="page"><nav aria-label="Operations">{contents}'
        '<strong>Everything</strong><ul><li><a href="#schemas">shapes</a></li><li><a href="#errors">errors</a></li>'
        "</ul></nav>"
        f"<main><h1>{escape(info['title'])} {escape(info['version'])}</h1><p>{_marked(info['description'])}</p>"
        f"<p>{_INTRODUCTION}</p>{sections}"
        f'<section><h2 id="schemas">Shapes</h2>{schemas}</section>'
        f'<section><h2 id="errors">Errors</h2>{errors}</section>'
        "</main></div></body></html>"
    )


_INTRODUCTION = (
    'The same as a document for programs: <a href="/openapi.json">openapi.json</a>. The examples are real exchanges; '
    "a click on a command selects all of it. <code>$TOKEN</code> is a token of the daemon, <code>$URL</code> its "
    "address; on the Unix socket say <code>--unix-socket PATH</code>, and no token."
)


def _article(path: str, method: str, one: dict[str, Any]) -> str:
    name, verb = escape(one["operationId"]), method.upper()
    parts = [
        f'<article id="{name}"><h3><span class="{verb}">{verb}</span> <code>{escape(path)}</code></h3>',
        f'<p><a href="#{name}">{name}</a>: {_marked(one["description"])}</p>',
        _parameters(one["parameters"]),
        _command(path, verb, one),
    ]
    if (body := one.get("requestBody")) is not None:
        parts.append("<h4>Body</h4>" + _content(body["content"]))
    for event, about in one.get("x-events", {}).items():
        shown = _code(about["example"]) if "example" in about else ""
        title = f"event <code>{escape(event)}</code> {_marked(about['description'])}"
        parts.append(f"<details><summary>{title} {_ref(about['schema'])}</summary>{shown}</details>")
    for status, reply in one["responses"].items():
        if int(status) < _FIRST_ERROR:
            title = f"<code>{status}</code> {_marked(reply['description'])}"
            parts.append(f"<details open><summary>{title}</summary>{_content(reply.get('content', {}))}</details>")
    rows = ""
    for status, reply in one["responses"].items():
        if int(status) >= _FIRST_ERROR:
            named = reply.get("content", {}).get("application/json", {}).get("examples", {})
            places = [(kind, escape(example["$ref"].rpartition("/")[2])) for kind, example in named.items()]
            kinds = ", ".join(f'<a href="#{place}">{escape(kind)}</a>' for kind, place in places)
            rows += f"<tr><td><code>{status}</code></td><td>{kinds or _marked(reply['description'])}</td></tr>"
    parts.append(f"<details><summary>Errors</summary><table>{rows}</table></details>")
    return "".join([*parts, "</article>"])


def _parameters(parameters: list[dict[str, Any]]) -> str:
    if not parameters:
        return ""
    rows = "".join(
        f"<tr><td><code>{escape(one['name'])}</code></td><td>{one['in']}{', required' if one['required'] else ''}</td>"
        f"<td>{_type(one['schema'])}</td><td>{_marked(one['description'])}</td></tr>"
        for one in parameters
    )
    return f'<div class="table"><table><tr><th>Parameter<th>In<th>Type<th>What it is</tr>{rows}</table></div>'


def _command(path: str, verb: str, one: dict[str, Any]) -> str:
    """The request as a command for curl, with the recorded values."""
    shown = {parameter["name"]: parameter.get("example") for parameter in one["parameters"]}
    target = re.sub(r"{(\w+)}", lambda found: str(shown.get(found[1]) or found[0]), path)
    query = [
        f"{parameter['name']}={parameter['example']}"
        for parameter in one["parameters"]
        if parameter["in"] == "query" and "example" in parameter
    ]
    words = ["curl", *([] if verb == "GET" else ["-X", verb]), '-H "Authorization: Bearer $TOKEN"']
    body = one.get("requestBody", {}).get("content", {}).get("application/json", {})
    if examples := [*body.get("examples", {}).values()]:
        words += ["-H", quote("Content-Type: application/json"), "-d", quote(json.dumps(examples[0]["value"]))]
    elif "requestBody" in one:
        words += ["-H", quote("Content-Type: application/octet-stream"), "--data-binary", "@FILE"]
    url = target + ("?" + "&".join(query) if query else "")
    return f'<h4>Example</h4><pre class="copy"><code>{escape(" ".join(words))} "$URL{escape(url)}"</code></pre>'


def _content(content: dict[str, Any]) -> str:
    parts = []
    for media_type, about in content.items():
        parts.append(f"<p><code>{escape(media_type)}</code> {_ref(about.get('schema', {}))}</p>")
        for name, example in about.get("examples", {}).items():
            title = escape(example.get("summary") or name)
            parts.append(f"<details><summary>{title}</summary>{_code(example['value'])}</details>")
    return "".join(parts)


def _schema(name: str, schema: dict[str, Any]) -> str:
    rows = "".join(
        f"<tr><td><code>{escape(field)}</code></td><td>{_type(one)}"
        f"{'' if field in schema.get('required', ()) else ', optional'}</td>"
        f"<td>{_marked(one.get('description', ''))}</td></tr>"
        for field, one in schema.get("properties", {}).items()
    )
    table = f'<div class="table"><table><tr><th>Field<th>Type<th>What it is</tr>{rows}</table></div>' if rows else ""
    kinds = "" if rows else f"<p>{_type(schema)}</p>"
    title, about = escape(name), _marked(schema.get("description", ""))
    return f'<article id="schema-{title}"><h3>{title}</h3><p>{about}</p>{table}{kinds}</article>'


def _type(schema: dict[str, Any]) -> str:
    """A schema in a few words."""
    if "$ref" in schema:
        return _ref(schema)
    for several, word in (("anyOf", " or "), ("allOf", " and "), ("oneOf", " or ")):
        if several in schema:
            return word.join(map(_type, schema[several]))
    kind = schema.get("type", "anything")
    words = " or ".join(kind) if isinstance(kind, list) else kind
    if words == "array":
        return f"array of {_type(schema.get('items', {}))}"
    if "enum" in schema or "const" in schema:
        return " or ".join(f"<code>{escape(str(one))}</code>" for one in schema.get("enum", [schema.get("const")]))
    names = {"format": "", "minimum": "from ", "maximum": "to ", "maxLength": "of at most ", "default": "= "}
    limits = [f"{word}{schema[name]}" for name, word in names.items() if schema.get(name) is not None]
    return escape(" ".join([words, *limits]))


def _ref(schema: dict[str, Any]) -> str:
    if "$ref" not in schema:
        return ""
    name = escape(schema["$ref"].rpartition("/")[2])
    return f'<a href="#schema-{name}">{name}</a>'


def _code(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, indent=2, ensure_ascii=False)
    return f"<pre><code>{escape(text)}</code></pre>"


def _marked(text: str) -> str:
    """Text with its `code`, and its paragraphs."""
    marked = re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text))
    return marked.replace("\n\n", "</p><p>")
