"""What a mail says, who is answered, and what the answer looks like: without any server."""

from __future__ import annotations

import base64
from datetime import UTC, datetime
from email import message_from_bytes, policy
from email.headerregistry import HeaderRegistry
from email.message import EmailMessage
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from miniclaw_sessions.channels.email.mail import Mail, answer_to, is_authenticated, read_header, read_message
from miniclaw_sessions.channels.email.text import text_of_html, unquoted, unsigned
from miniclaw_sessions.core.protocol.messages import ImagePart, Message, TextPart
from miniclaw_sessions.files.formats.attached import attached
from tests.channels.post import ALICE, BOB, BOT, mail
from tests.channels.telegram_server import PNG

NOW = datetime(2026, 11, 23, 10, 0, tzinfo=UTC)
OURS = "<mc.0123456789abcdef.0123456789abcdef@example.org>"


def header(**fields: str) -> Mail:
    read = read_header(mail(**fields), BOT)
    assert isinstance(read, Mail), read
    return read


# --- who is answered -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fields",
    [
        {"auto_submitted": "auto-replied"},
        {"auto_submitted": "auto-generated; owner-email=x@y"},
        {"precedence": "bulk"},
        {"precedence": "List"},
        {"list_id": "<news.example.org>"},
        {"return_path": "<>"},
        {"x_auto_response_suppress": "OOF, AutoReply"},
        {"x_autoreply": "yes"},
        {"from": f"The Bot <{BOT.upper()}>"},
        {"from": f"{ALICE}, {BOB}"},
        {"from": ""},
        {"from": "undisclosed"},
        {"from": "jürgen@example.org"},
    ],
)
def test_programs_ourselves_and_who_is_nobody_are_not_answered(fields: dict[str, str]) -> None:
    assert isinstance(read_header(mail(**fields), BOT), str)


def test_a_report_of_a_bounce_is_not_answered() -> None:
    bounce = b"From: mailer-daemon@example.org\r\nContent-Type: multipart/report; boundary=x\r\n\r\n--x--\r\n"
    assert read_header(bounce, BOT) == "it reports on the delivery of a mail"


def test_two_from_fields_are_not_one_sender() -> None:
    assert isinstance(read_header(f"From: {BOB}\r\n".encode() + mail(), BOT), str)


@pytest.mark.parametrize(
    "fields", [{"auto_submitted": "no"}, {"precedence": "first-class"}, {"return_path": f"<{ALICE}>"}]
)
def test_people_are_answered(fields: dict[str, str]) -> None:
    assert header(**fields).sender == ALICE


def test_a_copy_is_not_addressed_to_us_unless_it_follows_our_answer() -> None:
    copied = {"to": BOB, "cc": BOT}
    assert not header(**copied).is_addressed
    assert header(**copied, references=OURS).is_addressed
    assert header(to="list-of-the-team@example.org").is_addressed  # an alias, or a blind copy


@pytest.mark.parametrize("to", [BOT, BOT.title(), f"Bot <{BOT}>", f"{BOB},{BOT}", f"us: {BOT};", f"{BOT}(the bot)"])
def test_we_are_addressed_however_our_address_is_written(to: str) -> None:
    assert header(to=to, cc=BOT).is_addressed


@pytest.mark.parametrize("to", [f"a{BOT}", f"{BOT}.evil", f"a-{BOT}", f'"{BOT}" <{BOB}>'])
def test_an_address_that_only_has_ours_in_it_is_not_ours(to: str) -> None:
    assert not header(to=to, cc=BOT).is_addressed


@pytest.mark.parametrize("cc", [f"{BOT}, {{}}", f"{{}}, {BOT}"])
def test_a_copy_to_very_many_is_one(cc: str) -> None:
    many = ", ".join(f"person.{number}@example.org" for number in range(1_000))
    assert not header(to=BOB, cc=cc.format(many)).is_addressed


@pytest.mark.parametrize("name", ["From", "To", "Cc", "Message-ID", "References", "Content-Type", "Reply-To"])
def test_a_hostile_header_takes_no_longer_than_it_is_long(name: str) -> None:
    hostile = f"{name}: ".encode() + b'"' * 200_000 + b" x@evil.example\r\n"  # a quadratic reading takes an hour
    read = read_header(hostile + mail(**{name.lower().replace("-", "_"): ""}), BOT)
    assert read == "its From is not one address" if name == "From" else isinstance(read, Mail)


