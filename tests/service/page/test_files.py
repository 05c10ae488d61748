"""The page's files: what the gateway sends with them, that nothing in them could not run, and what is not our own."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from base64 import b64encode
from hashlib import sha256
from importlib.resources import files
from pathlib import Path

import pytest

from miniclaw_sessions.service.gateway import page
from miniclaw_sessions.service.gateway.page import FILES

FOLDER = Path(str(files(page)))
INDEX = FILES["/"].body.decode()
SCRIPT = INDEX.partition('<script type="module">')[2].partition("</script>")[0]
SCRIPTS = sorted(FOLDER.glob("*.js"))
VENDORED = {  # uPlot 1.6.32, MIT: the files of its published package, unchanged
    "uPlot.esm.js": "5dd9b3281aa64b461b42d9945f6adb2649d346502b12281a9ae0d46599a80eba",
    "uPlot.min.css": "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
    "uPlot.LICENSE": "8f989229699b4fe2f1a0432d0e9edc338a8a911e250e2d1b01ecd770a5f5b1bd",
}


def test_what_is_not_our_own_is_what_was_published_and_has_its_licence() -> None:
    found = {file.name: sha256(file.read_bytes()).hexdigest() for file in (FOLDER / "vendor").iterdir()}
    assert found == VENDORED


def test_the_page_names_only_files_that_are_served_and_no_other_server() -> None:
    named = re.findall(r'<\w[^>]* (?:src|href)="(?!#)([^"]+)"|await import\("\./([^"]+)"\)', INDEX)
    assert {f"/{markup or script}" for markup, script in named} == FILES.keys() - {"/"}


def test_what_is_sent_has_every_script_behind_those_that_it_imports_and_all_that_these_export() -> None:
    exported: dict[str, set[str]] = {}
    for name, body, names in re.findall(
        r'^modules\["([^"]+)"\] = \(\(\) => {$(.*?)^return { (.*?) };$', SCRIPT, re.MULTILINE | re.DOTALL
    ):
        for wanted, other in re.findall(r'^const { (.*) } = modules\["(.*)"\];$', body, re.MULTILINE):
            assert set(wanted.split(", ")) <= exported[other], f"{name} imports of {other}"
        exported[name] = {*names.split(", ")}
    assert exported.keys() | {"early.js"} == {script.name for script in SCRIPTS}
    assert not re.search(r"^(import|export)\b", SCRIPT, re.MULTILINE)


def test_nothing_in_the_page_is_inline_where_the_policy_would_refuse_it() -> None:
    markup = re.sub(r"<(style|script)( [^>]*)?>.*?</\1>", "", INDEX, flags=re.DOTALL)
    assert not re.search(r"\son\w+=|\sstyle=|<style|<script|javascript:", markup)
    inline = re.findall(r"<(style|script)(?: [^>]*)?>(.*?)</\1>", INDEX, re.DOTALL)
    assert [tag for tag, _ in inline] == ["script", "style", "script"]
    for tag, text in inline:
        sources = re.findall(rf"{tag}-src ([^;]*);", page.POLICY)[0].split()
        assert f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'" in sources


def test_text_becomes_markup_in_one_place() -> None:
    sinks = re.compile(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|createContextualFragment|\beval\b"
    )
    assert [script.name for script in SCRIPTS if sinks.search(script.read_text())] == ["fragments.js"]


needs_node = pytest.mark.skipif(shutil.which("node") is None, reason="there is no node")


OUTCOMES = [
    (0, "unreachable", "again"),
    (502, "", "again"),  # a proxy's: the daemon is not there
    (503, "turn_cut_off", "again"),
    (409, "message_under_way", "again"),
    (409, "duplicate_message", "overtaken"),  # an answer that is there comes with 200
    (409, "message_stopped", "back"),
    (429, "chat_busy", "back"),
    (502, "model_error", "unanswered"),  # each repetition would be paid for
    (502, "iteration_limit", "unanswered"),
    (400, "model_refused", "unanswered"),
    (400, "context_overflow", "unanswered"),
    (424, "model_access_denied", "unanswered"),
    (429, "model_rate_limited", "unanswered"),
    (429, "budget_spent", "unanswered"),  # the message is saved, and would be said twice
    (503, "model_overloaded", "unanswered"),
    (504, "model_timeout", "unanswered"),
    (504, "", "again"),
]


@needs_node
def test_what_was_said_is_sent_again_only_where_that_can_help() -> None:
    refused = [f"new Refused({status}, {{ type: '{kind}' }})" for status, kind, _ in OUTCOMES]
    script = (
        f"import {{ Refused }} from '{FOLDER}/api.js'; import {{ outcomeOf }} from '{FOLDER}/outbox.js';"
        f"console.log(JSON.stringify([{', '.join(refused)}].map(outcomeOf)))"
    )
    command = ["node", "--no-warnings", "--experimental-default-type=module", "--input-type=module", "--eval", script]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.stderr == ""
    outcomes = json.loads(ended.stdout)
    assert [(*one[:2], outcome) for one, outcome in zip(OUTCOMES, outcomes, strict=True)] == OUTCOMES


@needs_node
def test_every_script_can_be_parsed() -> None:
    scripts = {script.name: script.read_text() for script in SCRIPTS} | {"the page": SCRIPT}
    parse = (
        "import { SourceTextModule } from 'node:vm'; import { readFileSync } from 'node:fs';"
        "const scripts = Object.entries(JSON.parse(readFileSync(0, 'utf8')));"
        "for (const [identifier, source] of scripts) new SourceTextModule(source, { identifier });"
        "console.log(scripts.length)"
    )
    command = ["node", "--no-warnings", "--experimental-vm-modules", "--input-type=module", "--eval", parse]
    parsed = subprocess.run(command, input=json.dumps(scripts), capture_output=True, text=True, check=False)
    assert (parsed.stdout.strip(), parsed.stderr) == (str(len(SCRIPTS) + 1), "")
