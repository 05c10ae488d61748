"""The daemon: settings, manager, servers, signals. Reads from top to bottom as it runs.

It is ready when the directory is locked, everything is recovered, and the sockets listen. On a stop signal, it stops
accepting, lets requests and turns finish, and then commits and flushes outside of anything that could be cancelled. Its
exit status is 0 only if everything accepted was saved.
"""

from __future__ import annotations

import errno
import gc
import os
import sys
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from contextlib import ExitStack, closing
from functools import partial
from importlib.util import find_spec
from typing import NamedTuple

import anyio
from anyio import to_thread

from miniclaw_sessions import errors
from miniclaw_sessions.agent.agent import Agent
from miniclaw_sessions.agent.assistant import Assistant
from miniclaw_sessions.agent.providers.configured import open_agent
from miniclaw_sessions.agent.reminders.reminders import Reminders
from miniclaw_sessions.agent.summarizing import summarizer_of
from miniclaw_sessions.agent.titles import Titles
from miniclaw_sessions.channels.base import Channel
from miniclaw_sessions.channels.dispatcher import Dispatcher
from miniclaw_sessions.channels.registry import make_channels
from miniclaw_sessions.channels.reminding import Reminding
from miniclaw_sessions.clock import SystemClock
from miniclaw_sessions.config import (
    FollowSettings,
    ListenSettings,
    LoadedSettings,
    ModelSettings,
    Settings,
    TelemetrySettings,
    socket_path,
)
from miniclaw_sessions.core.manager import SessionManager
from miniclaw_sessions.core.persistence.recovery import Progress
from miniclaw_sessions.encryption import load_keys
from miniclaw_sessions.files.discovery.programs import programs_named
from miniclaw_sessions.log import get_logger
from miniclaw_sessions.log.audit import AuditLog
from miniclaw_sessions.log.records import configure_logging
from miniclaw_sessions.secret import read_secret
from miniclaw_sessions.service.api.context import Context
from miniclaw_sessions.service.gateway.admission import access_policy, make_token, print_address
from miniclaw_sessions.service.gateway.exit_status import ExitStatus
from miniclaw_sessions.service.gateway.http import Gateway, make_app
from miniclaw_sessions.service.gateway.listeners import AddressInUseError, Listener, inherited, listen_tcp, listen_unix
from miniclaw_sessions.service.gateway.memory import share_one_heap
from miniclaw_sessions.service.gateway.notify import Notifier, watchdog
from miniclaw_sessions.service.gateway.sampling import sample
from miniclaw_sessions.service.gateway.server import HURRIED_S, Server
from miniclaw_sessions.service.gateway.signals import Signals
from miniclaw_sessions.service.gateway.telemetry import Spans, Telemetry
from miniclaw_sessions.service.gateway.token_file import TokenFile
from miniclaw_sessions.service.gateway.tokens import tokens_path
from miniclaw_sessions.statistics import ChannelState

log = get_logger(__name__)

STEP_DEADLINE_S = 60.0
"""One commit, or one piece of a flush, that takes longer than this has hung: the watchdog is not pinged any more."""

_COLLECT_AFTER = (10_000, 250, 100)
_SWITCH_INTERVAL_S = 0.001


def run(loaded: LoadedSettings, reload: Callable[[], LoadedSettings] | None = None) -> int:
    """Run the daemon until a stop signal.

    Args:
        loaded: the settings.
        reload: reads the settings again, for SIGHUP; None: they stay as they are.

    Returns:
        The exit status, an `ExitStatus`.
    """
    configure_logging(loaded.settings.log)
    share_one_heap()
    sys.setswitchinterval(_SWITCH_INTERVAL_S)  # worker threads hand the interpreter back to the loop sooner
    loop = {"use_uvloop": find_spec("uvloop") is not None}
    try:
        return int(anyio.run(_main, loaded, reload or (lambda: loaded), backend_options=loop))
    finally:
        _let_go_of_the_log()


async def _main(loaded: LoadedSettings, reload: Callable[[], LoadedSettings]) -> ExitStatus:
    with Signals() as signals, closing(Notifier.from_environment(os.environ)) as notifier:
        try:
            return await _live(loaded, reload, signals, notifier)
        except Exception as error:  # noqa: BLE001 - the last edge: any error becomes a line and a status
            cause = errors.first_cause(error)
            status = status_of(cause)
            sentence = str(cause) if isinstance(cause, errors.SessionsError | OSError) else "the daemon failed"
            log.critical(sentence, action="daemon.failed", error_type=type(cause).__name__, status=int(status))
            notifier.send(f"STATUS={type(cause).__name__}, exit status {int(status)}")
            return status