@pytest.mark.parametrize("name", ["Content-Type: text/plain", "Content-Disposition: inline"])
def test_hostile_parameters_of_a_part_take_no_longer_than_they_are_long(name: str) -> None:
    parameters = b"".join(b";\r\n a%d=b" % number for number in range(400_000))
    part = b"--x\r\n" + name.encode() + parameters + b"\r\n\r\nhello\r\n--x--\r\n"
    data = b"Content-Type: multipart/mixed; boundary=x\r\n\r\n" + part
    message, missed = read_message(data, header(), len(data), 0)
    assert (message.text.strip(), missed) == ("hello", [])


def test_a_mail_of_very_many_parts_is_not_read() -> None:
    data = b"Content-Type: multipart/mixed; boundary=x\r\n\r\n" + b"--x\r\n\r\nhello\r\n" * 1_000 + b"--x--\r\n"
    with pytest.raises(ValueError, match="parts"):
        read_message(data, header(), len(data), 0)


@pytest.mark.parametrize("lines", [b"", b"\n", b"--\n", b"--b\n"])
def test_a_mail_of_many_parts_within_each_other_takes_no_longer_than_it_is_long(lines: bytes) -> None:
    levels = b"".join(b"Content-Type: multipart/mixed; boundary=b%d\r\n\r\n--b%d\r\n" % (n, n) for n in range(90))
    data = levels + b"Content-Type: text/plain\r\n\r\n" + lines * 1_000_000
    with pytest.raises(ValueError, match="nested"):
        read_message(data, header(), len(data), 0)


