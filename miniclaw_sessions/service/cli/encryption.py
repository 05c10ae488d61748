"""Commands that encrypt a workspace, change its key, decrypt it, and show what is in an encrypted file."""

from __future__ import annotations

import codecs
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from miniclaw_sessions.errors import ConfigError
from miniclaw_sessions.printable import printable_json
from miniclaw_sessions.service.cli.invocation import Invocation, command
from miniclaw_sessions.service.cli.output import counted, one_line

if TYPE_CHECKING:
    from miniclaw_sessions.encryption import KeyRing

app = typer.Typer()


@command(
    app,
    talks=False,
    examples={
        "rekey --key-file key": "encrypts a workspace that is not, or changes its key to the first one in the file",
        "rekey --key-file key --decrypt": "turns encryption off",
    },
)
async def rekey(
    invocation: Invocation,
    decrypt: Annotated[bool, typer.Option("--decrypt", help="Leave nothing encrypted.")] = False,
) -> None:
    """Encrypt everything in the workspace with the first key, also what another key encrypted; or decrypt it.

    No other process may have the workspace open: stop the daemon first. If this is interrupted, run it again. It needs
    room on the disk for a second copy of the store, and old bytes may stay on it until their place is used again.
    """
    keys = _keys(invocation)
    from miniclaw_sessions.files.transfer.rekeying import Rekey  # noqa: PLC0415 - loads the persistence layer
    from miniclaw_sessions.service.cli.opening import refused  # noqa: PLC0415 - help does not need it

    loaded = invocation.local
    if loaded.shared_store is not None:
        raise ConfigError(
            "a store that several processes share is not rekeyed where it is, for others write it meanwhile: stop all "
            "gateways, `migrate` it into a workspace, `rekey` that, and `migrate` it into a new database; nothing was "
            "changed"
        )
    if (problem := refused(loaded, create=False)) is not None:
        raise problem
    workspace, settings = loaded.workspace.absolute(), loaded.settings.sessions
    done = await Rekey(workspace, settings, keys, decrypt=decrypt, on_progress=invocation.report).run()
    if invocation.as_json:
        invocation.print_json(msgspec.structs.asdict(done))
        return
    console = invocation.console
    for damage in done.damaged:
        console.print(f"damaged, and kept as it is: {one_line(damage)}", style="yellow")
    for store in done.left:
        console.print(
            f"another store, and left as it is; remove it if it is an old one: {one_line(store)}", style="yellow"
        )
    changed = (
        f"{counted(done.entries, 'entry', 'entries')}, {counted(done.snapshots, 'session file', 'session files')}, "
        f"{counted(done.files, 'other file', 'other files')} changed"
    )
    if decrypt:
        console.print(f"decrypted: {changed}", style="bold green")
        console.print("take encryption.key_file out of the configuration before the next start", style="dim")
        return
    console.print(f"encrypted with the key {done.key}: {changed}", style="bold green")
    if len(keys.ids) > 1 and not done.damaged:
        console.print("nothing needs the other keys any more; take them out of the key file", style="dim")


@command(
    app,
    talks=False,
    examples={
        "decrypt ~/.miniclaw/workspace/archive/20260101T000000.000000Z-telegram_1.jsonl": "an archived transcript",
        "decrypt sessions/telegram_1.json | jq .": "a session's file",
    },
)
def decrypt(
    invocation: Invocation,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="An encrypted file.")],
    name: Annotated[
        str, typer.Option(help="What it was called when it was encrypted, if it is not called that any more.")
    ] = "",
) -> None:
    """Write what is in an encrypted file to standard output: a session's, an archive, one in quarantine."""
    from miniclaw_sessions.core.persistence.whole_files import opened_file  # noqa: PLC0415 - help does not need it

    content = opened_file(_keys(invocation), file, name)
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    sys.stdout.flush()
    for piece in content:
        shown = printable_json(decoder.decode(piece)).encode() if sys.stdout.isatty() else piece
        sys.stdout.buffer.write(shown)
    sys.stdout.buffer.flush()


def _keys(invocation: Invocation) -> KeyRing:
    from miniclaw_sessions.encryption import load_keys  # noqa: PLC0415 - help does not need it

    keys = load_keys(invocation.loaded.settings.encryption, os.environ)
    if keys is None:
        raise ConfigError("there is no key: name a file with --key-file, or set encryption.key_file")
    return keys
