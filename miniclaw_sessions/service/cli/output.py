"""How things look in a terminal: times, messages, tables, progress. What strangers wrote is shown, never obeyed."""

from __future__ import annotations

import re
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from miniclaw_sessions.printable import printable

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.progress import Progress

Report = Callable[[str, int, int | None], None]
"""Called with a stage, how much of it is done, and how much there is (None: that is unknown)."""

PATIENCE_S = 0.5
"""Work that takes longer than this shows a progress bar on a terminal."""

ABORTED = "aborted"
"""The `stop_reason` of an answer that a person stopped, as `protocol.messages` has it."""

_STAGES = {
    "recovering": "Reading sessions",
    "comparing": "Comparing with the store",
    "checking": "Checking sessions",
    "flushing": "Saving sessions",
    "reading": "Reading entries",
    "searching": "Searching",
    "forking": "Copying the session",
    "compacting": "Summarizing",
    "importing": "Importing",
    "exporting": "Writing",
    "backing up": "Backing up",
    "sweeping": "Looking for idle sessions",
    "verifying": "Verifying files",
    "restoring": "Restoring files",
    "copying the store": "Copying the store",
    "copying files": "Copying files",
    "writing the list of files": "Writing the list of files",
    "exporting sessions": "Exporting sessions",
}
_IN_BYTES = frozenset({"importing", "exporting"})
_ROLES = {"user": ("you", "bold cyan"), "assistant": ("assistant", "bold green"), "system": ("system", "bold magenta")}
_AGE = re.compile(r"(\d{1,6})\s*(min|h|d|w|y)")
_TAG = re.compile(r"(?<!\\)(?=\[[a-z#/@][^\[]*?\])", re.IGNORECASE)
"""Before what the help would take for a mark of style, as `rich.markup` has them."""
_UNITS = {"min": 60, "h": 3_600, "d": 86_400, "w": 7 * 86_400, "y": 365 * 86_400}
_AGES = ((86_400 * 365, "y"), (86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))


def verbatim(text: str) -> str:
    """A text for a help, with what stands in brackets to be shown; given twice, it is the same."""
    return _TAG.sub(r"\\", text)


class Brief(NamedTuple):
    """A value that people see shorter than programs: the end of an id, a size in its unit."""

    whole: str
    shown: str


def age(moment: datetime, now: datetime) -> str:
    """How long ago something was: `3 h`, `now`."""
    seconds = (now - moment).total_seconds()
    for size, unit in _AGES:
        if seconds >= size:
            return f"{int(seconds // size)} {unit}"
    return "now"


def seconds_in(text: str) -> int | None:
    """How long a time is that a person has written, such as `90d` or `12 h`; None: it is none."""
    found = _AGE.fullmatch(text.strip())
    return None if found is None else int(found[1]) * _UNITS[found[2]]


def local_time(moment: datetime | str | None) -> str:
    """A time, or one in ISO 8601, as this machine's wall clock shows it, to the second."""
    if isinstance(moment, str):
        moment = datetime.fromisoformat(moment)
    if moment is None:
        return ""
    try:
        return moment.astimezone().strftime("%Y-%m-%d %H:%M:%S")
    except OverflowError:  # the years 1 and 9999 have an end where other time zones begin
        return moment.strftime("%Y-%m-%d %H:%M:%S")


def counted(number: int, one: str, many: str) -> str:
    """A number with its noun: `1 entry`, `1,200 entries`."""
    return f"{number:,} {one if number == 1 else many}"


def print_sentence(console: Console, sentence: str, style: str = "") -> None:
    """Print a sentence: on a terminal broken between its words only, elsewhere on one line."""
    if console.file.isatty():  # long words stay whole: rich would break a path, and what is copied would be wrong
        sentence = textwrap.fill(sentence, console.width, break_long_words=False, break_on_hyphens=False)
    console.print(sentence, style=style, soft_wrap=True)


def one_line(text: object) -> str:
    """Text of any origin on one line."""
    return printable("" if text is None else str(text))


