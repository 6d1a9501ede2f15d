"""Processes that a benchmark starts: in a network namespace or not, and those that answer questions by JSON lines."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from kvferry_runtime.errors import KvferryError

ANSWER_SECONDS = 120.0
STOP_SECONDS = 5.0
_LOG_TAIL = 1500


class Child:
    """A running Python module. log: where its standard error goes."""

    def __init__(self, process: subprocess.Popen[str], log: Path) -> None:
        self._process = process
        self._log = log

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(self, op: str, **arguments: Any) -> Any:
        """One line there, one line back; for modules that speak so. Raises KvferryError as `hear` does."""
        self.tell(op, **arguments)
        return self.hear(op)

    def tell(self, op: str, **arguments: Any) -> None:
        """Ask and do not wait. One that is gone is noticed by `hear`."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps({"op": op, **arguments}) + "\n")
            self._process.stdin.flush()

    def hear(self, op: str) -> Any:
        """The answer to what it was told.

        Raises:
            KvferryError: it answered with an error, died, or did not answer.
        """
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], ANSWER_SECONDS)
        line = self._process.stdout.readline() if ready else ""
        if not line:
            raise KvferryError(f"{self._log.stem} does not answer to {op!r}:\n{self.tail()}")
        answer = json.loads(line)
        if "error" in answer:
            raise KvferryError(f"{self._log.stem}, {op}: {answer['error']}\n{self.tail()}")
        return answer["result"]

    def check(self) -> None:
        """Raises KvferryError: it is over."""
        if self._process.poll() is not None:
            raise KvferryError(f"{self._log.stem} exited with {self._process.returncode}:\n{self.tail()}")

    def tail(self) -> str:
        """The end of its log."""
        return self._log.read_text(errors="replace")[-_LOG_TAIL:]


@contextmanager
def running(
    prefix: Sequence[str], arguments: Sequence[str], variables: Mapping[str, str], log: Path
) -> Iterator[Child]:
    """`python ARGUMENTS` behind a prefix (of `ip netns exec`, or nothing); ended and waited for at the end."""
    with log.open("w") as file:
        process = subprocess.Popen(  # noqa: S603
            [*prefix, sys.executable, *arguments],
            env={**os.environ, **variables},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=file,
            text=True,
        )
    try:
        yield Child(process, log)
    finally:
        _end(process)


def _end(process: subprocess.Popen[str]) -> None:
    """What it was told and has not read is lost."""
    process.terminate()
    try:
        process.communicate(timeout=STOP_SECONDS)
    except (subprocess.TimeoutExpired, ValueError):
        process.kill()
        process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None and not pipe.closed:
            pipe.close()
