"""A disk that knows what was synced, and what a power cut may leave of the rest.

`Disk` is told every operation on a directory and keeps, beside what everybody sees, what is safe. The states that a cut
may leave follow from four rules, on which programs may rely with ext4, XFS and btrfs alike (Pillai et al., OSDI'14):

- What was written to a file is safe when the file was synced. Until then the file may end anywhere between its old end
  and its new one, and each of its sectors may hold the old bytes or the new ones; NULs, where there were no old ones.
- What was done in a directory (create, link, rename, delete) is safe when the directory was synced. Until then any
  number of these operations may be there, but in their order. Different directories do not wait for each other, nor
  for the files in them: a name may be there before its file's content.
- A rename is there as a whole or not at all.
- A sync of the file system makes everything safe.

Modes and times are not modelled, nor are drives that forget what they had confirmed: for these there are real power
cuts, and tests of damaged files.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import product
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple, TypeAlias

ROOT = 0
"""The node of the directory itself; it is always there."""

SECTOR = 512
"""Bytes that a drive writes as one."""

# --- operations ------------------------------------------------------------------------------------------------------


class Name(NamedTuple):
    """A name is given: to a new file, to a new directory, or one more to an old file."""

    directory: int
    name: str
    node: int
    is_directory: bool = False


class Rename(NamedTuple):
    """A name is changed; what had the new name loses it."""

    directory: int
    name: str
    new_name: str


class Unname(NamedTuple):
    """A name is taken away."""

    directory: int
    name: str


class Write(NamedTuple):
    """Bytes are written to a file."""

    node: int
    offset: int
    data: bytes


class Truncate(NamedTuple):
    """A file is cut, or filled up with NULs, to a length."""

    node: int
    length: int


class Sync(NamedTuple):
    """A file or a directory is synced."""

    node: int


class SyncAll(NamedTuple):
    """The whole file system is synced."""


class Mark(NamedTuple):
    """Somebody was told something, such as that a message is safe."""

    line: Mapping[str, object]


Operation: TypeAlias = Name | Rename | Unname | Write | Truncate | Sync | SyncAll | Mark
State: TypeAlias = dict[str, tuple[int, bytes] | None]
"""A tree: for each path the file's node and content, or None where there is a directory."""


# --- the disk --------------------------------------------------------------------------------------------------------


