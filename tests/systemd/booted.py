"""A real systemd, booted in namespaces of its own, for tests of the units.

`BootedSystem` starts systemd as process 1 of new pid, mount, uts, ipc, cgroup and network namespaces. Its root is an
overlay of this machine's root whose changes live in memory, so nothing a test does outlives it, and this machine's own
systemd (if there is one) is never spoken to. Every mount belongs to the new mount namespace and every process to the
new pid namespace: both vanish when process 1 is killed, which also happens when the test run itself dies. What is left
to remove is one control group and one empty directory.

Needs root. Like a container it has no device nodes beyond the harmless ones and no kernel settings.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

PROJECT = Path(__file__).resolve().parents[2]
UNITS = PROJECT / "systemd"
INSTALLED = Path("/opt/miniclaw-sessions")
PROGRAMS = ("unshare", "nsenter", "setpriv", "pivot_root", "mount", "umount", "mknod", "curl", "/lib/systemd/systemd")
BOOT_LIMIT_S = 20.0
SCRATCH_PREFIX = "booted-systemd-"

# Runs as process 1 of the new namespaces, then becomes systemd. $1 is an empty directory; $2 the interpreter's tree;
# $3 the third-party packages; $4 the source tree; $5 the prepared files that are laid over the root.
BOOT_SCRIPT = r"""
set -eu
scratch=$1 interpreter=$2 packages=$3 source=$4 prepared=$5
mount -t tmpfs -o mode=0755 tmpfs "$scratch"
mkdir "$scratch/upper" "$scratch/work" "$scratch/root"
mount -t overlay -o "lowerdir=/,upperdir=$scratch/upper,workdir=$scratch/work" overlay "$scratch/root"
root=$scratch/root
mountpoint -q "$root"

# The machine's own units, journal and private directories stay out of sight.
mkdir -p "$root/opt" "$root/etc/credstore" "$root/old-root" "$root/var/lib" "$root/var/log" "$root/var/tmp"
for hidden in etc/systemd opt var/lib var/log var/tmp; do mount -t tmpfs -o mode=0755 tmpfs "$root/$hidden"; done
mkdir -p "$root/etc/systemd/system"
chmod 1777 "$root/var/tmp"
for unit in "$root"/lib/systemd/system/sysinit.target.wants/* "$root"/lib/systemd/system/sockets.target.wants/*; do
    name=${unit##*/}
    case $name in
        systemd-journald.s* | systemd-journald-dev-log.socket) ;;
        *) ln -sf /dev/null "$root/etc/systemd/system/$name" ;;
    esac
done
for name in systemd-remount-fs.service systemd-tmpfiles-clean.timer; do
    ln -sf /dev/null "$root/etc/systemd/system/$name"
done
cp -a "$prepared/." "$root/"

for tree in "$interpreter:$root/opt/interpreter" "$packages:$root/opt/packages" "$source:$root/opt/source"; do
    mkdir "${tree#*:}"
    mount --bind "${tree%%:*}" "${tree#*:}"
    mount -o remount,bind,ro "${tree#*:}"
done

mount -t proc proc "$root/proc"
mount --bind "$root/proc/sys" "$root/proc/sys"
mount -o remount,bind,ro "$root/proc/sys"
mount -t sysfs -o ro sysfs "$root/sys"
mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup"
mount -t tmpfs -o mode=0755 tmpfs "$root/run"
mount -t tmpfs -o mode=1777 tmpfs "$root/tmp"
mount -t tmpfs -o mode=0755 tmpfs "$root/dev"
mkdir "$root/dev/pts" "$root/dev/shm"
mount -t devpts -o newinstance,ptmxmode=0666 devpts "$root/dev/pts"
mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm"
mknod -m 666 "$root/dev/null" c 1 3
mknod -m 666 "$root/dev/zero" c 1 5
mknod -m 666 "$root/dev/full" c 1 7
mknod -m 666 "$root/dev/random" c 1 8
mknod -m 666 "$root/dev/urandom" c 1 9
mknod -m 666 "$root/dev/tty" c 5 0
ln -s /proc/self/fd "$root/dev/fd"
ln -s pts/ptmx "$root/dev/ptmx"
ln -s fd/0 "$root/dev/stdin"
ln -s fd/1 "$root/dev/stdout"
ln -s fd/2 "$root/dev/stderr"