def text_of(message: Mapping[str, Any]) -> str:
    """A message's content as text; what is not text is named in brackets."""
    content = message.get("content", "")
    if isinstance(content, str):
        return content
    return "\n".join(
        str(part["text"]) if part.get("type") == "text" and "text" in part else f"[{part.get('type', 'unknown')}]"
        for part in content
    )


def message_block(message: Mapping[str, Any]) -> RenderableType:
    """A message as a heading and an indented text, safe to print."""
    from rich.console import Group  # noqa: PLC0415 - `--json` does not need it
    from rich.padding import Padding  # noqa: PLC0415 - same
    from rich.text import Text  # noqa: PLC0415 - same

    name, style = _ROLES.get(message["role"], (str(message["role"]).replace("_", " "), "bold yellow"))
    heading = Text(one_line(name), style=style)
    if message.get("name"):
        heading.append(f" {one_line(message['name'])}", style="yellow")
    if message.get("is_error"):
        heading.append(" failed", style="bold red")
    if message.get("stop_reason") == ABORTED:
        heading.append(" (interrupted)", style="yellow")
    heading.append(f"  {local_time(message.get('timestamp'))}", style="dim")
    body = [Text(printable(text_of(message), lines=True))] if text_of(message) else []
    calls = [
        Text(f"→ {one_line(call['name'])} {one_line(call.get('arguments', ''))}", style="yellow")
        for call in message.get("tool_calls") or ()
    ]
    return Group(heading, *(Padding(part, (0, 0, 0, 2), expand=False) for part in (*body, *calls)))


@contextmanager
def progress_on(console: Callable[[], Console]) -> Iterator[Report]:
    """A report that shows a bar in a terminal when the work takes longer than a moment."""
    bar = _Bar(console()) if sys.stderr.isatty() else None
    try:
        yield bar.report if bar else unwatched
    finally:
        if bar:
            bar.hide()


class _Bar:
    """Appears when a stage has lasted for `PATIENCE_S`, and goes when it is complete. Any thread may report."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._lock = threading.RLock()
        self._timer: threading.Timer | None = None
        self._progress: Progress | None = None
        self._latest: tuple[str, int, int | None] = ("", 0, None)

    def report(self, stage: str, done: int, total: int | None) -> None:
        """Note how far the work is."""
        with self._lock:
            if total is not None and done >= total:
                self.hide()
                return
            self._latest = (stage, done, total)
            if self._progress is not None:
                self._update(self._progress)
            elif self._timer is None:
                self._timer = threading.Timer(PATIENCE_S, self._show)
                self._timer.daemon = True
                self._timer.start()

    def hide(self) -> None:
        """Take the bar away, or keep it from appearing."""
        with self._lock:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            if self._progress is not None:
                self._progress.stop()
                self._progress = None

    def _show(self) -> None:
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn  # noqa: PLC0415 - slow to load

        with self._lock:
            if self._timer is not threading.current_thread():
                return  # it was hidden meanwhile
            columns = (
                TextColumn("{task.description}"),
                BarColumn(),
                TextColumn("{task.fields[amount]}", style="progress.download"),
                TimeRemainingColumn(),
            )
            self._progress = Progress(*columns, console=self._console, transient=True)
            self._progress.add_task("", amount="")
            self._update(self._progress)
            self._progress.start()

    def _update(self, progress: Progress) -> None:
        from rich.filesize import decimal  # noqa: PLC0415 - only a bar needs it

        stage, done, total = self._latest
        description = _STAGES.get(stage, stage.capitalize())
        numbers = [done] if total is None else [done, total]
        amount = " of ".join(decimal(number) if stage in _IN_BYTES else f"{number:,}" for number in numbers)
        if total is None and not done:  # nothing is counted
            amount = ""
        progress.update(progress.task_ids[0], description=description, completed=done, total=total, amount=amount)


def unwatched(stage: str, done: int, total: int | None) -> None:
    """Ignore the progress."""
