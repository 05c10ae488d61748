"""One mail, as values: who sent it, whether anybody answers it, what it says, and the answer to it.

A chat is one thread of one sender. A thread, because mails of another subject are another conversation; of one sender,
because every sender can write the `References` of another person's thread into a mail, and would read it.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterator, Sequence
from datetime import datetime
from email import message_from_bytes, policy
from email.headerregistry import AddressHeader
from email.message import EmailMessage, MIMEPart
from email.policy import EmailPolicy
from email.utils import format_datetime
from functools import lru_cache
from itertools import count
from typing import TYPE_CHECKING, Any, cast

import msgspec

from miniclaw_sessions.channels.email.text import text_of_html, unquoted, unsigned
from miniclaw_sessions.channels.markdown import html_of, images_in
from miniclaw_sessions.channels.unseen import Unseen, file_in, kind_of, unseen, with_unseen
from miniclaw_sessions.core.protocol.images import IMAGE_TYPES, image_of
from miniclaw_sessions.core.protocol.messages import Message, Part, TextPart

if TYPE_CHECKING:
    from email.policy import Policy

MAX_HEADER_BYTES = 65_536
_MAX_FIELD = 1_024  # characters of a field that is more than text: to read that takes as long as their square
_MAX_PARTS = 100  # each takes that time again
_MAX_DEPTH = 10  # of parts within parts: each line is compared with the boundary of each that is open
_MAX_TEXT_BYTES = 262_144
_MAX_HTML = 50_000  # characters of an answer that is HTML, too: to make that takes more than in proportion to them
_MAX_REFERENCES = 800  # characters; with the oldest id and the newest ones, as RFC 5322 allows
_MAX_ID = 250
_NESTED_COMMENTS = 5
_QUOTED = re.compile(r'"(?:[^"\\]|\\.?)*+(?:"|\Z)', re.DOTALL)  # also without an end, or each quote begins another try
_ID = re.compile(r"<[!-;=?-~]{1,250}>")  # what RFC 5322 has in an id, and more
_OURS = re.compile(r"<mc\.([0-9a-f]{16})\.[0-9a-f]{16}@")
_FORMAT = policy.SMTP.clone(max_line_length=990, cte_type="7bit")  # shorter lines would encode, and break, long ids

_MORE_THAN_TEXT = {"from", "message-id", "content-type", "content-disposition", "content-transfer-encoding"}
"""The fields that are read here and that the library parses by a grammar of their own."""

_SIGNATURES = {"application/pgp-signature", "application/pkcs7-signature", "application/x-pkcs7-signature"}
"""What programs attach, and no person has sent."""


class Mail(msgspec.Struct, frozen=True):
    """What is known of a mail by its header.

    Attributes:
        sender: the address in From, in lower case.
        message_id: its Message-ID; without one, a digest of its header.
        subject: its subject, in one line.
        references: the ids of the mails that it follows, the oldest first.
        is_addressed: whether it was sent to us, and not only copied to us; or it answers us.
    """

    sender: str
    message_id: str
    subject: str = ""
    references: tuple[str, ...] = ()
    is_addressed: bool = True

    @property
    def thread(self) -> str:
        """Which thread it is of: the ids of our answers name it, else it is named by its oldest mail."""
        ours = next((found[1] for one in reversed(self.references) if (found := _OURS.match(one))), None)
        return ours or _digest(self.references[0] if self.references else self.message_id)

    @property
    def chat_id(self) -> str:
        """The sender and the thread."""
        return f"{self.sender},{self.thread}"

    @property
    def follows_ours(self) -> bool:
        """Whether it is in a thread in which we have answered."""
        return any(map(_OURS.match, self.references))


def is_message_id(text: str) -> bool:
    """Whether it is the id of a mail, or what `read_header` takes for it."""
    return _ID.fullmatch(text) is not None


def read_header(data: bytes, address: str) -> Mail | str:
    """A mail's header, or the reason why it is not answered.

    Args:
        data: the header's bytes, or the whole mail's.
        address: our own address.
    """
    header = _parsed(data)
    is_one = [len(value) <= _MAX_FIELD for value in _unparsed(header, "from")] == [True]
    field = header["from"] if is_one else None
    senders = field.addresses if isinstance(field, AddressHeader) else ()
    if len(senders) != 1 or not (sender := senders[0].addr_spec.lower()).isascii() or "@" not in sender:
        return "its From is not one address"
    if sender == address.lower():
        return "it is our own"
    if (automatic := _made_by_a_program(header)) is not None:
        return automatic
    answered = [*_ID.findall(str(header.get("references", ""))), *_ID.findall(str(header.get("in-reply-to", "")))]
    ids = _ID.findall(str(header.get("message-id", "")))
    mail = Mail(
        sender=sender,
        message_id=ids[0] if ids else f"<{_digest(data)}@without.invalid>",
        subject=" ".join(_valid(str(header.get("subject", ""))).split())[:_MAX_ID],
        references=tuple(dict.fromkeys(answered)),
    )
    copied = _has_address(header, "cc", address) and not _has_address(header, "to", address)
    return msgspec.structs.replace(mail, is_addressed=not copied or mail.follows_ours)


@lru_cache(maxsize=256)
def _field(name: str, value: str) -> Any:
    """A field with a grammar; it is asked for many times."""
    return policy.default.header_fetch_parse(name, value)


class _Reading(EmailPolicy):
    """Reads of a field with a grammar only its beginning."""

    def header_fetch_parse(self, name: str, value: str) -> Any:
        if name.lower() in _MORE_THAN_TEXT:
            return _field(name, value[:_MAX_FIELD])
        return super().header_fetch_parse(name, value)


class _Part(EmailMessage):
    """A mail, or a part of one."""

    depth = 0

    def attach(self, payload: Any) -> None:
        """Take in a part. Raises ValueError where it lies too deep."""
        payload.depth = self.depth + 1
        if payload.depth > _MAX_DEPTH:
            raise ValueError("the parts of a mail are nested too deeply")
        super().attach(payload)


_READING = cast("EmailPolicy[EmailMessage]", _Reading())


def _parsed(data: bytes) -> EmailMessage:
    """A stranger's mail, read in a time that is in proportion to its length.

    Raises:
        ValueError: it has too many parts, or too many within each other.
    """
    number = count()

    def part(policy: Policy[EmailMessage]) -> EmailMessage:
        if next(number) > _MAX_PARTS:
            raise ValueError("a mail has too many parts")
        return _Part(policy)

    return message_from_bytes(data, policy=_READING.clone(message_factory=part))


def _unparsed(header: EmailMessage, name: str) -> list[str]:
    return [str(value) for field, value in header.raw_items() if field.lower() == name]


def _has_address(header: EmailMessage, name: str, address: str) -> bool:
    """Whether a field of addresses has one; it may be too long to be parsed."""
    form = re.compile(rf"(?<![^\s<,:]){re.escape(address)}(?![^\s>,;(])", re.IGNORECASE)
    return any(map(form.search, _unparsed(header, name)))


def _made_by_a_program(header: EmailMessage) -> str | None:
    """Why a mail is one that must not be answered, lest two programs write to each other for ever (RFC 3834)."""

    def value(name: str) -> str:
        return str(header.get(name, "")).partition(";")[0].strip().lower()

    if value("auto-submitted") not in {"", "no"}:
        return "a program sent it (Auto-Submitted)"
    if value("precedence") in {"bulk", "junk", "list", "auto_reply"} or "list-id" in header:
        return "it went to many (Precedence or List-Id)"
    if value("return-path") == "<>" or value("content-type") in {"multipart/report", "message/delivery-status"}:
        return "it reports on the delivery of a mail"
    if "x-autoreply" in header or {"all", "autoreply"} & set(re.split(r"[\s,]+", value("x-auto-response-suppress"))):
        return "it wants no automatic answer (X-Auto-Response-Suppress)"
    return None


def is_authenticated(data: bytes, server: str) -> bool:
    """Whether our own mail server found that the address in From is the sender's: DMARC passed.

    Only what this server says counts: the topmost `Authentication-Results` (RFC 8601) that begins with its name and
    speaks of DMARC. It must remove those that came from outside under its name, as the RFC demands.
    """
    for field in _unparsed(_parsed(data), "authentication-results"):  # encoded words in it are a sender's own
        plain = _QUOTED.sub("", field)
        for _ in range(_NESTED_COMMENTS):
            plain = re.sub(r"\([^()]*\)", " ", plain)
        if field.partition(";")[0].split()[:1] == [server]:  # as it writes it: nothing quoted stands before it
            results = plain.split(";")[1:]
            found = [match[1] for one in results if (match := re.match(r"\s*dmarc\s*=\s*(\w+)", one, re.IGNORECASE))]
            if found:
                return [one.lower() for one in found] == ["pass"]
    return False


def read_message(
    data: bytes, mail: Mail, size: int, max_image_bytes: int, max_file_bytes: int = 0
) -> tuple[Message, Sequence[Unseen]]:
    """What a mail says, as the user's message; and what no model sees of it.

    Args:
        data: the mail, or its beginning.
        mail: its header.
        size: how many bytes the whole mail has.
        max_image_bytes: how large its images may be together; the others are only named.
        max_file_bytes: how large its other files may be together; by default all are only named.
    """
    leaves = list(_leaves(_parsed(data)))
    is_cut = size > len(data)
    texts, files, missed, room, text_room = list[str](), list[Part](), list[Unseen](), max_image_bytes, _MAX_TEXT_BYTES
    for leaf in leaves:
        kind, name = leaf.get_content_type(), leaf.get_filename()
        if kind in _SIGNATURES:
            continue
        if kind in {"text/plain", "text/html"} and leaf.get_content_disposition() != "attachment":
            text = _text(leaf)[:text_room]
            text_room -= len(text)
            texts.append(text_of_html(text) if kind == "text/html" else text)
            continue
        content = b"" if is_cut and leaf is leaves[-1] else leaf.get_payload(decode=True)
        content = content if isinstance(content, bytes) else b""
        called = _valid(" ".join((name or kind).split()))[:_MAX_ID]
        if len(content) <= room and kind in IMAGE_TYPES and (image := image_of(content)) is not None:
            files.append(image)
            room -= len(content)
        elif (file := None if kind in IMAGE_TYPES else file_in(called, content, max_file_bytes)) is not None:
            files.append(file)
            max_file_bytes -= len(content)
        else:
            missed.append(unseen(kind_of(kind), called))
    written = unsigned("\n".join(filter(None, texts)).replace("\r\n", "\n"))
    if mail.follows_ours:
        written = unquoted(written)
    elif mail.subject and not written.startswith("/"):
        written = f"{mail.subject}\n\n{written}".strip()
    note = f"(the mail was too large, with {size} bytes; this is its beginning)" if is_cut else ""
    text = with_unseen(missed, "\n\n".join(filter(None, [written, note])))
    said = Message.user((TextPart(text), *files) if files and text else tuple(files) or text)
    return msgspec.structs.replace(said, author=mail.sender), missed


def _leaves(part: MIMEPart) -> Iterator[MIMEPart]:
    """The parts that are shown: of alternatives the plain text, and all other parts."""
    if not part.is_multipart() or part.get_content_maintype() == "message":
        yield part
        return
    leaves = [leaf for inner in part.iter_parts() for leaf in _leaves(inner)]
    is_plain = part.get_content_subtype() == "alternative" and any(
        leaf.get_content_type() == "text/plain" and _text(leaf).strip() for leaf in leaves
    )
    yield from (leaf for leaf in leaves if not (is_plain and leaf.get_content_type() == "text/html"))


def _text(leaf: MIMEPart) -> str:
    content = leaf.get_payload(decode=True)
    content = content[:_MAX_TEXT_BYTES] if isinstance(content, bytes) else b""
    try:
        return _valid(content.decode(leaf.get_content_charset("utf-8"), "replace"))
    except (LookupError, ValueError):  # no such charset, or none that is text
        return content.decode("utf-8", "replace")


def _valid(text: str) -> str:
    """The text without what is no Unicode, as a header with bytes of no charset has it."""
    return text.encode("utf-8", "replace").decode().replace("\0", "")


def answer_to(  # noqa: PLR0913 - what a mail is made of
    mail: Mail, address: str, text: str, now: datetime, said: Message | None = None, *, key: str = "", thread: str = ""
) -> EmailMessage:
    """The answer to a mail: in its thread, and marked so that no other program answers it.

    Its id is made of the mail's, so that an answer that is sent twice is seen to be the same.

    Args:
        mail: what is answered.
        address: our own.
        text: the text to send.
        now: when.
        said: the model's message, if the text is from it: its text is HTML too, unless it is very long, and its images
            are attached.
        key: of what is no answer, but follows the mail, such as a reminder: then its id is made of this.
        thread: which one it is, where the mail does not say it.
    """
    answer = EmailMessage(_FORMAT)
    answer["From"], answer["To"] = address, mail.sender
    answer["Subject"] = mail.subject if re.match(r"(?i)re\s*:", mail.subject) else f"Re: {mail.subject}".strip()
    answer["Date"] = format_datetime(now)
    made_of = _digest(key or mail.message_id)
    answer["Message-ID"] = f"<mc.{thread or mail.thread}.{made_of}@{address.rpartition('@')[2]}>"
    answer["In-Reply-To"] = mail.message_id
    references = [*mail.references, mail.message_id]
    while len(references) > 1 and sum(map(len, references)) > _MAX_REFERENCES:
        del references[1]  # the oldest one names the thread for other programs
    answer["References"] = " ".join(references)
    answer["Auto-Submitted"] = "auto-generated" if key else "auto-replied"
    answer.set_content(text)
    if said is not None and len(text) <= _MAX_HTML:
        answer.add_alternative(html_of(text), subtype="html")
    for number, image in enumerate(images_in(said), 1):
        kind = image.media_type.partition("/")[2] or "png"
        content = base64.b64decode(image.data or "")
        answer.add_attachment(content, maintype="image", subtype=kind, filename=f"image{number}.{kind}")
    return answer


def _digest(text: str | bytes) -> str:
    return hashlib.sha256(text.encode() if isinstance(text, str) else text).hexdigest()[:16]
