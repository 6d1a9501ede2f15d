"""Runs the tests in two halves at the same time, those of the data path and all others, for both mostly wait.

`python side_by_side.py [arguments of pytest]`. Each line says which half it is from. What pytest tells at the end,
failures first of all, comes when both are through. Exit status: see `worst`.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

TESTS = Path(__file__).parents[1]
DATA_PATH = ("gpu", "runtime")
_NO_TESTS = 5
_END = (" FAILURES ", " ERRORS ", " slowest ", " short test summary ", " warnings summary ")


class Half:
    """One pytest. Its lines are printed as they come, from its first closing section on when asked for."""

    def __init__(self, name: str, folders: Sequence[Path], arguments: Sequence[str]) -> None:
        self._name = name
        self._kept: list[str] = []
        self._process = subprocess.Popen(
            [sys.executable, "-m", "pytest", *arguments, *map(str, folders)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        self._reader = threading.Thread(target=self._read, name=name)
        self._reader.start()

    def wait(self) -> int:
        """Exit status of pytest, below zero for the signal that has ended it."""
        status = self._process.wait()
        self._reader.join()
        return status

    def interrupt(self) -> None:
        """As from a terminal: pytest ends what its tests have started."""
        self._process.send_signal(signal.SIGINT)

    def tell_end(self) -> None:
        self._print(*self._kept)

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if self._kept or (line.startswith("=") and any(title in line for title in _END)):
                self._kept.append(line)
            else:
                self._print(line)

    def _print(self, *lines: str) -> None:
        sys.stdout.write("".join(f"{self._name:7} | {line}" for line in lines))
        sys.stdout.flush()


def main(arguments: Sequence[str]) -> int:
    folders = sorted({file.relative_to(TESTS).parts[0] for file in TESTS.glob("*/**/test_*.py")})
    data = [TESTS / name for name in folders if name in DATA_PATH]
    control = [TESTS / name for name in folders if name not in DATA_PATH]
    halves = [Half("data", data, arguments), Half("control", control, arguments)]
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to the halves as well
    signal.signal(signal.SIGTERM, lambda *_: [half.interrupt() for half in halves])
    statuses = [half.wait() for half in halves]
    for half in halves:
        half.tell_end()
    return worst(statuses)


def worst(statuses: Sequence[int]) -> int:
    """Of both halves, as a shell has it: 128 and the signal for one that was ended by it, which is no success whatever
    the other says. That nothing was selected counts where it is so in all."""
    told = [128 - status if status < 0 else status for status in statuses if status != _NO_TESTS]
    return max(told, default=_NO_TESTS)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