@pytest.mark.parametrize("field", [b"text/plain" + b";" * 990, b"text/plain; " + b"a=b;" * 240])
def test_hostile_fields_of_many_parts_are_read_once_each(field: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[str] = []
    parse = HeaderRegistry.__call__

    def counted(self: HeaderRegistry, name: str, value: str) -> Any:
        parsed.append(name)
        return parse(self, name, value)

    monkeypatch.setattr(HeaderRegistry, "__call__", counted)
    parts = b"".join(b"--x\r\nContent-Type: %b n=%d\r\n\r\nhello\r\n" % (field, n) for n in range(90))
    data = b"Content-Type: multipart/mixed; boundary=x\r\n\r\n" + parts + b"--x--\r\n"
    read_message(data, header(), len(data), 0)
    assert len(parsed) < 200


@pytest.mark.parametrize("lone", [b'"', b'\\"', b'"\\'])
def test_hostile_results_take_no_longer_than_they_are_long(lone: bytes) -> None:
    line = lone * 400
    results = b'Authentication-Results: "' + b"\r\n ".join([line] * 400)  # a quadratic reading takes many minutes
    assert not is_authenticated(results + b"\r\n" + mail(), "mx.example.org")


@pytest.mark.parametrize("name", ['"x" mx.example.org', '"x"mx.example.org', "(a) mx.example.org", 'mx.example.org"'])
def test_results_of_a_server_that_does_not_begin_with_our_servers_name_are_not_its_own(name: str) -> None:
    assert not is_authenticated(mail(authentication_results=f"{name}; dmarc=pass"), "mx.example.org")


@pytest.mark.parametrize(
    ("results", "is_pass"),
    [
        ("mx.example.org; dkim=pass header.d=example.org; dmarc=pass header.from=example.org", True),
        ("mx.example.org 1; dmarc = pass (p=none) header.from=example.org", True),
        ("mx.example.org; dmarc=fail", False),
        ("mx.example.org; spf=pass; dkim=pass", False),
        ('mx.example.org; dkim=fail reason="; dmarc=pass"', False),
        ("mx.example.org; dkim=fail (; dmarc=pass)", False),
        ("mx.example.org; dmarc=pass; dmarc=fail", False),
        ("other.example.org; dmarc=pass", False),
        ("", False),
    ],
)
def test_only_what_our_server_says_of_dmarc_makes_a_sender_authentic(results: str, is_pass: bool) -> None:
    assert is_authenticated(mail(authentication_results=results), "mx.example.org") is is_pass


@pytest.mark.parametrize(
    "results",
    [
        "spf=pass smtp.mailfrom==?utf-8?q?x=3Bdmarc=3Dpass=3By?=@evil.example",
        "spf=pass smtp.mailfrom==?utf-8?q?=3Bdmarc=3Dpass=3B=22?=@x; dmarc=fail header.d=x",
        'spf=pass smtp.mailfrom="a\\";dmarc=pass;\\""@evil.example; dmarc=fail',
    ],
)
def test_no_address_of_a_sender_says_that_dmarc_has_passed(results: str) -> None:
    field = f"Authentication-Results: mx.example.org; {results}\r\n".encode()
    assert not is_authenticated(field + mail(), "mx.example.org")


def test_what_stands_below_our_servers_statement_came_from_outside() -> None:
    fields = [f"Authentication-Results: mx.example.org; dmarc={result}\r\n".encode() for result in ("fail", "pass")]
    assert not is_authenticated(b"".join(fields) + mail(), "mx.example.org")


# --- which chat ------------------------------------------------------------------------------------------------------


def test_a_thread_is_one_chat_whatever_of_it_a_mail_refers_to() -> None:
    first = header(message_id="1@alice")
    ours = answer_to(first, BOT, "yes", NOW)["message-id"]
    same = [
        header(references=f"<1@alice> {ours}"),
        header(in_reply_to=ours),
        header(references="<1@alice>"),
        header(references=f"<0@elsewhere> {ours} <3@alice>", message_id="4@alice"),
    ]
    assert {one.chat_id for one in same} == {first.chat_id}
    assert header(message_id="2@alice").chat_id != first.chat_id


def test_who_refers_to_the_thread_of_somebody_else_is_in_a_chat_of_his_own() -> None:
    ours = answer_to(header(), BOT, "yes", NOW)["message-id"]
    forged = header(references=ours, **{"from": BOB})
    assert (forged.thread, forged.chat_id) == (header().thread, f"{BOB},{header().thread}")


def test_a_mail_without_an_id_has_one_that_stays_the_same() -> None:
    one = header(message_id="").message_id, header(message_id="").message_id
    assert one[0] == one[1] != header(message_id="", subject="another").message_id


# --- what it says ----------------------------------------------------------------------------------------------------

TOP = """Yes please.

On Mon, 3 Nov 2025 at 10:00, Bot <bot@example.org> wrote:

> 6 * 7 is 42
>
> anything else?
"""
WRAPPED = """Ja.

Am 03.11.2025 um 10:00 schrieb Bot
<bot@example.org>:
> 42
--\x20
Alice
"""
JAPANESE = "/stop\n\n2025年11月3日(月) 10:00 Bot <bot@example.org>:\n\n> hi\n> there"
OUTLOOK = """Thanks!

________________________________
From: Bot <bot@example.org>
Sent: Monday
To: Alice
Subject: Re: x

old text
"""
GERMAN_OUTLOOK = "Danke\n\nVon: Bot\nGesendet: Montag\nAn: Alice\nBetreff: AW: x\n\nalt"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (TOP, "Yes please."),
        (WRAPPED, "Ja."),
        (JAPANESE, "/stop"),
        (OUTLOOK, "Thanks!"),
        (GERMAN_OUTLOOK, "Danke"),
        ("On Monday, the 3rd of 2025, Bot wrote:\n> what?\n\nbelow it", "below it"),
        ("> first?\nyes\n> second?\nno", "> first?\nyes\n> second?\nno"),
        ("I mean this:\n\n> only quoted", "I mean this:"),
        ("> only quoted", "> only quoted"),
        ("def f():\n    return [\n        1]", "def f():\n    return [\n        1]"),
        ("a list:\n- one\n-- two\n--- three", "a list:\n- one\n-- two\n--- three"),
    ],
)
def test_what_is_quoted_from_our_answer_and_the_signature_are_left_out(text: str, said: str) -> None:
    assert unquoted(unsigned(text)) == said


@pytest.mark.parametrize(
    "hostile", ["_" * 20 + "\n" * 262_144, "-" * 262_144 + "x", "From: x\n\n" * 30_000, "> " * 130_000]
)
def test_a_hostile_text_takes_no_longer_than_it_is_long(hostile: str) -> None:
    assert unquoted(f"hi\n{hostile}\nyou").startswith("hi")  # half an hour, where each empty line is sought anew