async def _live(
    loaded: LoadedSettings, reload: Callable[[], LoadedSettings], signals: Signals, notifier: Notifier
) -> ExitStatus:
    """From the settings to the saved sessions."""
    settings = loaded.settings
    # What is wrong with these two is reported before all sessions are read.
    read_secret(settings.listen.token_file, "token", os.environ)
    programs_named(settings.follow.programs)
    phase = Phase(notifier)
    keys = load_keys(settings.encryption, os.environ)
    channels = await _channels(settings)
    if loaded.shared_store is not None and loaded.directory is not None:  # no manager makes it, and the socket is there
        await to_thread.run_sync(partial(loaded.directory.mkdir, mode=0o700, parents=True, exist_ok=True))
    manager = SessionManager(
        loaded.workspace,
        settings=settings.sessions,
        on_progress=phase.progress,
        encryption=keys,
        wait_s=settings.sessions.lock_wait_s,
    )
    reminders = _reminders(settings, manager, channels)
    status = ExitStatus.OK
    spans = await to_thread.run_sync(open_spans, settings.telemetry)  # the SDK loads, and looks where it runs
    telemetry = Telemetry(manager.statistics, settings, spans, clock=manager.clock)
    telemetry.listen(manager.events)
    with signals.interrupting() as opening:
        async with telemetry, open_agent(settings, manager, observer=telemetry, reminders=reminders) as agent, manager:
            assistant = Assistant(agent, settings.model)
            signals.shield()
            _settle_memory()
            with ExitStack() as sockets:
                listeners = open_listeners(loaded, os.environ, sockets)
                await to_thread.run_sync(make_token, listeners, loaded, os.environ)
                policy = access_policy(listeners, loaded, os.environ)
                dispatcher = Dispatcher(
                    manager, assistant, limits=settings.channels, watch=telemetry, reminders=reminders
                )
                summarizer = summarizer_of(agent.provider, limits=agent.limits)
                app = make_app(manager, dispatcher, settings, policy, summarizer, telemetry)
                app.audit = sockets.enter_context(AuditLog(settings.log, SystemClock()))
                manager.events.swept.subscribe(app.expired)
                _connect(app, loaded, dispatcher, channels)
                telemetry.knows([channel.name for channel in channels], [tool.name for tool in agent.tools])
                async with dispatcher:
                    for channel in channels:
                        dispatcher.serve(channel)
                    announce = partial(print_address, listeners, loaded, os.environ)
                    life = Life(settings.listen, signals, phase, reload, announce)
                    async with anyio.create_task_group() as followers:
                        followers.start_soon(_follow, app.context, settings.follow, name="other programs' sessions")
                        followers.start_soon(dispatcher.supervise, name="dispatcher")
                        followers.start_soon(_give_titles, agent, manager, settings.model, name="titles")
                        followers.start_soon(_remind, reminders, manager, dispatcher, channels, name="reminders")
                        await _serve(app, manager, dispatcher, listeners, life)
                        followers.cancel_scope.cancel()
            status = await _save(manager)
    if opening.cancelled_caught:
        log.info("stopped before it was ready; nothing was accepted", action="daemon.stopped")
    return status


def _connect(app: Gateway, loaded: LoadedSettings, dispatcher: Dispatcher, channels: Sequence[Channel]) -> None:
    """Let requests reach the tokens and the channels."""
    if (path := tokens_path(loaded)) is not None:
        app.context.tokens = TokenFile(path, SystemClock())
    app.context.channels = partial(_states, loaded.settings, dispatcher)
    app.webhooks = {one.name: one.webhook for one in channels if hasattr(one, "webhook")}


async def _channels(settings: Settings) -> list[Channel]:
    """The channels that the settings turn on; what cannot be made is logged."""
    channels, failed = await to_thread.run_sync(make_channels, settings)
    for failure in failed:
        log.error(str(failure), action="plugin.failed")
    return channels


def _reminders(settings: Settings, manager: SessionManager, channels: Sequence[Channel]) -> Reminders | None:
    """The reminders of all chats; None if the settings want none.

    Raises:
        ConfigError: a schedule's time or chat is none.
    """
    if not settings.reminders.enabled:
        return None
    answering = {channel.name for channel in channels if not hasattr(channel, "announce")}
    networks = settings.plugins.get("channels", {}).keys() - answering
    return Reminders(manager, settings.reminders, settings.schedules, networks=networks, answering=answering)


async def _remind(
    reminders: Reminders | None, manager: SessionManager, dispatcher: Dispatcher, channels: Sequence[Channel]
) -> None:
    """Say what is due in the chats."""
    if reminders is not None:
        await Reminding(manager, dispatcher, reminders, channels).run()


async def _give_titles(agent: Agent, manager: SessionManager, settings: ModelSettings) -> None:
    """Give titles to sessions that have none, if the settings say so."""
    if settings.titles:
        await Titles(agent, manager).run()


