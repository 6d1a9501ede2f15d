"""The folder of an instance: who runs it, and what it looks like from outside.

`<root>/<namespace>-<name>/` holds `lock` (the owner; flocked by it and by its janitor, so that the name is free only
when all is clean), `instance.json` (for `ps`, `logs`, `down`), `endpoints.json` (for the router), `pods/`, `logs/`.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import secrets
import stat
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from kvferry_operator.local import janitor, proc, volumes
from kvferry_operator.local.errors import AlreadyRunning, CannotStart
from kvferry_operator.local.record import Record

_LOCK, _RECORD, _ENDPOINTS = "lock", "instance.json", "endpoints.json"
_CLEANING_SECONDS = 15.0
"""For the janitor of an instance whose supervisor was killed."""
_PAUSE_SECONDS = 0.05


def root(host: Mapping[str, str], user: int) -> Path:
    """Where this user's instances live: their own runtime folder, else one in /tmp."""
    runtime = host.get("XDG_RUNTIME_DIR", "")
    return Path(runtime) / "kvferry" if runtime else Path("/tmp") / f"kvferry-{user}"  # noqa: S108 (owner is checked)


@dataclass(frozen=True, slots=True)
class Owner:
    """Who holds an instance: the supervisor, the mark of its processes, and its folder in memory."""

    pid: int
    start: int
    run: str
    memory: str

    @property
    def process(self) -> proc.Identity:
        return proc.Identity(self.pid, self.start)


@dataclass(frozen=True, slots=True)
class Claim:
    """A held instance. descriptor: of the lock; whoever keeps it open keeps the name."""

    folder: Path
    memory: Path
    run: str
    descriptor: int

    @property
    def record(self) -> Path:
        return self.folder / _RECORD

    @property
    def endpoints(self) -> Path:
        return self.folder / _ENDPOINTS

    def release(self) -> None:
        """Give up our hold; the janitor's lasts until it has cleaned up."""
        with contextlib.suppress(OSError):
            os.close(self.descriptor)


def claim(base: Path, instance: str, way_out: str, memory: Path = volumes.MEMORY) -> Claim:
    """Take the instance's folder, and clean up what a crash of the whole machine may have left in it.

    way_out: what a user can do when another process has it.

    Raises:
        AlreadyRunning: another process has it; the message names its pid and the way out.
        CannotStart: the folder cannot be made, or belongs to somebody else.
    """
    folder = base / instance
    deadline = time.monotonic() + _CLEANING_SECONDS
    while True:
        _make(base)
        descriptor = _lock(folder)
        if descriptor is not None:
            break
        owner = owner_of(folder)
        if owner is not None and proc.alive(owner.process):
            raise AlreadyRunning(f"{instance} is already running (pid {owner.pid}): {way_out}")
        if time.monotonic() > deadline:
            raise AlreadyRunning(f"{instance} is still being cleaned up after {_CLEANING_SECONDS:.0f} s: {folder}")
        time.sleep(_PAUSE_SECONDS)  # a lock has no event that tells of its release
    stale = owner_of(folder)
    if stale is not None:
        janitor.sweep(stale.run, [], [Path(stale.memory)])
        _empty(folder)
    run = secrets.token_hex(8)
    _make(memory / f"kvferry-{os.getuid()}")
    place = memory / f"kvferry-{os.getuid()}" / hashlib.sha256(str(folder).encode()).hexdigest()[:8]
    own = proc.identity(os.getpid())
    assert own is not None, "this process runs"
    owner = Owner(own.pid, own.start, run, str(place))
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, json.dumps(asdict(owner)).encode(), 0)
    return Claim(folder, place, run, descriptor)


def owner_of(folder: Path) -> Owner | None:
    """Who holds or held the instance; None when nobody did, or is only just taking it."""
    try:
        return Owner(**json.loads((folder / _LOCK).read_bytes()))
    except (OSError, ValueError, TypeError):
        return None


def held(folder: Path) -> bool:
    """Whether a supervisor or its janitor has the instance."""
    try:
        descriptor = os.open(folder / _LOCK, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def instances(base: Path) -> Iterator[Path]:
    """Folders of all instances of this user, by name.

    Raises:
        CannotStart: `base` belongs to somebody else, whose files are not to be believed: they name what is removed.
    """
    with contextlib.suppress(FileNotFoundError):
        _check_own(base)
        yield from sorted(folder for folder in base.iterdir() if (folder / _LOCK).exists())


def read_record(folder: Path) -> Record | None:
    """What the instance looked like when it last changed; None before that was first written."""
    try:
        return Record.from_json((folder / _RECORD).read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return None


def replace(path: Path, text: str) -> None:
    """Write a file as a whole, so that a reader sees the old text or the new one."""
    fresh = path.with_name(f".{path.name}.new")
    fresh.write_text(text, encoding="utf-8")
    fresh.replace(path)


def remove(folder: Path, owner: Owner) -> None:
    """Clean up an instance that nobody holds any more."""
    janitor.sweep(owner.run, [], [Path(owner.memory), folder])


def _make(folder: Path) -> None:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        _check_own(folder)
    except OSError as error:
        raise CannotStart(
            f"{folder} cannot be made: {error.strerror}; set XDG_RUNTIME_DIR to a folder of yours"
        ) from error


def _check_own(folder: Path) -> None:
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise CannotStart(
            f"{folder} is not a folder of this user: remove it, or set XDG_RUNTIME_DIR to a folder of yours"
        )


def _lock(folder: Path) -> int | None:
    """A descriptor that holds the lock; None when another has it, or has just removed the folder."""
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        descriptor = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.stat(folder / _LOCK).st_ino == os.fstat(descriptor).st_ino:  # noqa: PTH116 (beside fstat)
            return descriptor
    except OSError as error:
        if error.errno not in (errno.EWOULDBLOCK, errno.ENOENT):
            os.close(descriptor)
            raise
    os.close(descriptor)
    return None


def _empty(folder: Path) -> None:
    for entry in folder.iterdir():
        if entry.name == _LOCK:
            continue
        if entry.is_dir() and not entry.is_symlink():
            janitor.remove(entry)
        else:
            entry.unlink(missing_ok=True)
