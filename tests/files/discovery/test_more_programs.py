"""The sessions of Goose and of the programs after it: found, imported, kept up with, and left as they are."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest

from miniclaw_sessions.files.discovery import places
from miniclaw_sessions.files.discovery.overview import overview
from miniclaw_sessions.files.discovery.programs import programs_named
from tests.files.discovery.test_follower import following, put
from tests.files.discovery.test_same_names import taken
from tests.programs import aider, amp, copilot_cli, crush, cursor, goose, open_webui
from tests.programs.databases import insert

pytestmark = pytest.mark.anyio


# --- Goose -----------------------------------------------------------------------------------------------------------


async def test_a_session_that_goose_has_moved_into_its_database_is_taken_once(tmp_path: Path) -> None:
    async with following(tmp_path) as ours:
        goose.put(ours.home)
        goose.put_file(ours.home, goose.ID)  # which stays where it was
        assert await taken(ours) == {f"import_{goose.OLD_ID}": "goose", f"import_{goose.ID}": "goose"}
        assert await ours.said(f"import_{goose.OLD_ID}") == goose.OLD_SAID
        assert (await ours.said(f"import_{goose.ID}"))[0] == "What is a lagoon?"
        (program,) = programs_named(["goose"])
        assert overview(program, {}, ours.home).sessions == 2


async def test_goose_s_database_is_kept_up_with_while_it_is_open(tmp_path: Path) -> None:
    async with following(tmp_path) as ours:
        path = goose.put_database(ours.home)
        assert await taken(ours) == {f"import_{goose.ID}": "goose"}
        writer = sqlite3.connect(path)
        insert(writer, *goose.row_of(goose.ID, goose.said("user", 9, goose.text("And a fjord?"))))
        writer.commit()  # it stays open, with what it wrote in its log
        assert await ours.taken() == 1
        assert (await ours.branch(f"import_{goose.ID}"))[-1] == "And a fjord?"
        writer.close()


async def test_one_id_in_two_of_goose_s_directories_is_two_sessions(tmp_path: Path) -> None:
    async with following(tmp_path) as ours:
        goose.put_database(ours.home)
        other = [goose.HEADER, goose.said("user", 0, goose.text("Something else."))]
        goose.put_database(ours.home, other, Path("Library/Application Support/Block/goose/sessions"))
        first, second = await taken(ours)
        assert first == f"import_{goose.ID}"
        assert second.startswith(f"import_{goose.ID}-")
        assert await ours.said(second) == ["Something else."]
        ours.begin()
        assert await taken(ours) == {}


# --- Crush -----------------------------------------------------------------------------------------------------------


async def test_crush_s_projects_are_found_by_its_list_and_an_id_in_two_of_them_is_one_copied_session(
    tmp_path: Path,
) -> None:
    async with following(tmp_path) as ours:
        crush.put(ours.home)
        crush.put(ours.home, "copy")
        assert await taken(ours) == {f"import_{crush.ID}": "crush"}
        assert await ours.said(f"import_{crush.ID}") == [
            *("What is a moraine?", "I look.", "moraine.txt", "Debris of a glacier.")
        ]


@pytest.mark.parametrize(
    "listed", ["", "[]", '{"projects": 5}', '{"projects": [5, {"data_dir": 5}, {"data_dir": ""}]}']
)
def test_a_list_of_projects_that_is_damaged_costs_only_itself(tmp_path: Path, listed: str) -> None:
    crush.put(tmp_path)
    (tmp_path / ".local/share/crush/projects.json").write_text(listed)
    (program,) = programs_named(["crush"])
    assert program.databases({}, tmp_path) == [tmp_path / ".crush/crush.db"]


# --- Aider -----------------------------------------------------------------------------------------------------------


async def test_aider_s_projects_are_found_and_one_name_in_two_places_is_two_sessions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(places, "LOOK_AGAIN_S", 0.0)
    async with following(tmp_path) as ours:
        aider.put(ours.home)
        aider.put(ours.home, "work/project", "# aider chat started at 2026-05-03 08:00:00\n\n#### Something else.  \n")
        aider.put(ours.home, "a/b/c/deeper")
        aider.put(ours.home, ".cache/hidden")
        first, second = await taken(ours)
        assert first == "import_project"
        assert second.startswith("import_project-")
        assert await ours.branch(first) == ["And a taiga?", "A forest of conifers."]
        assert await ours.said(second) == ["Something else."]
        with (ours.home / "project/.aider.chat.history.md").open("a") as file:
            file.write("\n#### And a steppe?  \n\nA dry plain.\n\n")
        assert await ours.taken() == 2
        assert (await ours.branch(first))[-2:] == ["And a steppe?", "A dry plain."]
        ours.begin()
        assert await taken(ours) == {}


# --- Copilot CLI -----------------------------------------------------------------------------------------------------


async def test_copilot_cli_s_three_places_are_found_and_read_on(tmp_path: Path) -> None:
    async with following(tmp_path) as ours:
        copilot_cli.put(ours.home)
        (ours.home / f".copilot/session-state/{copilot_cli.ID}/files").mkdir()
        (ours.home / f".copilot/session-state/{copilot_cli.ID}/files/events.jsonl").write_text("{}\n")
        assert await taken(ours) == {
            f"import_{name}": "copilot-cli" for name in ("early", copilot_cli.ID, copilot_cli.OLD_ID)
        }
        more = copilot_cli.event(10, "user.message", content="And a fjord?")
        put(ours.home / f".copilot/session-state/{copilot_cli.ID}/events.jsonl", [more])
        assert await ours.taken() == 1
        assert (await ours.branch(f"import_{copilot_cli.ID}"))[-1] == "And a fjord?"
        ours.begin()
        assert await taken(ours) == {}


# --- Open WebUI and LibreChat ----------------------------------------------------------------------------------------


async def test_open_webui_s_databases_are_found_and_one_chat_in_two_of_them_is_a_copy(tmp_path: Path) -> None:
    async with following(tmp_path) as ours:
        open_webui.put(ours.home)
        open_webui.put(ours.home, place=".local/lib/python3.11/site-packages/open_webui/data")
        assert await taken(ours) == {f"import_{open_webui.ID}": "open-webui"}
        assert (await ours.branch(f"import_{open_webui.ID}"))[-1] == "Land that sinks."
        with sqlite3.connect(ours.home / ".open-webui/webui.db") as writer:
            more = open_webui.said("q9", "a3", "user", "And a pingo?", 9)
            chat = open_webui.chat([*open_webui.MESSAGES, more], "q9")
            writer.execute("UPDATE chat SET chat = ?, updated_at = updated_at + 9", [json.dumps(chat)])
        writer.close()
        assert await ours.taken() == 1
        assert (await ours.branch(f"import_{open_webui.ID}"))[-1] == "And a pingo?"


async def test_librechat_s_mongodb_is_named_and_why_it_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "LibreChat/data-node").mkdir(parents=True)
    (program,) = programs_named(["librechat"])
    assert overview(program, {}, tmp_path).unread == []
    (tmp_path / "LibreChat/data-node/WiredTiger").write_text("WiredTiger\n")
    (unread,) = overview(program, {}, tmp_path).unread
    assert "MongoDB, which is not read: export them" in unread["reason"]


# --- Cursor and Amp --------------------------------------------------------------------------------------------------


async def test_cursor_s_databases_of_every_version_are_found_and_kept_up_with(tmp_path: Path) -> None:
    async with following(tmp_path) as ours:
        cursor.put(ours.home)
        assert await taken(ours) == {f"import_{name}": "cursor" for name in (cursor.ID, cursor.OLD_ID, cursor.TAB_ID)}
        more = cursor.bubble("b9", 1, 9, "And a polje?")
        headers = [*cursor.COMPOSER["fullConversationHeadersOnly"], {"bubbleId": "b9", "type": 1}]
        with sqlite3.connect(ours.home / cursor.PLACE / "globalStorage/state.vscdb") as writer:
            insert(writer, *cursor.keyed(f"bubbleId:{cursor.ID}:b9", more))
            composer = {**cursor.COMPOSER, "fullConversationHeadersOnly": headers}
            insert(writer, *cursor.keyed(f"composerData:{cursor.ID}", composer))
        writer.close()
        assert await ours.taken() == 1
        assert (await ours.branch(f"import_{cursor.ID}"))[-1] == "And a polje?"
        ours.begin()
        assert await taken(ours) == {}


async def test_the_chats_of_cursor_s_command_line_are_named_and_why_they_are_not_read(tmp_path: Path) -> None:
    (tmp_path / ".cursor/chats/0123/4567").mkdir(parents=True)
    (tmp_path / ".cursor/chats/0123/4567/store.db").write_bytes(b"SQLite format 3")
    (program,) = programs_named(["cursor"])
    (unread,) = overview(program, {}, tmp_path).unread
    assert unread["reason"].startswith(
        "1 chat of Cursor's command line: their databases (store.db) are in a binary form"
    )


async def test_amp_s_threads_are_found_and_read_again_when_they_grow(tmp_path: Path) -> None:
    async with following(tmp_path) as ours:
        amp.put(ours.home)
        assert await taken(ours) == {f"import_{amp.ID}": "amp"}
        more = amp.said(4, "user", amp.text("And a drumlin?"), meta={"sentAt": amp.AT + 900_000})
        document = {**amp.DOCUMENT, "v": 43, "messages": [*amp.MESSAGES, more]}
        (ours.home / f".local/share/amp/threads/{amp.ID}.json").write_text(json.dumps(document, indent=2))
        assert await ours.taken() == 1
        assert (await ours.branch(f"import_{amp.ID}"))[-1] == "And a drumlin?"
