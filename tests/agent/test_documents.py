"""Documents in words: each is read in a process of its own, within bounds, whatever its sender has put into it."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest
from docx import Document
from openpyxl import Workbook
from pypdf import PdfReader, PdfWriter

from miniclaw_sessions import Message, SessionManager
from miniclaw_sessions.agent.agent import Agent, reply_of
from miniclaw_sessions.agent.documents import DocumentReader
from miniclaw_sessions.agent.providers.configured import open_agent
from miniclaw_sessions.config import DocumentSettings, Settings
from miniclaw_sessions.errors import FileNotTaken
from miniclaw_sessions.files.formats.attached import DOCX, PDF, SOUNDS, XLSX, Attached, real_file
from miniclaw_sessions.testing import ScriptedProvider
from tests.agent.test_reading import shown, spoken_file

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(300)]


def pdf(*pages: str) -> bytes:
    """A PDF with these texts."""
    count = len(pages)
    kids = " ".join(f"{3 + 2 * place} 0 R" for place in range(count))
    font = "/Resources << /Font << /F1 << /Type /Font /Subtype /Type1 /BaseFont /Helvetica >> >> >>"
    objects = ["<< /Type /Catalog /Pages 2 0 R >>", f"<< /Type /Pages /Kids [{kids}] /Count {count} >>"]
    for place, text in enumerate(pages):
        drawn = f"BT /F1 12 Tf 72 720 Td ({text}) Tj ET"
        objects.append(f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 600 800] /Contents {4 + 2 * place} 0 R {font} >>")
        objects.append(f"<< /Length {len(drawn)} >>\nstream\n{drawn}\nendstream")
    written, places = b"%PDF-1.4\n", []
    for number, text in enumerate(objects, 1):
        places.append(len(written))
        written += f"{number} 0 obj\n{text}\nendobj\n".encode()
    table = "".join(f"{place:010} 00000 n \n" for place in places)
    trailer = f"trailer << /Size {len(objects) + 1} /Root 1 0 R >>\nstartxref\n{len(written)}\n%%EOF\n"
    return written + f"xref\n0 {len(objects) + 1}\n0000000000 65535 f \n{table}".encode() + trailer.encode()


def docx(*paragraphs: str, rows: Sequence[Sequence[str]] = ()) -> bytes:
    document = Document()
    for text in paragraphs:
        document.add_paragraph(text)
    if rows:
        table = document.add_table(len(rows), len(rows[0]))
        for row, texts in zip(table.rows, rows, strict=True):
            for cell, text in zip(row.cells, texts, strict=True):
                cell.text = text
    file = io.BytesIO()
    document.save(file)
    return file.getvalue()


def xlsx(*rows: Sequence[object]) -> bytes:
    book = Workbook()
    for row in rows:
        book.active.append(row)
    file = io.BytesIO()
    book.save(file)
    return file.getvalue()


def attached_file(name: str, data: bytes) -> Attached:
    file = real_file(name, data)
    assert file is not None
    return file


READER = DocumentReader()


@pytest.mark.parametrize(
    ("name", "data", "kind", "words"),
    [
        ("a.pdf", pdf("Hello Ada", "", "Bye"), PDF, "\n[Page 1]\nHello Ada\n\n[Page 3]\nBye\n"),
        (
            "a.docx",
            docx("Dear Ada,", "", "the sums:", rows=[["tea", "3"], ["milk", "4"]]),
            DOCX,
            "Dear Ada,\nthe sums:\ntea\t3\nmilk\t4\n",
        ),
        ("a.xlsx", xlsx(["tea", 3], [], ["milk", None, 4.5]), XLSX, "\n[Sheet: Sheet]\ntea\t3\nmilk\t\t4.5\n"),
        ("scan.pdf", pdf(""), PDF, ""),
    ],
    ids=["pdf", "docx", "xlsx", "a scan"],
)
async def test_what_is_written_in_a_document(name: str, data: bytes, kind: str, words: str) -> None:
    file = attached_file(name, data)
    assert file.media_type == kind
    assert await READER.words(file) == words


async def test_a_model_that_takes_none_reads_it_and_the_store_has_both(tmp_path: Path) -> None:
    model = ScriptedProvider(["noted"])
    async with SessionManager(tmp_path) as manager:
        session = await manager.get_or_create("telegram", "1")
        agent = Agent(model, readers=[READER])
        assert {PDF, DOCX, XLSX} <= set(agent.takes[model.model])
        await agent.answer(spoken_file("a.pdf", pdf("buy milk")), session=session)
        assert shown(model) == "\n\n[File: a.pdf]\n[Page 1]\nbuy milk\n[end of a.pdf]\n"
        assert [found.session_id for found in (await manager.search("milk")).results] == ["telegram_1"]


async def test_before_there_is_a_model_a_document_is_read_for_the_one_that_follows(tmp_path: Path) -> None:
    async with SessionManager(tmp_path) as manager, open_agent(Settings()) as agent:
        session = await manager.get_or_create("web", "1")
        assert {PDF, DOCX, XLSX} | SOUNDS <= set(agent.takes["offline"]), "nothing is refused"
        reply = await agent.answer(spoken_file("a.pdf", pdf("buy milk")), session=session)
        assert "buy milk" in reply_of(reply).text
        model = ScriptedProvider(["noted"])
        await Agent(model).answer(Message.user("and now?"), session=session)
        assert "buy milk" in next(one for one in model.contexts[-1] if one.is_user).text


async def test_what_is_longer_than_the_bounds_is_cut_and_says_so() -> None:
    brief = DocumentReader(DocumentSettings(max_pages=2))
    words = await brief.words(attached_file("a.pdf", pdf("one", "two", "three")))
    assert words == "\n[Page 1]\none\n\n[Page 2]\ntwo\n\n\n(The rest of the document is not shown: it is too long.)"
    long = await READER.words(attached_file("a.xlsx", xlsx(*(["x" * 900, "y" * 900] for _ in range(500)))))
    assert len(long) < 401_000
    assert long.endswith("it is too long.)")


def encrypted(password: str) -> bytes:
    writer = PdfWriter(clone_from=PdfReader(io.BytesIO(pdf("secret"))))
    writer.encrypt(password, algorithm="RC4-128")
    file = io.BytesIO()
    writer.write(file)
    return file.getvalue()


def bomb() -> bytes:
    """A Word file of some kilobytes that is 300 megabytes of text."""
    packed, file = io.BytesIO(docx("x")), io.BytesIO()
    with zipfile.ZipFile(packed) as source, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as target:
        for name in source.namelist():
            with target.open(name, "w") as member:
                if name != "word/document.xml":
                    member.write(source.read(name))
                    continue
                head, _, tail = source.read(name).partition(b"<w:t>x</w:t>")
                member.write(head + b"<w:t>")
                for _ in range(300):
                    member.write(b"x" * 2**20)
                member.write(b"</w:t>" + tail)
    return file.getvalue()


async def test_what_cannot_be_read_says_why_and_harms_nothing() -> None:
    small = DocumentReader(DocumentSettings(max_memory_mb=256))
    slow = DocumentReader(DocumentSettings(timeout_s=0.01))
    for reader, name, data, why in (
        (READER, "locked.pdf", encrypted("a password"), "it has a password"),
        (READER, "torn.pdf", pdf("hello")[:30], "it is damaged, or not what its name says"),
        (READER, "torn.docx", docx("hello")[:-500] + b"word/document.xml", "it is damaged"),
        (small, "bomb.docx", bomb(), "more than 256 MB of memory|damaged"),
        (slow, "a.pdf", pdf("hello"), r"longer than 0\.01 s"),
    ):
        with pytest.raises(FileNotTaken, match=f"{name} cannot be read: .*({why})"):
            await reader.words(attached_file(name, data))
    assert await READER.words(attached_file("open.pdf", encrypted(""))) == "\n[Page 1]\nsecret\n"


async def test_its_sender_learns_at_once_what_is_wrong_with_it_and_a_network_keeps_it(tmp_path: Path) -> None:
    locked = encrypted("a password")
    async with SessionManager(tmp_path) as manager:
        session = await manager.get_or_create("web", "1")
        agent = Agent(ScriptedProvider(["what is in it?"]), readers=[READER])
        with pytest.raises(FileNotTaken, match="has a password"):
            await agent.answer(spoken_file("a.pdf", locked, is_optional=False), session=session)
        assert session.messages() == []
        await agent.answer(spoken_file("a.pdf", locked), session=session)
        assert len(session.messages()) == 2


def test_no_document_is_read_where_the_settings_say_so() -> None:
    assert DocumentReader(DocumentSettings(max_pages=0)).kinds == frozenset()
