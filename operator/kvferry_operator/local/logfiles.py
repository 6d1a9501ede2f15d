"""The containers' log files: kept below a size, shown, followed."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

LIMIT_BYTES = 10 << 20
"""A log beyond this is moved to `<name>.log.1` and begun anew, as the kubelet does at this size."""
_CHECK_SECONDS = 2.0


class Logs:
    """The logs of one instance, all under one folder."""

    def __init__(self, folder: Path, limit_bytes: int = LIMIT_BYTES) -> None:
        self.folder = folder
        self._limit = limit_bytes
        self._files: list[Path] = []

    def add(self, file: Path) -> None:
        self._files.append(file)

    async def keep_small(self) -> None:
        """Cut logs that have grown too long, for as long as this runs."""
        while True:
            await asyncio.sleep(_CHECK_SECONDS)
            for file in self._files:
                cut(file, self._limit)


def cut(file: Path, limit_bytes: int) -> None:
    """Copy a log that is too long aside and empty it.

    The process keeps its descriptor, which appends, so it goes on at the new beginning; what it writes between
    copy and cut is lost.
    """
    try:
        if file.stat().st_size <= limit_bytes:
            return
        shutil.copyfile(file, file.with_name(f"{file.name}.1"))
        os.truncate(file, 0)
    except FileNotFoundError:
        return


def find(folder: Path, pod: str, container: str) -> list[Path]:
    """Logs whose pod's name begins with or contains `pod`, and whose container is `container`; empty means any."""
    return sorted(file for file in folder.glob("*/*.log") if pod in file.parent.name and container in ("", file.stem))


class Tail:
    """Whole lines of several logs as they come, the old ones first."""

    def __init__(self, files: Sequence[Path]) -> None:
        self._places = dict.fromkeys(files, 0)

    def read(self) -> Iterator[tuple[Path, str]]:
        """What came since the last call."""
        for file, place in self._places.items():
            self._places[file], lines = _read_on(file, place)
            yield from ((file, line) for line in lines)


def _read_on(file: Path, place: int) -> tuple[int, list[str]]:
    """The whole lines after `place`, and the place after them."""
    try:
        with file.open("rb") as log:
            if log.seek(0, os.SEEK_END) < place:
                place = 0
            log.seek(place)
            text = log.read()
    except FileNotFoundError:
        return place, []
    whole = text[: text.rfind(b"\n") + 1]
    return place + len(whole), whole.decode(errors="replace").splitlines()
