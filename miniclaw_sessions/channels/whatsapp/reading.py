"""What Meta posts about a WhatsApp number: the messages of people, and what became of the bot's own."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

import msgspec

from miniclaw_sessions.channels.commands import command_in
from miniclaw_sessions.channels.unseen import Kind, Unseen, unseen
from miniclaw_sessions.core.protocol.messages import Message

T = TypeVar("T")

_MAX_NAME = 100
_MAX_CONTACTS = 10
_KINDS: dict[str, Kind] = {
    "audio": "audio",
    "document": "file",
    "image": "picture",
    "sticker": "sticker",
    "video": "video",
}
"""What is sent beside text, by Meta's names."""

_PASSED_OVER = frozenset({"reaction", "revoke", "system"})
"""What is no message: an answer to each thumb would cost, and a call that waits for a yes would be given up for it."""


# --- what Meta posts -------------------------------------------------------------------------------------------------


class Media(msgspec.Struct):
    """A file that a person has sent, by its id."""

    id: str
    mime_type: str = ""
    sha256: str = ""
    filename: str = ""
    caption: str = ""
    voice: bool = False
    animated: bool = False


class _Context(msgspec.Struct):
    """What a message answers; `by` has sent that."""

    id: str = ""
    by: str = msgspec.field(name="from", default="")


class _Words(msgspec.Struct):
    body: str


class _Pressed(msgspec.Struct):
    """A button: `id` is as it was sent, `title` what stands on it."""

    id: str = ""
    title: str = ""


class _Interactive(msgspec.Struct):
    type: str
    button_reply: _Pressed | None = None
    list_reply: _Pressed | None = None


class _TemplateButton(msgspec.Struct):
    text: str


class _Place(msgspec.Struct):
    latitude: float | str
    longitude: float | str
    name: str = ""
    address: str = ""


class _ContactName(msgspec.Struct):
    formatted_name: str = ""


class _Phone(msgspec.Struct):
    phone: str = ""


class _Contact(msgspec.Struct):
    name: _ContactName = msgspec.field(default_factory=_ContactName)
    phones: list[_Phone] = []


class Said(msgspec.Struct, kw_only=True):
    """A message, as Meta posts it. `by` is the person's number, `user_id` the id that Meta gives a person beside it.

    People who hide their number behind a user name have only that id. `name` is what they call themselves.
    """

    id: str = ""  # a new wording has none
    type: str = ""
    by: str = msgspec.field(name="from", default="")
    user_id: str = msgspec.field(name="from_user_id", default="")
    name: str = ""
    group_id: str = ""
    context: _Context | None = None
    text: _Words | None = None
    image: Media | None = None
    audio: Media | None = None
    document: Media | None = None
    sticker: Media | None = None
    location: _Place | None = None
    contacts: list[_Contact] = []
    interactive: _Interactive | None = None
    button: _TemplateButton | None = None
    edit: _Edit | None = None

    @property
    def person(self) -> str:
        """The person's number, else their id."""
        return self.by or self.user_id

    @property
    def chat_id(self) -> str:
        """The chat: a group, else that of the person."""
        return self.group_id or self.person

    @property
    def wording(self) -> Said:
        """What it says: itself, or the new wording that it gives an earlier message."""
        return self if self.edit is None else self.edit.message

    @property
    def is_message(self) -> bool:
        """Whether something is said: a reaction, or that a message was deleted, is passed over."""
        return bool(self.id and self.person) and self.type not in _PASSED_OVER

    @property
    def pressed(self) -> str:
        """The id of the button that was pressed; empty: none was."""
        reply = None if self.interactive is None else self.interactive.button_reply
        return "" if reply is None else reply.id

    @property
    def media(self) -> Media | None:
        """Its file, of a kind that may be kept; services refuse pictures that move."""
        still = self.sticker if self.sticker is not None and not self.sticker.animated else None
        return self.image or self.audio or self.document or still


class _Edit(msgspec.Struct):
    original_message_id: str
    message: Said


class _Fault(msgspec.Struct):
    code: int


class Status(msgspec.Struct):
    """What became of a message that was sent: `sent`, `delivered`, `read`, `failed`."""

    id: str
    status: str
    errors: list[_Fault] = []

    @property
    def code(self) -> int:
        """Meta's code of why it failed; 0: it gives none."""
        return self.errors[0].code if self.errors else 0


class _Number(msgspec.Struct):
    phone_number_id: str


class _Profile(msgspec.Struct):
    name: str = ""