async def _follow(context: Context, settings: FollowSettings) -> None:
    """Keep up with other programs, if the settings name some."""
    if settings.programs:
        from miniclaw_sessions.service.gateway.following import keep_up  # noqa: PLC0415 - loads the client, too

        await keep_up(context, settings)


async def _serve(
    app: Gateway, manager: SessionManager, dispatcher: Dispatcher, listeners: Sequence[Listener], life: Life
) -> None:
    """Serve until a stop signal; on return no request and no turn is running any more."""
    server = Server(
        app,
        max_connections=life.limits.max_connections,
        request_timeout_s=life.limits.request_timeout_s,
        graceful_timeout_s=life.limits.graceful_timeout_s,
    )
    server.on_stopping = manager.events.stop
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(server.serve_until_stopped, [listener.socket for listener in listeners], name="http server")
        await server.listening.wait()
        tasks.start_soon(app.delay.watch, name="event loop delay")
        commit_seconds = app.telemetry.metrics.commit_seconds
        tasks.start_soon(sample, manager, app.context.series, commit_seconds, app.delay, name="samples")
        tasks.start_soon(app.watch_tokens, name="tokens")
        app.context.problems = server.problems
        tasks.start_soon(_on_hangup, app, listeners, life, name="SIGHUP")
        notifier, clock = life.phase.notifier, manager.clock
        deadline_s = min(STEP_DEADLINE_S, notifier.watchdog_s)
        watch = partial(watchdog, notifier, lambda: clock.monotonic() - manager.progressed_at, deadline_s=deadline_s)
        tasks.start_soon(watch, name="watchdog")
        life.phase.ready([listener.address for listener in listeners])
        life.announce()
        await life.signals.stop.wait()
        life.phase.stopping()
        for listener in listeners:
            listener.unlink()
        await _drain(server, dispatcher, life.signals, life.limits.graceful_timeout_s)
        tasks.cancel_scope.cancel()


def _states(settings: Settings, dispatcher: Dispatcher) -> Mapping[str, ChannelState]:
    """How all channels are that the settings turn on."""
    wanted = settings.plugins.get("channels", {})
    return {name: dispatcher.states.get(name, "not loaded") for name in wanted}


async def _drain(server: Server, dispatcher: Dispatcher, signals: Signals, graceful_timeout_s: float) -> None:
    """Accept nothing more, and wait for requests and turns, but not longer than is graceful."""

    async def hurry() -> None:
        await signals.hurry.wait()
        server.hurry()
        dispatcher.cut_off(anyio.current_time(), last_words_s=HURRIED_S)

    dispatcher.cut_off(anyio.current_time() + graceful_timeout_s)
    server.stop()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(hurry, name="hurry")
        await server.stopped.wait()
        await dispatcher.finished()
        tasks.cancel_scope.cancel()


async def _save(manager: SessionManager) -> ExitStatus:
    """The last commit and flush, outside of every cancelled scope."""
    try:
        await manager.close()
    except errors.StoreError as error:
        log.critical(str(error), action="shutdown.unsaved", status=int(ExitStatus.NOT_SAVED))
        return ExitStatus.NOT_SAVED
    log.info("stopped, everything is saved", action="daemon.stopped")
    return ExitStatus.OK


async def _on_hangup(app: Gateway, listeners: Sequence[Listener], life: Life) -> None:
    """Flush, and take over what can be changed while running; what is wrong with it is logged and changes nothing."""
    while True:
        await life.signals.next_hangup()
        life.phase.notifier.send("STATUS=reading the settings again")
        try:
            take_over(life.reload(), app, listeners)
            log.info("the settings were read again: log, token, hosts and origins", action="daemon.reloaded")
        except (errors.SessionsError, OSError) as error:
            log.error(str(error), action="daemon.not_reloaded", error_type=type(error).__name__)
        try:
            await app.context.manager.flush()  # logs what it did
        except Exception as error:  # noqa: BLE001 - a flush that fails must not end the daemon
            sentence = "the flush that was asked for is not complete"
            log.error(sentence, action="flush.failed", error_type=type(error).__name__)
        life.phase.notifier.send(life.phase.status)


def take_over(loaded: LoadedSettings, app: Gateway, listeners: Sequence[Listener]) -> None:
    """Use what of the settings can be changed while running: the logs, and what requests by TCP must show.

    Raises:
        ConfigError: the token cannot be read, or is none; or the audit log cannot be written.
    """
    policy, audit = access_policy(listeners, loaded, os.environ), AuditLog(loaded.settings.log, SystemClock())
    app.policy = policy
    if app.audit is not None:
        app.audit.close()
    app.audit = audit
    configure_logging(loaded.settings.log)


