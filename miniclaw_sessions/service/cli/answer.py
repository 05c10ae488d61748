"""How an answer is shown: in a terminal as Markdown while it comes, with what happens meanwhile; else the bare text."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from miniclaw_sessions.printable import printable
from miniclaw_sessions.service.cli.invocation import Invocation
from miniclaw_sessions.service.cli.output import one_line, text_of

if TYPE_CHECKING:
    from miniclaw_sessions.service.api.shapes import ChatEvent
    from miniclaw_sessions.service.cli.markdown import MarkdownStream

_MAX_ARGUMENTS = 200


class Answer:
    """One answer; a context manager that leaves the terminal in order, however the answer ends."""

    def __init__(self, invocation: Invocation) -> None:
        self._invocation = invocation
        self._console = invocation.console
        self._is_watched = sys.stdout.isatty() and not invocation.as_json and not self._console.is_dumb_terminal
        self._markdown: MarkdownStream | None = None
        self._in_line = False
        self._has_text = False
        self._last: dict[str, Any] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._break()

    def show(self, event: ChatEvent) -> None:
        """One event."""
        if event.kind in ("done", "stopped", "suspended"):
            self._last = event.data
        elif event.kind == "text" and not self._invocation.as_json:
            self._write(event.data["text"])
        elif self._is_watched:
            match event.kind:
                case "compacted" if event.data["status"] == "done":
                    self._note("(the older part of this conversation was summarized)", "dim")
                case "tool_started":
                    arguments = one_line(event.data.get("arguments", ""))
                    shown = arguments if len(arguments) <= _MAX_ARGUMENTS else f"{arguments[:_MAX_ARGUMENTS]}..."
                    self._note(f"→ {one_line(event.data['name'])} {shown}", "yellow")
                case "tool_finished" if event.data.get("is_error"):
                    self._note(f"✗ {one_line(event.data['name'])} failed", "red")

    def stopping(self) -> None:
        """Stop it."""
        if self._is_watched:
            self._note("(stopping)", "dim")

    def end(self, session_id: str, *, was_stopped: bool) -> None:
        """The answer is complete, or was stopped."""
        reply, pending = self._last.get("message", {}), self._last.get("pending", [])
        if self._invocation.as_json:
            document = {"session_id": session_id, "reply": reply, "usage": self._last.get("usage")}
            about = {"stopped": True} if was_stopped else {"pending": pending} if pending else {}
            self._invocation.print_json({**document, **about})
            return
        if pending:
            from miniclaw_sessions.agent.calls import question  # noqa: PLC0415 - only where something waits

            asked = [(call["name"], call["arguments"]) for call in pending if call["needs_approval"]]
            names = ", ".join(one_line(call["name"]) for call in pending)
            waits = f"(waits for {names}; /retry goes on when that is done)"
            self._note(question(asked) if asked else waits, "yellow")
            return
        if not self._has_text:  # a model that does not stream
            self._write(text_of(reply))
        self._break()
        if was_stopped:
            self._invocation.note("(stopped; what was said so far is kept)")
        if self._is_watched:
            self._console.print()

    def _write(self, text: str) -> None:
        if not text:
            return
        self._has_text = True
        shown = printable(text, lines=True)
        if self._is_watched:
            if self._markdown is None:
                from miniclaw_sessions.service.cli.markdown import MarkdownStream  # noqa: PLC0415 - only terminals need it

                self._markdown = MarkdownStream(self._console)
            self._markdown.write(shown)
        else:
            self._console.out(shown, end="", highlight=False)
            self._console.file.flush()
            self._in_line = not text.endswith("\n")

    def _note(self, text: str, style: str) -> None:
        self._break()
        self._console.print(text, style=style)

    def _break(self) -> None:
        """Complete what has begun; what follows stands on a line of its own."""
        if self._markdown is not None:
            self._markdown.end()
            self._markdown = None
        if self._in_line:
            self._console.print()
            self._in_line = False
