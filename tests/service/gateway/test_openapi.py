"""The OpenAPI document: all of the table, with examples that are as it says; and the page that is made of it."""

from __future__ import annotations

import ast
import base64
import hashlib
import re
import threading
from html.parser import HTMLParser
from typing import Any

import anyio
import jsonschema
import pytest
from structlog.testing import capture_logs

from miniclaw_sessions.service.api import description, openapi
from miniclaw_sessions.service.api.docs_page import CONTENT_SECURITY_POLICY, docs_page
from miniclaw_sessions.service.api.error_table import known_errors
from miniclaw_sessions.service.api.openai import answering
from miniclaw_sessions.service.api.openapi import examples_of, openapi_document
from miniclaw_sessions.service.api.operation import BODY, Operation
from miniclaw_sessions.service.api.table import OPERATIONS, document
from tests.api_examples import recorded
from tests.source_files import FILES, source_of

pytestmark = pytest.mark.anyio

RECORD = "add a call of it to tests/api_examples.py, and run python -m tests.api_examples"


@pytest.fixture(scope="module")
def described() -> dict[str, Any]:
    return document()


@pytest.fixture(scope="module")
def asked() -> dict[str, list[dict[str, Any]]]:
    """The exchanges of the examples, of today: what is recorded lacks the fields that are newer than it."""
    with capture_logs(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(answering, "_STATUS_WAIT_S", 1.0)  # or one of the exchanges waits 15 s for a sign of life
        return anyio.run(recorded)


def described_as(one: Operation[Any, Any], described: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = described["paths"][one.path][one.method.lower()]
    return found


def valid(value: Any, schema: dict[str, Any], described: dict[str, Any]) -> list[str]:
    """What is wrong with a value, by its schema in the document."""
    checker = jsonschema.Draft202012Validator({**schema, "components": described["components"]})
    return [f"{'/'.join(map(str, one.path))}: {one.message[:200]}" for one in checker.iter_errors(value)]


@pytest.mark.parametrize("one", OPERATIONS, ids=lambda one: one.name)
def test_every_operation_is_described_with_examples_that_are_as_it_says(
    one: Operation[Any, Any], described: dict[str, Any], asked: dict[str, list[dict[str, Any]]]
) -> None:
    about = described_as(one, described)
    assert (about["operationId"], about["tags"]) == (one.name, [one.room])
    unexplained = [parameter["name"] for parameter in about["parameters"] if not parameter["description"]]
    assert not unexplained, f"say what they are: `Attributes:` in the docstring of {one.request.__name__}"
    assert examples_of(one.name), f"{one.name} has no example: {RECORD}"
    for exchange in asked[one.name]:
        reply = about["responses"][str(exchange["status"])]
        if "body" in exchange["request"] and exchange["status"] != 422:
            schema = about["requestBody"]["content"]["application/json"]["schema"]
            assert not valid(exchange["request"]["body"], schema, described)
        if exchange["media_type"] and "content" in reply:
            content = reply["content"][exchange["media_type"]]
            if "reply" in exchange and exchange["media_type"] == "application/json":
                wrong = valid(exchange["reply"], content["schema"], described)
                assert not wrong, exchange["about"]
    if BODY in one.fields and not one.uploads:
        assert about["requestBody"]["content"]["application/json"]["examples"], f"{one.name} has no body: {RECORD}"


READABLE = ("application/json", "application/x-ndjson", "text/event-stream", "text/markdown")
"""What an example can show; pages and files are too large, or no text."""


@pytest.mark.parametrize("one", OPERATIONS, ids=lambda one: one.name)
def test_every_reply_has_an_example(one: Operation[Any, Any], described: dict[str, Any]) -> None:
    lacking = [
        f"{status} {kind}"
        for status, reply in described_as(one, described)["responses"].items()
        for kind, content in reply.get("content", {}).items()
        if kind in READABLE and not content.get("examples")
    ]
    assert not lacking, f"{one.name}: {RECORD}"


@pytest.mark.parametrize("one", [one for one in OPERATIONS if one.events], ids=lambda one: one.name)
def test_every_event_is_described_with_an_example_that_is_as_it_says(
    one: Operation[Any, Any], described: dict[str, Any]
) -> None:
    for name, about in described_as(one, described)["x-events"].items():
        assert "example" in about, f"{one.name} has no event {name} in its examples: {RECORD}"
        assert not valid(about["example"], about["schema"], described), name


def test_no_operation_stands_in_the_document_that_is_not_in_the_table(described: dict[str, Any]) -> None:
    names = [about["operationId"] for methods in described["paths"].values() for about in methods.values()]
    assert sorted(names) == sorted(one.name for one in OPERATIONS)
    assert len(set(names)) == len(names)


def test_every_error_has_an_example(described: dict[str, Any]) -> None:
    examples, schema = described["components"]["examples"], described["components"]["schemas"]["Error"]
    assert set(examples) >= {f"{status}-{kind}" for status, kind in known_errors()}
    assert [name for name, one in examples.items() if valid(one["value"], schema, described)] == []


def test_every_reference_leads_somewhere(described: dict[str, Any]) -> None:
    for kind, name in re.findall(r"'#/components/(\w+)/([^']+)'", repr(described)):
        assert name in described["components"][kind], name


def test_every_error_that_is_made_somewhere_is_in_the_table() -> None:
    making = (file for file in FILES if "RequestError(" in file.read_text())  # to read them all takes seconds
    errors = set().union(*(source_of(file).errors for file in making))
    made = {(status, kind) for status, kind in errors if isinstance(status, int) and isinstance(kind, str)}
    assert len(made) > 10
    assert made - known_errors().keys() == set(), (
        "add it to WITHOUT_CLASS in service/api/error_table.py, with its meaning"
    )


async def test_the_document_is_served_and_not_sent_twice(served: Any, described: dict[str, Any]) -> None:
    reply = await served.unix.get("/openapi.json")
    assert (reply.status_code, reply.json()) == (200, described)
    again = await served.unix.get("/openapi.json", headers={"If-None-Match": f'W/{reply.headers["etag"]}, "other"'})
    assert (again.status_code, again.content) == (304, b"")
    kept = ("etag", "cache-control", "content-type")  # a browser takes them over
    assert [again.headers[name] for name in kept] == [reply.headers[name] for name in kept]


async def test_the_document_is_made_once_and_beside_the_loop(served: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    made_in: list[int] = []

    def make(*given: Any) -> Any:
        made_in.append(threading.get_ident())
        return openapi_document(*given)

    monkeypatch.setattr(openapi, "openapi_document", make)
    caches: Any = (document, description._as_json, description._as_page)
    for cached in caches:
        cached.cache_clear()
    async with anyio.create_task_group() as tasks:
        for path in ("/openapi.json", "/docs", "/openapi.json", "/docs"):
            tasks.start_soon(served.unix.get, path)
    assert len(made_in) == 1
    assert made_in[0] != threading.get_ident()


class Page(HTMLParser):
    """The tags of a page, and what leads out of it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.links: list[str] = []
        self.ids: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes.update(name for name, _ in attrs)
        self.links += [value or "" for name, value in attrs if name in ("href", "src")]
        self.ids += [value or "" for name, value in attrs if name == "id"]


async def test_the_page_has_every_operation_and_asks_for_nothing(served: Any) -> None:
    reply = await served.unix.get("/docs")
    assert reply.headers["content-type"] == "text/html; charset=utf-8"
    assert reply.headers["content-security-policy"] == CONTENT_SECURITY_POLICY
    page = Page(reply.text)
    assert not page.tags & {"script", "link", "img", "iframe", "form", "input", "base", "object"}
    assert not [name for name in page.attributes if name.startswith("on") or name == "style"]
    assert {one.name for one in OPERATIONS} <= set(page.ids)
    assert len(page.ids) == len(set(page.ids))
    assert {link.removeprefix("#") for link in page.links} <= {*page.ids, "/openapi.json"}
    style = reply.text.partition("<style>")[2].partition("</style>")[0]
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert f"style-src 'sha256-{digest}'" in CONTENT_SECURITY_POLICY


def test_what_stands_in_the_document_is_text_on_the_page(described: dict[str, Any]) -> None:
    hostile = "<script>alert(1)</script>"
    text = repr(described["paths"]["/health"]).replace("Whether messages are accepted", hostile)
    page = docs_page({**described, "paths": {"/health": ast.literal_eval(text)}})
    assert hostile not in page
    assert "&lt;script&gt;" in page
