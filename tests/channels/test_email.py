"""The channel `email` with its libraries, between a mailbox and an SMTP server that fail as networks fail."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime, timedelta
from email import message_from_bytes, policy
from email.message import EmailMessage
from pathlib import Path
from threading import current_thread

import anyio
import msgspec
import pytest
from structlog.testing import capture_logs

from miniclaw_sessions import Message, Session, SessionManager
from miniclaw_sessions.channels.email import mail as mail_module
from miniclaw_sessions.channels.email.channel import EmailChannel, EmailSettings
from miniclaw_sessions.channels.email.mail import Mail
from miniclaw_sessions.core.protocol.messages import ImagePart, TextPart
from miniclaw_sessions.errors import ConfigError, Unreachable
from miniclaw_sessions.files.transfer.forgetting import Selection, select_sessions
from tests.channels import contract
from tests.channels.dovecot import DovecotMailbox
from tests.channels.imap_server import LocalMailbox
from tests.channels.post import ALICE, BOB, BOT, Outbox, body, mail, reply
from tests.channels.rooms import PATIENCE_S, Doors

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.filterwarnings("ignore:Requiring AUTH while not requiring TLS:UserWarning"),  # the test's own server
    pytest.mark.filterwarnings("ignore:Session.login_data is deprecated:DeprecationWarning"),  # it uses that itself
]

PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


@pytest.fixture
async def mailbox() -> AsyncIterator[LocalMailbox]:
    made = LocalMailbox()
    async with made.serve():
        yield made


@pytest.fixture
async def outbox() -> AsyncIterator[Outbox]:
    made = Outbox(LocalMailbox.password)
    async with made.serve():
        yield made


@pytest.fixture
def settings(mailbox: LocalMailbox, outbox: Outbox, tmp_path: Path) -> EmailSettings:
    password = tmp_path / "password"
    password.write_text(LocalMailbox.password)
    password.chmod(0o600)
    return EmailSettings(
        address=BOT,
        password_file=str(password),
        imap_host="127.0.0.1",
        imap_port=mailbox.port,
        imap_security="none",
        smtp_port=outbox.port,
        smtp_security="none",
        allow=(ALICE,),
    )


def serving(manager: SessionManager, model: Doors, settings: EmailSettings) -> AbstractAsyncContextManager[object]:
    """The channel as the daemon serves it."""
    return contract.serving(EmailChannel("email", settings), manager, model)


async def chat_of(manager: SessionManager, answer: EmailMessage) -> Session:
    """The session that an answer is from: its id names the thread."""
    return await manager.find(f"email_{ALICE},{answer['message-id'].split('.')[1]}")


async def until(is_so: Callable[[], Awaitable[bool]]) -> None:
    """For what a server tells nobody."""
    with anyio.fail_after(PATIENCE_S):
        while not await is_so():  # noqa: ASYNC110 - there is no event
            await anyio.sleep(0.01)


async def looked_again(mailbox: LocalMailbox) -> None:
    """All mail that there is was looked at, and what was found out of it has had its time."""
    searches = mailbox.commands.count("UID SEARCH")
    await until(lambda: is_true(mailbox.commands.count("UID SEARCH") > searches + 3))


async def all_read(mailbox: LocalMailbox | DovecotMailbox, but: int = 0) -> None:
    """Return when all mail is marked as read, but for so much of it."""

    async def is_so() -> bool:
        return len(await mailbox.unread()) == but

    await until(is_so)


def with_image(text: str, message_id: str, content: bytes = PIXEL) -> bytes:
    made = message_from_bytes(mail(text, message_id), policy=policy.default)
    made.add_attachment(content, maintype="image", subtype="png", filename="pixel.png")
    return made.as_bytes(policy=policy.SMTP)


# --- a conversation --------------------------------------------------------------------------------------------------


async def test_a_mail_is_answered_in_its_thread_and_goes_on_there(
    manager: SessionManager, model: Doors, settings: EmailSettings, mailbox: LocalMailbox, outbox: Outbox
) -> None:
    async with serving(manager, model, settings):
        await mailbox.deliver(mail("6 * 7?", "1@alice", subject="Sums"))
        (first,) = await outbox.answers(1)
        await mailbox.deliver(reply(first, "and 6 * 8?", "2@alice"))
        _, second = await outbox.answers(2)
        await all_read(mailbox)
    assert (first["to"], first["from"], first["subject"]) == (ALICE, BOT, "Re: Sums")
    assert (first["in-reply-to"], first["references"]) == ("<1@alice>", "<1@alice>")
    assert first["auto-submitted"] == second["auto-submitted"] == "auto-replied"
    assert second["references"] == f"<1@alice> {first['message-id']} <2@alice>"
    assert [body(first), body(second)] == ["echo: Sums\n\n6 * 7?", "echo: and 6 * 8?"]
    (found,) = [one async for one in select_sessions(manager, Selection(user=ALICE))]
    assert (found.session_id, found.messages) == ((await chat_of(manager, first)).session_id, 2)
    said = [message.text for message in (await chat_of(manager, first)).messages()]
    assert said == ["Sums\n\n6 * 7?", body(first), "and 6 * 8?", body(second)]


async def test_a_reminder_is_a_mail_in_the_thread_whose_id_is_made_of_its_key(
    manager: SessionManager, model: Doors, settings: EmailSettings, mailbox: LocalMailbox, outbox: Outbox
) -> None:
    channel = EmailChannel("email", settings)
    async with contract.serving(channel, manager, model):
        await mailbox.deliver(mail("hello", "1@alice", subject="My plans"))
        (answer,) = await outbox.answers(1)
        await mailbox.deliver(reply(answer, "and then?", "2@alice"))
        await outbox.answers(2)
        await all_read(mailbox)
        chat_id = (await chat_of(manager, answer)).key.chat_id
        for key in ("reminder:1:t", "reminder:1:t", "reminder:2:t"):
            await channel.announce(chat_id, "Reminder: tea", key)
        mailbox.mails.clear()  # Alice's were deleted from our mailbox
        await channel.announce(chat_id, "Reminder: late", "reminder:3:t")
        _, _, first, again, other, last = outbox.sent
        assert first["in-reply-to"] == last["in-reply-to"] == "<2@alice>"
        assert first["references"].split() == ["<1@alice>", str(answer["message-id"]), "<2@alice>"]
        assert first["subject"] == "Re: My plans"
        assert first["auto-submitted"] == "auto-generated"
        assert first["message-id"] == again["message-id"] != other["message-id"]
        assert body(last) == "Reminder: late"
        await mailbox.deliver(reply(last, "thanks", "3@alice"))
        await outbox.answers(7)
    assert [one.text for one in (await chat_of(manager, answer)).messages()][-2:] == ["thanks", "echo: thanks"]


async def test_a_waiting_mail_is_found_at_the_start_and_a_new_one_is_told_of(
    manager: SessionManager, model: Doors, settings: EmailSettings, mailbox: LocalMailbox, outbox: Outbox
) -> None:
    await mailbox.deliver(mail("before", "1@alice"))
    async with serving(manager, model, settings):
        await outbox.answers(1)
        await mailbox.deliver(mail("after", "2@alice"))
        await outbox.answers(2)


async def test_a_server_without_idle_is_asked_again_and_again(
    manager: SessionManager, model: Doors, settings: EmailSettings, mailbox: LocalMailbox, outbox: Outbox
) -> None:
    mailbox.capabilities = "IMAP4rev1"
    async with serving(manager, model, msgspec.structs.replace(settings, poll_s=0.01)):
        await until(lambda: is_true("UID SEARCH" in mailbox.commands))
        await mailbox.deliver(mail())
        await outbox.answers(1)


async def is_true(value: bool) -> bool:
    return value


async def test_images_come_in_and_go_out_as_attachments(
    manager: SessionManager, model: Doors, settings: EmailSettings, mailbox: LocalMailbox, outbox: Outbox
) -> None:
    image = ImagePart("image/png", base64.b64encode(PIXEL).decode())
    model.replies["what is this?"] = Message.assistant((TextPart("this, larger"), image))
    async with serving(manager, model, settings):
        await mailbox.deliver(with_image("what is this?", "1@alice"))
        (answer,) = await outbox.answers(1)
    (attached,) = answer.iter_attachments()
    assert (attached.get_content_type(), attached.get_content()) == ("image/png", PIXEL)
    assert (await chat_of(manager, answer)).messages()[0].content == (TextPart("what is this?"), image)


# --- nothing is lost, nothing is answered twice ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        ("<html><title>Sign in</title>the secret plan", "a line without a code"),
        ("200 the secret plan", "code 200"),
        ("999 the secret plan", "code 999"),
        ("451 try again later", "code 451"),
        ("451 4.7.1 the secret plan", "code 451 4.7.1"),
    ],
)
async def test_an_answer_that_the_mail_server_does_not_confirm_leaves_its_mail_unread_and_is_sent_again(
    manager: SessionManager,
    model: Doors,
    settings: EmailSettings,
    mailbox: LocalMailbox,
    outbox: Outbox,
    *,
    reply: str,
    said: str,
) -> None:
    outbox.fails = reply
    with capture_logs() as logs:
        async with serving(manager, model, msgspec.structs.replace(settings, poll_s=0.01)):
            await mailbox.deliver(mail())
            await outbox.until(lambda: outbox.refused > 1)
            assert await mailbox.unread() == ["<1@alice>"]
            outbox.fails = ""
            await outbox.answers(1)
            await all_read(mailbox)
    assert (len(outbox.sent), model.asked) == (1, ["hello"])
    failures = {one["detail"] for one in logs if one["action"] == "channel.send_failed"}
    assert failures == {f"the server 127.0.0.1 for sending mail does not take an answer: {said}"}
    assert "the secret plan" not in str(logs)


async def test_an_answer_that_can_never_be_made_is_not_tried_again(
    manager: SessionManager, model: Doors, settings: EmailSettings, mailbox: LocalMailbox, outbox: Outbox
) -> None:
    model.replies["paint"] = Message.assistant((TextPart("here"), ImagePart("image/png", "AAA")))
    async with serving(manager, model, msgspec.structs.replace(settings, poll_s=0.01)):
        await mailbox.deliver(mail("paint"))
        await all_read(mailbox)
    assert outbox.sent == []


async def test_an_answer_that_is_refused_for_good_is_not_tried_again(
    manager: SessionManager, model: Doors, settings: EmailSettings, mailbox: LocalMailbox, outbox: Outbox
) -> None:
    outbox.fails = "554 we want none of this"
    with capture_logs() as logs:
        async with serving(manager, model, settings):
            await mailbox.deliver(mail())
            await all_read(mailbox)
    assert [one["code"] for one in logs if one["action"] == "mail.refused"] == [554]


async def test_a_mail_that_is_delivered_twice_is_answered_once(
    manager: SessionManager, model: Doors, settings: EmailSettings, mailbox: LocalMailbox, outbox: Outbox
) -> None:
    model.close("hello")
    async with serving(manager, model, msgspec.structs.replace(settings, poll_s=0.05)):
        await mailbox.deliver(mail())
        await model.was_asked("hello")
        await mailbox.deliver(mail())  # while its answer is under way
        await looked_again(mailbox)
        assert len(await mailbox.unread()) == 2, "who marks one as read would not know that the other has no answer"
        model.open("hello")
        await outbox.answers(1)
        await all_read(mailbox)
    await mailbox.deliver(mail())  # and after a restart
    async with serving(manager, model, settings):
        await all_read(mailbox)
    assert (len(outbox.sent), model.asked) == (1, ["hello"])


async def test_a_mail_that_somebody_marks_as_unread_is_given_the_same_answer(
    manager: SessionManager, model: Doors, settings: EmailSettings, mailbox: LocalMailbox, outbox: Outbox
) -> None:
    await mailbox.deliver(mail())
    for count in (1, 2):
        mailbox.mails[0].flags.clear()
        async with serving(manager, model, settings):
            await outbox.answers(count)
            await all_read(mailbox)
    first, second = outbox.sent
    assert first["message-id"] == second["message-id"]
    assert (body(first), model.asked) == (body(second), ["hello"])


async def test_what_could_not_be_marked_as_read_is_marked_later_and_not_answered_again(
    manager: SessionManager, model: Doors, settings: EmailSettings, mailbox: LocalMailbox, outbox: Outbox
) -> None:
    mailbox.refused = {"UID STORE"}
    async with serving(manager, model, msgspec.structs.replace(settings, poll_s=0.01)):
        await mailbox.deliver(mail())
        await until(lambda: is_true(mailbox.commands.count("UID STORE") > 1))
        mailbox.refused = set()
        await all_read(mailbox)
    assert len(outbox.sent) == 1


async def test_mails_that_are_numbered_anew_are_all_looked_at_again(
    manager: SessionManager, model: Doors, settings: EmailSettings, mailbox: LocalMailbox, outbox: Outbox
) -> None:
    async with serving(manager, model, settings):
        await mailbox.deliver(mail("stranger", **{"from": BOB}))
        await until(lambda: is_true("UID FETCH" in mailbox.commands))
        mailbox.mails.clear()
        mailbox.uid_validity = 2
        await mailbox.break_off()
        await mailbox.deliver(mail("known"))
        await outbox.answers(1)


async def test_a_mail_that_is_numbered_anew_while_its_answer_is_under_way_is_read_only_when_that_has_gone_out(
    manager: SessionManager, model: Doors, settings: EmailSettings, mailbox: LocalMailbox, outbox: Outbox
) -> None:
    model.close("slow")
    async with serving(manager, model, msgspec.structs.replace(settings, poll_s=0.05)):
        await mailbox.deliver(mail("slow"))
        await model.was_asked("slow")
        mailbox.mails.clear()
        mailbox.uid_validity = 2
        await mailbox.deliver(mail("unrelated", "0@bob", **{"from": BOB}))
        await mailbox.deliver(mail("slow"))
        await mailbox.break_off()
        await looked_again(mailbox)
        assert "<1@alice>" in await mailbox.unread()
        model.open("slow")
        await until(lambda: is_true("\\Seen" in mailbox.mails[1].flags))
    assert (len(outbox.sent), model.asked) == (1, ["slow"])


async def test_no_other_mail_becomes_read_where_mails_are_numbered_anew_while_an_answer_goes_out(
    manager: SessionManager, model: Doors, settings: EmailSettings, mailbox: LocalMailbox, outbox: Outbox
) -> None:
    outbox.is_reached = anyio.Event()
    async with serving(manager, model, msgspec.structs.replace(settings, poll_s=0.05)):
        await mailbox.deliver(mail("hello"))
        with anyio.fail_after(PATIENCE_S):
            await outbox.is_reached.wait()
        mailbox.mails.clear()
        mailbox.uid_validity = 2
        await mailbox.deliver(mail("unrelated", "0@bob", **{"from": BOB}))  # which has the number now
        await mailbox.break_off()
        await looked_again(mailbox)
        outbox.may_take.set()
        await until(lambda: is_true(len(outbox.sent) == 1))
        await looked_again(mailbox)
        await all_read(mailbox, but=1)
    assert await mailbox.unread() == ["<0@bob>"]


async def test_more_mails_than_fit_into_memory_wait_in_the_mailbox(
    manager: SessionManager, model: Doors, settings: EmailSettings, mailbox: LocalMailbox, outbox: Outbox
) -> None:
    texts = [f"hello {number}" for number in range(5)]
    model.close(*texts)
    for text in texts:
        await mailbox.deliver(mail(text, f"{text[-1]}@alice"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("miniclaw_sessions.channels.email.channel._IN_HAND", 2)
        async with serving(manager, model, settings):
            await model.was_asked(*texts[:2])
            for _ in range(1000):  # a third one would be read in a thread, too, and long before the last of these
                await anyio.to_thread.run_sync(int)
            assert model.asked == texts[:2]
            model.open(*texts)
            await outbox.answers(5)
            await all_read(mailbox)
    assert len({str(one["in-reply-to"]) for one in outbox.sent}) == len(outbox.sent) == 5


async def test_what_waits_in_one_thread_keeps_nobody_else_from_being_heard(
    manager: SessionManager, model: Doors, settings: EmailSettings, mailbox: LocalMailbox, outbox: Outbox
) -> None:
    model.close("slow")
    await mailbox.deliver(mail("slow", "0@alice"))
    for number in range(1, 5):
        await mailbox.deliver(mail(f"and {number}", f"{number}@alice", references="<0@alice>"))
    await mailbox.deliver(mail("another subject", "5@alice"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("miniclaw_sessions.channels.email.channel._IN_HAND", 2)
        async with serving(manager, model, settings):
            (answer,) = await outbox.answers(1)
            assert body(answer) == "echo: another subject"
            model.open("slow")
            await all_read(mailbox)
    assert len(outbox.sent) == 6


# --- who is answered -------------------------------------------------------------------------------------------------


async def test_a_stranger_a_program_and_ourselves_are_not_answered(
    manager: SessionManager, model: Doors, settings: EmailSettings, mailbox: LocalMailbox, outbox: Outbox
) -> None:
    for number, fields in enumerate([{"from": BOB}, {"auto_submitted": "auto-replied"}, {"from": BOT}]):
        await mailbox.deliver(mail("no answer", f"{number}@nobody", **fields))
    await mailbox.deliver(mail("answer"))
    async with serving(manager, model, settings):
        await outbox.answers(1)
        await all_read(mailbox, but=3)
    assert model.asked == ["answer"]
    assert len(await mailbox.unread()) == 3


async def test_no_header_is_read_while_everybody_else_waits(
    manager: SessionManager,
    model: Doors,
    settings: EmailSettings,
    mailbox: LocalMailbox,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read, threads = mail_module.read_header, []

    def noted(data: bytes, address: str) -> Mail | str:
        threads.append(current_thread())
        return read(data, address)

    monkeypatch.setattr(mail_module, "read_header", noted)
    async with serving(manager, model, settings):
        await mailbox.deliver(mail())
        await all_read(mailbox)
    assert len(threads) == 1
    assert current_thread() not in threads


async def test_only_mail_that_our_server_found_to_be_authentic_is_answered_where_that_is_set(
    manager: SessionManager, model: Doors, settings: EmailSettings, mailbox: LocalMailbox, outbox: Outbox
) -> None:
    await mailbox.deliver(mail("forged", "1@x", authentication_results="mx.example.org; dmarc=fail"))
    await mailbox.deliver(
        mail("true", "2@x", authentication_results="mx.example.org; dmarc=pass header.from=example.org")
    )
    async with serving(manager, model, msgspec.structs.replace(settings, authserv_id="mx.example.org")):
        await outbox.answers(1)
    assert model.asked == ["true"]


async def test_a_sender_has_a_bounded_number_of_answers_in_an_hour(
    manager: SessionManager, model: Doors, settings: EmailSettings, mailbox: LocalMailbox, outbox: Outbox
) -> None:
    for number in range(4):
        await mailbox.deliver(mail(f"loop {number}", f"{number}@alice"))
    with capture_logs() as logs:
        async with serving(manager, model, msgspec.structs.replace(settings, max_per_hour=2)):
            await outbox.answers(2)
            await until(lambda: is_true(sum(one["action"] == "mail.waits" for one in logs) >= 2))
            await all_read(mailbox, but=2)
    assert len(outbox.sent) == len(await mailbox.unread()) == 2


async def test_old_unread_mail_is_left_alone(
    manager: SessionManager, model: Doors, settings: EmailSettings, mailbox: LocalMailbox, outbox: Outbox
) -> None:
    await mailbox.deliver(mail("old", "1@alice"), received=datetime.now(UTC).date() - timedelta(days=9))
    await mailbox.deliver(mail("new", "2@alice"))
    async with serving(manager, model, settings):
        await outbox.answers(1)
    assert model.asked == ["new"]


# --- bad input -------------------------------------------------------------------------------------------------------


async def test_a_mail_that_is_too_large_is_read_in_part_and_answered(
    manager: SessionManager, model: Doors, settings: EmailSettings, mailbox: LocalMailbox, outbox: Outbox
) -> None:
    async with serving(manager, model, msgspec.structs.replace(settings, max_mail_bytes=2_000)):
        await mailbox.deliver(with_image("look", "1@alice", content=b"x" * 100_000))
        await outbox.answers(1)
    (asked,) = model.asked
    assert asked.startswith(
        "(The person sent a picture (pixel.png), which you cannot see.)\nlook\n\n(the mail was too large, with 13"
    )


async def test_malformed_mails_do_not_hold_up_the_others(
    manager: SessionManager, model: Doors, settings: EmailSettings, mailbox: LocalMailbox, outbox: Outbox
) -> None:
    start = f"From: {ALICE}\r\nTo: {BOT}\r\n".encode()
    for malformed in (
        b"",
        b"\r\n",
        b"\0\xff\r\n\r\n",
        b"From: <<>>\r\n\r\n",
        start + b"Content-Type: multipart/mixed\r\n\r\n--x",
    ):
        await mailbox.deliver(malformed)
    await mailbox.deliver(mail("well"))
    async with serving(manager, model, settings):
        await model.was_asked("well")
        await outbox.until(lambda: any(body(one) == "echo: well" for one in outbox.sent))


async def test_a_mail_that_the_server_refuses_holds_up_no_other_and_is_tried_again(
    manager: SessionManager, model: Doors, settings: EmailSettings, mailbox: LocalMailbox, outbox: Outbox
) -> None:
    mailbox.damaged = {1}
    await mailbox.deliver(mail("damaged", "1@alice"))
    with capture_logs() as logs:
        async with serving(manager, model, msgspec.structs.replace(settings, poll_s=0.05)):
            await mailbox.deliver(mail("hello", "2@alice"))
            await outbox.answers(1)
            mailbox.damaged = set()
            await outbox.answers(2)
    assert model.asked == ["hello", "damaged"]
    assert not [one for one in logs if one["action"] == "channel.failed"]


async def test_whatever_id_a_mail_has_it_is_answered_and_the_model_is_asked_once(
    manager: SessionManager, model: Doors, settings: EmailSettings, mailbox: LocalMailbox, outbox: Outbox
) -> None:
    ids = ["{GUID-1}@x", "a(b)@x", "a%b*@x", '"a b"@x', 'a\\b"c@x', "ü@x", "\x01@x"]
    async with serving(manager, model, settings):
        for _ in range(2):
            for message_id in ids:
                await mailbox.deliver(
                    mail(message_id, "").replace(b"From:", f"Message-ID: <{message_id}>\r\nFrom:".encode())
                )
            await all_read(mailbox)
    assert len({one["message-id"] for one in outbox.sent}) == len(model.asked) == len(ids)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"address": "bot"}, "channels.email.address is 'bot'"),
        ({"imap_host": ""}, "channels.email.imap_host is empty"),
        ({"imap_host": "mail.example.org"}, "imap_security is none: everybody on the way to mail.example.org"),
        ({"password_file": ""}, "EMAIL_PASSWORD"),
    ],
)
async def test_wrong_settings_are_a_clear_error(settings: EmailSettings, change: dict[str, str], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        EmailChannel("email", msgspec.structs.replace(settings, **change))


async def test_a_mailbox_takes_the_password_of_no_other(
    settings: EmailSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EMAIL_PASSWORD", "another one's")
    with pytest.raises(ConfigError, match="WORK_2_PASSWORD"):
        EmailChannel("work-2", msgspec.structs.replace(settings, password_file=""))


async def test_a_wrong_password_is_a_clear_error_on_either_server(
    settings: EmailSettings, mailbox: LocalMailbox, outbox: Outbox
) -> None:
    mailbox.password = "another"
    with pytest.raises(Unreachable, match=r"the mailbox INBOX on 127\.0\.0\.1: .*the password is wrong"):
        await anext(EmailChannel("email", settings).receive())
    outbox.password = "another"
    with pytest.raises(Unreachable, match=r"for sending mail: .*535"):
        await anext(EmailChannel("email", settings).receive())
