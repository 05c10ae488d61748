"""The daemon answers mail, and is killed again and again: nothing that was written to it is lost."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from miniclaw_sessions import SessionManager
from tests.channels.daemon import killed_at_the_end
from tests.channels.imap_server import LocalMailbox
from tests.channels.post import ALICE, BOT, Outbox, body, mail
from tests.channels.test_email import all_read
from tests.channels.test_email import pytestmark as marks

pytestmark = [pytest.mark.proof, *marks]

MAILS, KILLS = (int(number) for number in os.environ.get("MINICLAW_TEST_MAILS_KILLS", "12,2").split(","))


async def test_every_mail_is_answered_through_kill_9(tmp_path: Path) -> None:
    mailbox = LocalMailbox()
    outbox = Outbox(mailbox.password)
    for number in range(MAILS):
        await mailbox.deliver(mail(f"{number} * 2", f"{number}@alice"))
    async with mailbox.serve(), outbox.serve():
        environment = {
            "EMAIL_PASSWORD": mailbox.password,
            "MINICLAW_CHANNELS_EMAIL_ADDRESS": BOT,
            "MINICLAW_CHANNELS_EMAIL_ALLOW": ALICE,
            "MINICLAW_CHANNELS_EMAIL_IMAP_HOST": "127.0.0.1",
            "MINICLAW_CHANNELS_EMAIL_IMAP_PORT": str(mailbox.port),
            "MINICLAW_CHANNELS_EMAIL_IMAP_SECURITY": "none",
            "MINICLAW_CHANNELS_EMAIL_SMTP_PORT": str(outbox.port),
            "MINICLAW_CHANNELS_EMAIL_SMTP_SECURITY": "none",
            "MINICLAW_CHANNELS_EMAIL_MAX_PER_HOUR": "1000",
        }
        for kill in range(1, KILLS + 1):
            async with killed_at_the_end("email", tmp_path, environment):
                await outbox.answers(kill * MAILS // (KILLS + 1))
        async with killed_at_the_end("email", tmp_path, environment):
            await all_read(mailbox)
    answers = {str(one["in-reply-to"]): body(one) for one in outbox.sent}
    assert answers.keys() == {f"<{number}@alice>" for number in range(MAILS)}
    assert all(answer.startswith("(offline) ") for answer in answers.values())  # a call may have been cut off
    assert len({str(one["message-id"]) for one in outbox.sent}) == MAILS  # what went out twice is the same mail
    async with SessionManager(tmp_path / "workspace") as manager:
        for answer in outbox.sent:
            session = await manager.find(f"email_{ALICE},{answer['message-id'].split('.')[1]}")
            assert len(session.messages()) == 4, "the question, the call, its result, the answer"
