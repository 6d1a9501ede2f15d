"""Numbered steps with their times, for people and as JSON lines."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from pathlib import Path


class Steps:
    """Prints each step when it begins and when it ends, and keeps its time."""

    def __init__(self, json_file: Path | None = None) -> None:
        self._json_file = json_file
        self._number = 0
        self._begun = time.monotonic()
        if json_file is not None:
            json_file.parent.mkdir(parents=True, exist_ok=True)
            json_file.write_text("")

    @contextlib.contextmanager
    def step(self, name: str, title: str) -> Iterator[None]:
        """One step. name: stable, for tools; title: for people. A step that raises is told as failed."""
        self._number += 1
        print(f"{self._number:>2}  {title} …", flush=True)
        begun = time.monotonic()
        passed = False
        try:
            yield
            passed = True
        finally:
            seconds = time.monotonic() - begun
            print(f"    {'done' if passed else 'FAILED'} after {seconds:.1f} s", flush=True)
            self._write(f"e2e.{name}", seconds, "s", passed)

    def figure(self, name: str, value: float, unit: str) -> None:
        """A figure that a step has found."""
        print(f"    {name}: {value:,.3g} {unit}", flush=True)
        self._write(f"e2e.{name}", value, unit, True)

    def total(self) -> None:
        seconds = time.monotonic() - self._begun
        print(f"all {self._number} steps in {seconds:.1f} s", flush=True)
        self._write("e2e.total", seconds, "s", True)

    def _write(self, name: str, value: float, unit: str, passed: bool) -> None:
        if self._json_file is None:
            return
        line = {"name": name, "value": round(value, 3), "unit": unit, "passed": passed}
        with self._json_file.open("a") as output:
            output.write(json.dumps(line) + "\n")