class _Sender(msgspec.Struct):
    wa_id: str = ""
    user_id: str = ""
    profile: _Profile = msgspec.field(default_factory=_Profile)


class Value(msgspec.Struct):
    """What is new of one number. Each message and status is read by itself: one that is damaged costs no other."""

    metadata: _Number
    messages: list[dict[str, Any]] = []
    statuses: list[dict[str, Any]] = []
    contacts: list[_Sender] = []

    def read(self, fields: Mapping[str, Any]) -> Said | None:
        """One of the messages, with all that is known of its sender; None: it is of no shape that is known here."""
        said = read(fields, Said)
        if said is None:
            return None
        ids = {said.by, said.user_id} - {""}
        others = [one for one in self.contacts if not ids or not ids.isdisjoint({one.wa_id, one.user_id})]
        if len(others) != 1:
            return said
        (sender,) = others
        by, user_id = said.by or sender.wa_id, said.user_id or sender.user_id
        return msgspec.structs.replace(said, by=by, user_id=user_id, name=sender.profile.name)


def values_for(phone_number_id: str, body: bytes) -> Iterator[Value]:
    """What a payload says of a number, in its order; what it says of others, or of templates and such, is left out.

    Raises:
        ValueError: it is no payload.
    """
    payload = msgspec.json.decode(body, type=dict[str, Any])
    for change in (change for entry in _tables(payload, "entry") for change in _tables(entry, "changes")):
        if change.get("field") == "messages":
            value = msgspec.convert(change.get("value"), Value, strict=False)
            if value.metadata.phone_number_id == phone_number_id:
                yield value


def _tables(table: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    return msgspec.convert(table.get(name, []), list[dict[str, Any]])


def read(fields: Mapping[str, Any], kind: type[T]) -> T | None:
    """A message or a status; None: it is none that is known here."""
    try:
        return msgspec.convert(fields, kind, strict=False)
    except msgspec.ValidationError:
        return None


# --- what it says ----------------------------------------------------------------------------------------------------


def text_of(said: Said, number: str) -> str:
    """The words of a message, without the bot's number at their beginning; of what is no text, what it is about.

    Args:
        said: the message.
        number: the bot's, in digits.
    """
    match said:
        case Said(text=_Words(body=body)):
            return re.sub(rf"^\s*@\+?{number}\b[,:]?\s*", "", body)
        case Said(interactive=_Interactive() as interactive):
            pressed = interactive.button_reply or interactive.list_reply
            return "" if pressed is None else pressed.title
        case Said(button=_TemplateButton(text=text)):
            return text
        case Said(location=_Place() as place):
            where = ", ".join(
                _short(str(one)) for one in (place.name, place.address, place.latitude, place.longitude) if one
            )
            return f"(The person sent a place on a map: {where}.)"
        case Said(contacts=[_, *_] as contacts):
            return f"(The person sent contacts: {'; '.join(map(_described, contacts[:_MAX_CONTACTS]))}.)"
    return "" if said.media is None else said.media.caption


def _described(contact: _Contact) -> str:
    return _short(", ".join([contact.name.formatted_name, *(one.phone for one in contact.phones)]))


def _short(text: str) -> str:
    return " ".join(text.split())[:_MAX_NAME]


def unseen_in(said: Said) -> Unseen:
    """What a message holds that reaches no model."""
    media = said.media
    if media is not None and media.voice:
        return unseen("voice message")
    return unseen(_KINDS.get(said.type, "something"), "" if media is None else media.filename)


def name_of(media: Media) -> str:
    """What a file is called; only a document has a name of its own."""
    kind = media.mime_type.partition(";")[0].rpartition("/")[2].strip()
    return media.filename or ("voice.ogg" if media.voice else f"file.{kind or 'bin'}")


def is_addressed(said: Said, number: str) -> bool:
    """Whether the bot is spoken to: alone, by its number, in reply to it, or by a command.

    Args:
        said: what was said.
        number: the bot's, in digits.
    """
    if not said.group_id:
        return True
    wording, context = said.wording, said.context or said.wording.context
    text = wording.text.body if wording.text is not None else wording.media.caption if wording.media is not None else ""
    answers = context is not None and digits(context.by) == number
    return answers or bool(re.search(rf"@\+?{number}\b", text)) or command_in(Message.user(text)) is not None


def digits(number: str) -> str:
    """A telephone number as Meta writes it; any other id stays as it is."""
    is_number = re.fullmatch(r"\s*\+?[\d\s()./-]+", number)
    return re.sub(r"\D", "", number) if is_number else number.strip()