class Life(NamedTuple):
    """What decides how long the daemon goes on, and with which settings."""

    limits: ListenSettings
    signals: Signals
    phase: Phase
    reload: Callable[[], LoadedSettings]
    announce: Callable[[], None]


class Phase:
    """Reports the daemon's phase to the service manager and the log."""

    def __init__(self, notifier: Notifier) -> None:
        self.notifier = notifier
        self.status = "STATUS=starting"
        self._extends = True

    def progress(self, progress: Progress) -> None:
        """Something advanced: while starting or stopping, that buys time."""
        if self._extends:
            self.notifier.progress(f"{progress.stage} {progress.done}/{progress.total}")

    def ready(self, addresses: list[str]) -> None:
        """Everything is recovered and the sockets listen."""
        self._extends = False
        self.status = f"STATUS=listening on {', '.join(addresses)}"
        self.notifier.send("READY=1", self.status)
        log.info("listening", action="daemon.ready", addresses=addresses, pid=os.getpid())

    def stopping(self) -> None:
        """The daemon stops. Sent at the beginning, so that the service manager's stop timeout covers the final save."""
        self._extends = True
        self.notifier.send("STOPPING=1", "STATUS=finishing requests, then saving")


# --- putting together ------------------------------------------------------------------------------------------------


def open_listeners(loaded: LoadedSettings, environ: MutableMapping[str, str], sockets: ExitStack) -> list[Listener]:
    """The sockets that systemd passes, and for each kind that it does not pass, those of the settings.

    Args:
        loaded: the settings.
        environ: the environment; systemd's variables are taken out of it.
        sockets: closes what was opened.

    Raises:
        AddressInUseError: another process listens there.
        ConfigError: an address is wrong, or there is nothing to listen on.
    """
    listeners = inherited(environ)
    for listener in listeners:
        sockets.callback(listener.close)
    path = socket_path(loaded, environ)
    if path is not None and not any(listener.is_unix for listener in listeners):
        listeners.append(listen_unix(path))
        sockets.callback(listeners[-1].close)
    if loaded.settings.listen.tcp and all(listener.is_unix for listener in listeners):
        for listener in listen_tcp(loaded.settings.listen.tcp):
            listeners.append(listener)
            sockets.callback(listener.close)
    if not listeners:
        raise errors.ConfigError(
            "there is nothing to listen on; set listen.tcp, such as 127.0.0.1:8080, or listen.socket"
        )
    for listener in listeners:
        if not listener.is_local:
            sentence = "other machines can connect, and nothing is encrypted: put a TLS proxy in front"
            log.warning(sentence, action="listener.exposed", address=listener.address)
    return listeners


def open_spans(settings: TelemetrySettings) -> Spans:
    """Where the settings send spans; by default nowhere.

    Raises:
        ConfigError: the settings name a collector, and OpenTelemetry is not installed or the address is wrong.
    """
    if not settings.otlp_endpoint:
        return Spans()
    try:
        from miniclaw_sessions.service.gateway.otlp import collected  # noqa: PLC0415 - an extra, and slow to load
    except ImportError as error:
        raise errors.ConfigError(f"telemetry.otlp_endpoint needs: {errors.to_install('otel')} ({error})") from None
    return collected(settings)


def _settle_memory() -> None:
    """What was loaded and recovered stays: keep the collector from walking over it, even once."""
    gc.freeze()
    gc.set_threshold(*_COLLECT_AFTER)


# --- the end ---------------------------------------------------------------------------------------------------------

_FOR_GOOD = (errors.StoreCorrupt, errors.SchemaTooNew, errors.SnapshotUnreadable, errors.QuarantineFull)
_BROKEN_DISK = {
    *(errno.EIO, errno.EROFS, getattr(errno, "EUCLEAN", errno.EIO), errno.ENODEV, errno.ENXIO),
    *(errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EISDIR, errno.ELOOP),
}


def status_of(error: Exception) -> ExitStatus:
    """The exit status for what ended the daemon; `STORE` only where starting again cannot help (rule R30)."""
    if isinstance(error, errors.ConfigError):
        return ExitStatus.CONFIG
    if isinstance(error, errors.DirectoryInUse | AddressInUseError):
        return ExitStatus.DIRECTORY_IN_USE
    cause = error.__cause__ if isinstance(error, errors.StoreUnavailable) else error
    is_disk = isinstance(cause, OSError) and cause.errno in _BROKEN_DISK  # not: out of descriptors, memory, space
    return ExitStatus.STORE if is_disk or isinstance(error, _FOR_GOOD) else ExitStatus.FAILURE


def _let_go_of_the_log() -> None:
    """When the log's disk is full, Python's last flush fails and would replace the exit status by 120."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            sink = os.open(os.devnull, os.O_WRONLY)
            os.dup2(sink, stream.fileno())
            os.close(sink)