def test_of_any_number_of_texts_in_a_mail_only_so_much_is_read_as_of_one() -> None:
    content = multipart("mixed", *[("text/plain", "word " * 20_000)] * 9).as_bytes()
    assert 262_144 < len(read_message(content, header(), len(content), 0)[0].text) < 262_144 + 100


def test_a_mail_that_brings_us_into_a_thread_keeps_what_it_quotes() -> None:
    asked = mail("Please sum this up.\n\n> we should\n> buy it", references="<1@elsewhere>")
    assert "> we should" in read_message(asked, header(references="<1@elsewhere>"), len(asked), 0)[0].text
    answered, _ = read_message(asked, header(references=OURS), len(asked), 0)
    assert answered.text == "Please sum this up."


@pytest.mark.parametrize(
    ("fields", "text", "said"),
    [
        ({"subject": "Sums"}, "6 * 7?", "Sums\n\n6 * 7?"),
        ({"subject": "6 * 7?"}, "", "6 * 7?"),
        ({"subject": "Sums"}, "/new", "/new"),
        ({"subject": "Re: Sums", "references": OURS}, "and 8?", "and 8?"),
    ],
)
def test_the_subject_belongs_to_the_first_mail_of_a_thread(fields: dict[str, str], text: str, said: str) -> None:
    content = mail(text, **fields)
    assert read_message(content, header(**fields), len(content), 0)[0].text == said


def test_html_becomes_text_with_what_it_quotes_behind_marks() -> None:
    html = (
        "<html><head><style>a{}</style></head><body><!-- <p>hidden</p> --><p>Hello\n <b>you</b>,</p>"
        "<ul><li>one<li>two</ul>"
        "<pre>def f():\n    x</pre><a href='https://a.b/c'>link</a> 1 < 2<br>line<script>alert()</script>"
        "<div>On 3.11.2025 Bot &lt;bot@example.org&gt; wrote:<blockquote><p>quoted</p>more</blockquote></div>"
    )
    text = text_of_html(html)
    assert text == (
        "Hello you,\n- one\n- two\ndef f():\n    x\nlink (https://a.b/c) 1 < 2\nline\n"
        "On 3.11.2025 Bot <bot@example.org> wrote:\n> quoted\n> more"
    )