class File:
    """One file: its content, what of it is safe, and what was done to it since."""

    def __init__(self) -> None:
        self.safe = self.content = b""
        self.unsafe: list[Write | Truncate] = []

    def apply(self, operation: Write | Truncate) -> None:
        """Change the content, which is not safe yet."""
        self.unsafe.append(operation)
        self.content = _changed(self.content, operation)

    def sync(self) -> None:
        """The content is safe."""
        self.safe = self.content
        self.unsafe.clear()

    def telling(self) -> list[bytes]:
        """The contents after a cut at which most mistakes show: all, nothing, no data, a part, a hole, each step."""
        if not self.unsafe:
            return [self.content]
        size = len(self.content)
        left = [self.safe, self.content, self._mixed(size, lambda _: False)]
        left += [self._mixed((shorter + longer) // 2, lambda _: True) for shorter, longer in self._ends()]
        left.append(self._mixed(size, lambda sector: sector % 2 == 0))
        left.append(self._mixed(size, lambda sector: sector % 2 == 1))
        return list(dict.fromkeys([*left, *self._steps()]))

    def any(self, chance: random.Random) -> bytes:
        """Any content that there may be after a cut."""
        if not self.unsafe:
            return self.content
        shorter, longer = chance.choice(self._ends())
        length = chance.choice((shorter, longer, chance.randint(shorter, longer)))
        share = chance.choice((0.0, 0.2, 0.5, 0.8, 1.0, 1.0))
        return self._mixed(length, lambda _: chance.random() < share)

    def _steps(self) -> list[bytes]:
        steps = [self.safe]
        for operation in self.unsafe:
            steps.append(_changed(steps[-1], operation))
        return steps

    def _ends(self) -> list[tuple[int, int]]:
        """From where to where the file's end may be: a write moves it byte by byte, a truncation in one step."""
        ends = [(len(self.safe), len(self.safe))]
        for operation, step in zip(self.unsafe, self._steps()[1:], strict=True):
            begin = ends[-1][1] if isinstance(operation, Write) else len(step)
            ends.append((begin, len(step)))
        return ends

    def _mixed(self, length: int, is_new: Callable[[int], bool]) -> bytes:
        """The file of this length, each sector as it was or as it is."""
        longest = max(self._steps(), key=len)
        new = self.content + longest[len(self.content) :]
        mixed = bytearray(self.safe[:length].ljust(length, b"\0"))
        for start in range(0, length, SECTOR):
            if is_new(start // SECTOR):
                mixed[start : start + SECTOR] = new[start : min(start + SECTOR, length)]
        return bytes(mixed)


class Folder:
    """One directory: its names, which of them are safe, and what was done to it since."""

    def __init__(self) -> None:
        self.safe: dict[str, int] = {}
        self.names: dict[str, int] = {}
        self.unsafe: list[Name | Rename | Unname] = []

    def apply(self, operation: Name | Rename | Unname) -> None:
        """Change the names, which are not safe yet."""
        self.unsafe.append(operation)
        _rename(self.names, operation)

    def sync(self) -> None:
        """The names are safe."""
        self.safe = dict(self.names)
        self.unsafe.clear()

    def after(self, number: int) -> dict[str, int]:
        """The names after a cut that left so many of the unsafe operations."""
        names = dict(self.safe)
        for operation in self.unsafe[:number]:
            _rename(names, operation)
        return names


class Disk:
    """One directory on it, with everything below."""

    def __init__(self) -> None:
        self.nodes: dict[int, File | Folder] = {ROOT: Folder()}

    @classmethod
    def holding(cls, state: State) -> Disk:
        """A disk on which a tree is, and is safe."""
        disk = cls()
        places = {".": ROOT}
        number = max((file[0] for file in state.values() if file is not None), default=ROOT)
        for path in sorted(state, key=lambda path: path.count("/")):
            file = state[path]
            if file is None:
                number += 1
            places[path] = number if file is None else file[0]
            parent, _, name = path.rpartition("/")
            disk.apply(Name(places[parent or "."], name, places[path], is_directory=file is None))
            if file is not None and not disk.file(file[0]).content:
                disk.apply(Write(file[0], 0, file[1]))
        disk.apply(SyncAll())
        return disk

    def folder(self, node: int) -> Folder:
        """A directory."""
        found = self.nodes[node]
        assert isinstance(found, Folder)
        return found

    def file(self, node: int) -> File:
        """A file."""
        found = self.nodes[node]
        assert isinstance(found, File)
        return found

    def apply(self, operation: Operation) -> None:
        """Do what was done."""
        match operation:
            case Name(directory, _, node, is_directory):
                self.nodes.setdefault(node, Folder() if is_directory else File())
                self.folder(directory).apply(operation)
            case Rename() | Unname():
                self.folder(operation.directory).apply(operation)
            case Write() | Truncate():
                self.file(operation.node).apply(operation)
            case Sync(node):
                self.nodes[node].sync()
            case SyncAll():
                for one in self.nodes.values():
                    one.sync()

    # --- what a cut leaves -------------------------------------------------------------------------------------------

    def now(self) -> State:
        """What everybody sees: a crash of the process alone leaves this."""
        return self._state(_all_names, _all_data)

    def telling(self) -> Iterator[State]:
        """The states at which most mistakes show: names without data, data without names, and both or neither."""
        for names in (_all_names, _no_names):
            for number in range(4):
                yield self._state(names, partial(_telling_data, number))

    def every(self) -> Iterator[State]:
        """Every state, but for the lengths and sectors of files, of which `File.telling` stands for all."""
        reached = self._nodes_in_reach()
        folders = [node for node in reached if isinstance(node, Folder)]
        files = [node for node in reached if isinstance(node, File)]
        for numbers in product(*(range(len(folder.unsafe) + 1) for folder in folders)):
            for data in product(*(file.telling() for file in files)):
                left, held = dict(zip(folders, numbers, strict=True)), dict(zip(files, data, strict=True))
                yield self._state(left.__getitem__, held.__getitem__)

    def any(self, chance: random.Random) -> State:
        """Any state, by chance."""
        return self._state(
            lambda folder: chance.choice((0, len(folder.unsafe), chance.randint(0, len(folder.unsafe)))),
            lambda file: chance.choice((file.any(chance), chance.choice(file.telling()))),
        )

    def _nodes_in_reach(self) -> list[File | Folder]:
        """Those that have, had or may have a name."""
        reached, waiting = {ROOT}, [ROOT]
        while waiting:
            one = self.nodes[waiting.pop()]
            if isinstance(one, Folder):
                unsafe = (operation.node for operation in one.unsafe if isinstance(operation, Name))
                found = {*one.safe.values(), *unsafe} - reached
                reached |= found
                waiting += found
        return [self.nodes[node] for node in sorted(reached)]

    def _state(self, names: Callable[[Folder], int], data: Callable[[File], bytes]) -> State:
        state: State = {}
        held: dict[int, bytes] = {}
        waiting = [("", ROOT)]
        while waiting:
            path, number = waiting.pop()
            folder = self.folder(number)
            found = sorted(folder.after(names(folder)).items(), key=itemgetter(1))  # a seed repeats nodes, not names
            for name, node in found:
                one = self.nodes[node]
                if isinstance(one, Folder):
                    state[path + name] = None
                    waiting.append((f"{path}{name}/", node))
                else:
                    if node not in held:  # a file with two names has one content
                        held[node] = data(one)
                    state[path + name] = (node, held[node])
        return state


def _all_names(folder: Folder) -> int:
    return len(folder.unsafe)


def _no_names(_: Folder) -> int:
    return 0


def _all_data(file: File) -> bytes:
    return file.content


def _telling_data(number: int, file: File) -> bytes:
    telling = file.telling()
    return telling[number % len(telling)]


def _rename(names: dict[str, int], operation: Name | Rename | Unname) -> None:
    match operation:
        case Name(_, name, node):
            names[name] = node
        case Rename(_, name, new_name):
            names[new_name] = names.pop(name)
        case Unname(_, name):
            del names[name]


def _changed(content: bytes, operation: Write | Truncate) -> bytes:
    if isinstance(operation, Truncate):
        return content[: operation.length].ljust(operation.length, b"\0")
    _, offset, data = operation
    return content[:offset].ljust(offset, b"\0") + data + content[offset + len(data) :]


# --- trees of files --------------------------------------------------------------------------------------------------


def read_state(path: Path) -> State:
    """The tree that a directory holds."""
    state: State = {}
    nodes: dict[int, int] = {}
    for found in sorted(path.rglob("*")):
        name = found.relative_to(path).as_posix()
        if found.is_dir():
            state[name] = None
        else:
            node = nodes.setdefault(found.stat().st_ino, len(nodes) + 1)
            state[name] = (node, found.read_bytes())
    return state


def write_state(state: State, path: Path) -> None:
    """Make a directory that holds a tree."""
    path.mkdir(mode=0o700)
    first: dict[int, Path] = {}
    for name in sorted(state, key=lambda name: name.count("/")):
        file, place = state[name], path / name
        if file is None:
            place.mkdir(mode=0o700)
        elif file[0] in first:
            place.hardlink_to(first[file[0]])
        else:
            place.touch(mode=0o600)
            place.write_bytes(file[1])
            first[file[0]] = place


def contents(state: State) -> frozenset[tuple[str, bytes | None]]:
    """What tells two trees apart."""
    return frozenset((path, file if file is None else file[1]) for path, file in state.items())


def disk_after(start: State, operations: Iterable[Operation]) -> Disk:
    """A disk on which a tree was safe, and then something was done."""
    disk = Disk.holding(start)
    for operation in operations:
        disk.apply(operation)
    return disk
