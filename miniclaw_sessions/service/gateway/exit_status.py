"""How the process ends, as a number that a service manager and a script can act on.

The values above 2 follow sysexits(3). A unit file should name `STORE` and `CONFIG` in `RestartPreventExitStatus=`:
starting again cannot help there.
"""

from __future__ import annotations

from enum import IntEnum


class ExitStatus(IntEnum):
    """The daemon's exit status; 0 means that everything accepted was saved."""

    OK = 0
    """Stopped as asked, everything saved."""

    FAILURE = 1
    """Something failed that starting again may cure, such as a database that cannot be reached yet."""

    USAGE = 2
    """The command line was wrong."""

    FORCED = 70
    """A third stop signal cut the shutdown short; what was acknowledged is in the store all the same."""

    STORE = 71
    """The disk or the database failed for good, is damaged, or is of a newer version: a person must look."""

    NOT_SAVED = 74
    """The shutdown was orderly, but something accepted could not be saved."""

    DIRECTORY_IN_USE = 75
    """Another process holds the workspace directory or the socket."""

    CONFIG = 78
    """A setting has a wrong value."""
