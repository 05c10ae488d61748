"""Any service that speaks OpenAI's transcriptions: OpenAI itself, and servers for Whisper's models."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Self
from urllib.parse import urlsplit

from miniclaw_sessions.agent.providers.service import missing
from miniclaw_sessions.config import TranscriptionSettings
from miniclaw_sessions.errors import ConfigError, ModelError
from miniclaw_sessions.files.formats.attached import SOUNDS, Attached, in_bytes
from miniclaw_sessions.secret import Secret

if TYPE_CHECKING:
    from openai import AsyncOpenAI

_SERVICE = "https://api.openai.com/v1"
_MAX_REPLY_BYTES = 2**20  # the words of a whole day


class OpenAITranscriber:
    """A `FileReader` of sounds by the official `openai` package; an async context manager that closes its connections.

    Args:
        settings: the model, and where it is.
        key: its key; None: it needs none.

    Raises:
        ConfigError: the `openai` package is missing, or OpenAI's own service is used without a key.
    """

    def __init__(self, settings: TranscriptionSettings, key: Secret | None) -> None:
        if key is None and not settings.base_url:
            raise ConfigError(f"transcription.model is set, and {_SERVICE} needs a key: set transcription.api_key_file")
        try:
            import openai  # noqa: PLC0415 - an extra, and slow to load

            from miniclaw_sessions.agent.providers.connections import bounded_client  # noqa: PLC0415 - loads httpx2
        except ImportError:
            raise missing("openai", "openai") from None
        self._failures = openai.OpenAIError
        self._model, self._language = settings.model, settings.language or openai.omit
        self._host = urlsplit(settings.base_url or _SERVICE).hostname or "the service"
        self._client: AsyncOpenAI = openai.AsyncOpenAI(
            api_key="none" if key is None else key.reveal(),
            base_url=settings.base_url or _SERVICE,
            timeout=settings.timeout_s,
            http_client=bounded_client(_MAX_REPLY_BYTES),
        )

    kinds = SOUNDS

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._client.close()

    async def words(self, file: Attached) -> str:
        """What is said in a sound; see `reading.FileReader`."""
        if (data := in_bytes(file)) is None:
            raise ModelError("a sound is no base64")
        try:
            reply = await self._client.audio.transcriptions.create(
                file=(file.name, data, file.media_type), model=self._model, language=self._language
            )
        except self._failures as error:
            raise ModelError(f"{self._host} did not transcribe a sound: {type(error).__name__}") from error
        if not isinstance(text := getattr(reply, "text", None), str):  # the package takes a reply of any shape
            raise ModelError(f"{self._host} did not transcribe a sound: its reply has no text")
        return text