@pytest.mark.parametrize("piece", ["<a ", "<!--", "<div>", "<a x='", "<![CDATA[", "<blockquote>", "&#", "<script>"])
def test_hostile_html_takes_no_longer_than_it_is_long(piece: str) -> None:
    html = piece * (262_144 // len(piece))  # hours, where each tag is sought to the end of the text
    assert len(text_of_html(html)) <= len(html)


def multipart(kind: str, *parts: tuple[str, str | bytes]) -> EmailMessage:
    made = EmailMessage()
    made["From"] = ALICE
    made.add_header("Content-Type", f"multipart/{kind}")
    for content_type, content in parts:
        part = EmailMessage()
        main, _, sub = content_type.partition("/")
        if isinstance(content, bytes):
            part.set_content(content, main, sub, filename=f"a.{sub}")
        else:
            part.set_content(content, subtype=sub)
        made.attach(part)
    return made


def test_of_alternatives_the_plain_text_is_read_with_all_that_stands_beside_it() -> None:
    made = multipart("alternative", ("text/plain", "plain\n"), ("text/html", "<b>html</b>"), ("image/jpeg", PNG))
    content = made.as_bytes()
    said, _ = read_message(content, Mail(ALICE, "<1@x>"), len(content), len(PNG))
    assert said.content == (TextPart("plain"), ImagePart("image/png", base64.b64encode(PNG).decode()))


def test_what_no_model_takes_is_named() -> None:
    made = multipart(
        "mixed",
        ("text/plain", "see\n"),
        ("application/pdf", b"%PDF"),
        ("image/gif", PNG),
        ("image/png", b"none"),
        ("application/pgp-signature", b""),
    )
    content = made.as_bytes()
    said, missed = read_message(content, Mail(ALICE, "<1@x>"), len(content), len(PNG) - 1)
    assert [one.what for one in missed] == ["a file (a.pdf)", "a picture (a.gif)", "a picture (a.png)"]
    assert said.content == "\n".join([*(one.to_model for one in missed), "see"])


def test_a_pdf_a_sound_and_a_text_are_kept_as_far_as_there_is_room() -> None:
    pdf = b"%PDF-1.7 " + bytes(90)
    made = multipart("mixed", ("text/plain", "see\n"), ("application/pdf", pdf), ("audio/ogg", b"OggS" + bytes(99)))
    content = made.as_bytes()
    said, missed = read_message(content, Mail(ALICE, "<1@x>"), len(content), 0, 150)
    assert not isinstance(said.content, str)
    (kept,) = filter(None, map(attached, said.content))
    assert (kept.name, kept.media_type, kept.is_optional) == ("a.pdf", "application/pdf", True)
    assert base64.b64decode(kept.data) == pdf
    assert [one.what for one in missed] == ["an audio file (a.ogg)"]


@pytest.mark.parametrize("charset", ["no-such-charset", "hex", "idna", "utf-16", "undefined"])
def test_a_text_in_a_charset_that_is_none_is_read_as_far_as_it_goes(charset: str) -> None:
    content = mail("x").replace(b"utf-8", charset.encode()).replace(b"\r\nx", b"\r\nh\xe9llo")
    assert isinstance(read_message(content, header(), len(content), 0)[0].text, str)


@given(st.binary(max_size=400), st.integers(0, 600))
def test_whatever_stands_in_a_mail_is_read_or_refused(noise: bytes, place: int) -> None:
    whole = multipart("mixed", ("text/plain", "text\n"), ("image/png", b"png")).as_bytes()
    damaged = whole[:place] + noise + whole[place + len(noise) // 2 :]
    try:
        read = read_header(damaged, BOT)
        said, _ = read_message(
            damaged, read if isinstance(read, Mail) else Mail(ALICE, "<1@x>"), len(damaged) + 1, 1000
        )
    except (LookupError, ValueError, TypeError, AttributeError):
        return  # what the channel expects of the library's parser
    said.text.encode()
    assert isinstance(read, str) or read.chat_id.startswith(read.sender)


# --- the answer ------------------------------------------------------------------------------------------------------


def sent(answer: EmailMessage) -> EmailMessage:
    received = message_from_bytes(answer.as_bytes(), policy=policy.default)
    assert isinstance(received, EmailMessage)
    return received


def test_a_very_long_answer_is_sent_as_it_is() -> None:
    said = Message.assistant("[" * 200_000)
    answer = sent(answer_to(Mail(ALICE, "<1@x>"), BOT, said.text, NOW, said))
    assert answer.get_content_type() == "text/plain"


def test_an_answer_to_a_long_thread_keeps_its_oldest_and_newest_ids_whole() -> None:
    long = tuple(f"<{number}{'x' * 80}@eurprd04.prod.outlook.com>" for number in range(30))
    asked = Mail(ALICE, f"<{'y' * 90}@x>", "Grüße\tan alle " * 10, long)
    answer = answer_to(asked, BOT, "ja", NOW)
    raw = answer.as_bytes().split(b"\r\n")
    references = str(sent(answer)["references"]).split()
    assert references[0] == long[0]
    assert references[-2:] == [long[-1], asked.message_id]
    assert all(one in {*long, asked.message_id} for one in references)
    assert max(map(len, raw)) < 998
    assert sent(answer)["in-reply-to"] == asked.message_id


def test_an_answer_is_text_and_the_same_as_html_that_fetches_nothing() -> None:
    text = "**bold** é ![x](https://tracker/x.png) <script>alert()</script>"
    answer = sent(answer_to(header(), BOT, text, NOW, Message.assistant(text)))
    plain, html = (answer.get_body((kind,)) for kind in ("plain", "html"))
    assert plain is not None
    assert html is not None
    assert plain.get_content().strip() == text
    assert "<strong>bold</strong>" in html.get_content()
    assert "<img" not in html.get_content()
    assert "<script" not in html.get_content()


def test_what_is_not_the_models_is_shown_to_the_letter() -> None:
    question = "May I run [this](https://elsewhere)? *yes* or no"
    answer = sent(answer_to(header(), BOT, question, NOW))
    assert answer.get_content_type() == "text/plain"
    assert answer.get_content().strip() == question


def test_an_answer_says_that_a_program_made_it_and_is_itself_not_answered() -> None:
    answer = answer_to(header(), BOT, "yes", NOW)
    assert answer["auto-submitted"] == "auto-replied"
    assert read_header(answer.as_bytes(), ALICE) == "a program sent it (Auto-Submitted)"