cd "$root"
pivot_root . old-root
umount -l /old-root
# Shared, or the credentials that systemd prepares in a side namespace never reach the service.
mount --make-rshared /
exec env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin container=namespaces \
    /lib/systemd/systemd --system --log-target=journal --log-level=info --show-status=no
"""


def reason_not_to_boot() -> str | None:
    """Why no systemd can be booted here, or None when it can be tried."""
    if not sys.platform.startswith("linux"):
        return "this is not Linux"
    if os.geteuid() != 0:
        return "needs root"
    missing = [program for program in PROGRAMS if shutil.which(program) is None]
    if missing:
        return f"not installed: {', '.join(missing)}"
    if _unified_hierarchy() is None:
        return "no cgroup2 hierarchy is mounted"
    probe = subprocess.run(
        ["unshare", "--pid", "--mount", "--uts", "--ipc", "--cgroup", "--net", "--fork", "true"],
        capture_output=True,
        text=True,
        check=False,
    )
    return f"no new namespaces: {probe.stderr.strip()}" if probe.returncode else None


def _unified_hierarchy() -> Path | None:
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, mountpoint, kind, *_ = line.split()
        if kind == "cgroup2":
            return Path(mountpoint)
    return None


class CommandFailedError(Exception):
    """A command inside the booted system ended with a status that was not expected; the text holds its output."""


class BootedSystem:
    """One booted systemd. A context manager: entering boots, leaving kills it and removes what it left.

    The project is installed inside at /opt/miniclaw-sessions, as the units expect it: a virtual environment made of
    read-only views of the running interpreter, its packages and the source tree.

    Attributes:
        init_pid: Process 1 of the booted system, as this machine sees it.
        boot_seconds: How long it took until systemd answered "running".
    """

    def __init__(self) -> None:
        self.init_pid = 0
        self.boot_seconds = 0.0
        self._unshare: subprocess.Popen[bytes] | None = None
        self._scratch: Path | None = None
        self._cgroup: Path | None = None

    def __enter__(self) -> Self:
        try:
            self._boot()
        except BaseException:
            self._tear_down()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._tear_down()

    # --- inside ------------------------------------------------------------------------------------------------------

    @property
    def root(self) -> Path:
        """The booted system's root directory, as a path that works out here (also for Unix sockets)."""
        return Path(f"/proc/{self.init_pid}/root")

    def path(self, inside: str | Path) -> Path:
        """The path out here of a file inside. Symbolic links are resolved by the inside's rules."""
        resolved = self.run("realpath", "--canonicalize-missing", str(inside)).strip()
        return self.root / resolved.lstrip("/")

    def enter(self, *command: str) -> list[str]:
        """The command line that runs `command` inside.

        Raises:
            CommandFailedError: There is no inside any more; the command must not run out here instead.
        """
        if self._unshare is None or self._unshare.poll() is not None:
            raise CommandFailedError(f"{shlex.join(command)}: systemd is not running")
        namespaces = ("--pid", "--mount", "--uts", "--ipc", "--cgroup", "--net")
        return ["nsenter", f"--target={self.init_pid}", *namespaces, "--wd=/", "--", *command]

    def run(self, *command: str, status: int | None = 0, limit_s: float = 30.0, stdin: str = "") -> str:
        """Runs a command inside and returns what it printed on stdout.

        Raises:
            CommandFailedError: It ended with another status than `status` (None: any will do).
        """
        environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "SYSTEMD_PAGER": "", "LC_ALL": "C.UTF-8"}
        done = subprocess.run(
            self.enter(*command),
            input=stdin,
            capture_output=True,
            text=True,
            timeout=limit_s,
            check=False,
            env=environment,
        )
        if status is not None and done.returncode != status:
            raise CommandFailedError(f"{shlex.join(command)}: status {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout

    def systemctl(self, *arguments: str, status: int | None = 0, limit_s: float = 60.0) -> str:
        """Runs systemctl inside."""
        return self.run("systemctl", *arguments, status=status, limit_s=limit_s)

    def show(self, unit: str, *properties: str) -> dict[str, str]:
        """The values of a unit's properties."""
        lines = self.systemctl("show", unit, f"--property={','.join(properties)}").splitlines()
        return dict(line.split("=", 1) for line in lines)

    def main_pid(self, unit: str) -> int:
        """The process id of a service's main process, as this machine sees it; 0 when it has none."""
        shown = self.show(unit, "MainPID", "ControlGroup")
        members = self._cgroup_of(shown["ControlGroup"]) / "cgroup.procs"
        for pid in members.read_text().split() if shown["MainPID"] != "0" else []:
            status = Path(f"/proc/{pid}/status").read_text()
            if next(line for line in status.splitlines() if line.startswith("NSpid:")).split()[-1] == shown["MainPID"]:
                return int(pid)
        return 0

    def _cgroup_of(self, inside: str) -> Path:
        assert self._cgroup is not None
        return self._cgroup / inside.lstrip("/")

    def journal(self, unit: str, *arguments: str) -> list[dict[str, Any]]:
        """The journal records of a unit's processes, oldest first. Records of systemd about the unit are left out."""
        self.run("journalctl", "--sync")
        printed = self.run("journalctl", "--output=json", "--all", f"_SYSTEMD_UNIT={unit}", *arguments)
        return [json.loads(line) for line in printed.splitlines()]

    def write(self, inside: str | Path, text: str, mode: int = 0o644) -> None:
        """Writes a file inside, with the directories above it."""
        self.run("install", "-D", "-m", f"{mode:o}", "/dev/stdin", str(inside), stdin=text)

    def install_units(self) -> None:
        """Copies the shipped service and socket into /etc/systemd/system, without drop-ins, and reloads."""
        for name in ("miniclaw-sessions.service", "miniclaw-sessions.socket"):
            self.write(f"/etc/systemd/system/{name}", (UNITS / name).read_text())
        self.systemctl("daemon-reload")

    def drop_in(self, unit: str, name: str, text: str) -> None:
        """Adds a drop-in to a unit and reloads; it lasts until `remove_drop_ins`."""
        self.write(f"/etc/systemd/system/{unit}.d/{name}.conf", text)
        self.systemctl("daemon-reload")

    def remove_drop_ins(self, unit: str) -> None:
        """Removes the drop-ins of a unit and reloads."""
        self.run("rm", "-rf", f"/etc/systemd/system/{unit}.d")
        self.systemctl("daemon-reload")

    # --- booting -----------------------------------------------------------------------------------------------------

    def _boot(self) -> None:
        started = time.monotonic()
        hierarchy = _unified_hierarchy()
        assert hierarchy is not None, "reason_not_to_boot() was not asked"
        _remove_leftovers(hierarchy)
        self._scratch = Path(tempfile.mkdtemp(prefix=f"{SCRATCH_PREFIX}{os.getpid()}-"))
        for name in ("root", "prepared"):
            (self._scratch / name).mkdir()
        _prepare(self._scratch / "prepared")
        self._cgroup = hierarchy / self._scratch.name
        self._cgroup.mkdir()
        with (self._scratch / "boot.log").open("wb") as log:
            self._unshare = subprocess.Popen(
                _boot_command(self._scratch, self._cgroup),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._wait_until_running(started + BOOT_LIMIT_S)
        self.boot_seconds = time.monotonic() - started

    def _wait_until_running(self, deadline: float) -> None:
        state = "not started"
        while time.monotonic() < deadline:
            assert self._unshare is not None
            if self._unshare.poll() is not None:
                break
            self.init_pid = self.init_pid or _only_child(self._unshare.pid)
            if self.init_pid and Path(f"/proc/{self.init_pid}/comm").read_text().strip() == "systemd":
                state = self.run("systemctl", "is-system-running", status=None).strip()
                if state == "running":
                    return
                if state == "degraded":
                    break
            time.sleep(0.02)
        raise CommandFailedError(f"systemd did not boot: {state}\n{self._boot_log(state)}")

    def _boot_log(self, state: str) -> str:
        assert self._scratch is not None
        log = (self._scratch / "boot.log").read_text(errors="replace")
        if state == "degraded":
            log += self.systemctl("--failed", status=None) + self.run("journalctl", "-b", "--no-pager", status=None)
        return log

    def _tear_down(self) -> None:
        """Kills process 1, which ends every process and mount of the namespaces, and removes cgroups and scratch."""
        if self._unshare is not None:
            if self.init_pid:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self.init_pid, signal.SIGKILL)
            else:
                self._unshare.kill()
            self._unshare.wait(timeout=20)
            self._unshare = None
            self.init_pid = 0
        if self._cgroup is not None:
            _remove_cgroup(self._cgroup)
            self._cgroup = None
        if self._scratch is not None:
            shutil.rmtree(self._scratch)
            self._scratch = None


def _only_child(pid: int) -> int:
    with contextlib.suppress(OSError):
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return int(children[0]) if children else 0
    return 0


def _remove_cgroup(top: Path) -> None:
    """Removes a control group and those below it, deepest first; waits until the killed processes have left them."""
    deadline = time.monotonic() + 10.0
    while top.exists():
        for directory, _, _ in os.walk(top, topdown=False):
            with contextlib.suppress(OSError):
                Path(directory).rmdir()
        if time.monotonic() > deadline:
            raise CommandFailedError(f"{top} still has processes: {(top / 'cgroup.procs').read_text().split()}")
        time.sleep(0.01)


def _remove_leftovers(hierarchy: Path) -> None:
    """Removes what a killed test run could not: its control groups and its scratch directory, named after its pid."""
    for leftover in (*hierarchy.glob(f"{SCRATCH_PREFIX}*"), *Path(tempfile.gettempdir()).glob(f"{SCRATCH_PREFIX}*")):
        owner = leftover.name.removeprefix(SCRATCH_PREFIX).split("-")[0]
        if Path("/proc", owner).exists():
            continue
        if leftover.parent == hierarchy:
            _remove_cgroup(leftover)
        else:
            shutil.rmtree(leftover)


def _boot_command(scratch: Path, cgroup: Path) -> list[str]:
    """Joins the control group and boots. The kernel kills all of it when this process dies (pdeathsig)."""
    join = f'echo $$ > {shlex.quote(str(cgroup / "cgroup.procs"))} && exec "$@"'
    namespaces = ("--pid", "--mount", "--uts", "--ipc", "--cgroup", "--net", "--fork", "--kill-child=KILL")
    trees = (Path(sys.base_prefix).resolve(), Path(sysconfig.get_path("purelib")).resolve(), PROJECT)
    boot = ("sh", "-c", BOOT_SCRIPT, "boot", scratch / "root", *trees, scratch / "prepared")
    command = ("setpriv", "--pdeathsig=KILL", "sh", "-c", join, "join", "unshare", *namespaces, *boot)
    return [str(part) for part in command]


def _prepare(directory: Path) -> None:
    """Lays out the files that the booted system has and this machine has not."""
    for inside, (text, mode) in _prepared_files().items():
        path = directory / inside.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(mode)
    interpreter = directory / str(INSTALLED).lstrip("/") / "bin/python"
    interpreter.symlink_to(f"/opt/interpreter/bin/python{sys.version_info.major}.{sys.version_info.minor}")
    for path in directory.rglob("*"):
        if path.is_dir():
            path.chmod(0o755)
    (directory / "etc/credstore").chmod(0o700)


def _prepared_files() -> Mapping[str, tuple[str, int]]:
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    python = f"{INSTALLED}/bin/python"
    # An interpreter built with a shared library looks for it where it was built, which a service must not see.
    launcher = f'#!/bin/sh\nLD_LIBRARY_PATH=/opt/interpreter/lib exec {python} "$0.py" "$@"\n'
    return {
        "/etc/machine-id": ("0123456789abcdef0123456789abcdef\n", 0o444),
        "/etc/systemd/system/default.target": ("[Unit]\nRequires=basic.target\nAfter=basic.target\n", 0o644),
        "/etc/systemd/journald.conf": ("[Journal]\nStorage=volatile\nRateLimitIntervalSec=0\n", 0o644),
        "/etc/credstore/.keep": ("", 0o600),
        # A virtual environment where the units expect one; PROJECT first, then its packages (their .pth files unread).
        f"{INSTALLED}/pyvenv.cfg": ("home = /opt/interpreter/bin\ninclude-system-site-packages = false\n", 0o644),
        f"{INSTALLED}/lib/{version}/site-packages/booted.pth": ("/opt/source\n/opt/packages\n", 0o644),
        f"{INSTALLED}/bin/miniclaw-sessions": (launcher, 0o755),
        f"{INSTALLED}/bin/miniclaw-sessions.py": (
            "import sys\nfrom miniclaw_sessions.cli import main\nsys.exit(main())\n",
            0o644,
        ),
    }
