"""Where the figures of a benchmark go: JSON lines as they come, and a table at the end."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from types import FrameType
from typing import IO

from kvferry_runtime.bench import figures
from kvferry_runtime.bench.figures import Figure
from kvferry_runtime.errors import SettingsError


def report(found: Iterable[Figure], path: Path | None) -> None:
    """Print a table; also write one JSON object for each figure into the file, if one was named.

    Raises:
        SettingsError: the file cannot be written.
        KvferryError: what the measurement raises; the lines written until then stay.
    """
    kept: list[Figure] = []
    with _lines(path) as file, _ended_in_order():
        for figure in found:
            kept.append(figure)
            if file is not None:
                file.write(figure.line() + "\n")
                file.flush()
    sys.stdout.write(figures.table(kept) + "\n")


def progress(step: str) -> None:
    """Tell a person what is being measured."""
    sys.stderr.write(f"… {step}\n")
    sys.stderr.flush()


@contextmanager
def _ended_in_order() -> Iterator[None]:
    """SIGTERM ends a benchmark like Ctrl-C does: by its own clean-up of processes, files and networks."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _lines(path: Path | None) -> AbstractContextManager[IO[str] | None]:
    if path is None:
        return nullcontext()
    try:
        return path.open("w", encoding="utf-8")
    except OSError as error:
        raise SettingsError(f"cannot write {path}: {error.strerror}") from error
