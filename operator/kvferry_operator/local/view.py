"""What `kvferry local up` shows: a live table on a terminal, a line for each change elsewhere."""

from __future__ import annotations

import asyncio
import shutil
from collections import deque
from typing import TextIO

import aiohttp

from kvferry_operator.local import table, transfers
from kvferry_operator.local.supervisor import Supervisor
from kvferry_operator.local.usage import Meter

_REFRESH_SECONDS = 1.0
_PROGRESS_SECONDS = 5.0
_SHOWN_TRANSFERS = 8
_MAX_PENDING = 1000
_UP, _CLEAR = "\x1b[{}A", "\x1b[J"


class View:
    """Reports go through `say`; on a terminal they scroll by above the table."""

    def __init__(self, output: TextIO) -> None:
        self._output = output
        self._live = output.isatty()
        self._pending: deque[str] = deque(maxlen=_MAX_PENDING)
        self._height = 0

    def say(self, text: str) -> None:
        """One or more lines for people."""
        if self._live and self._height:
            self._pending.append(text)
        else:
            self._output.write(f"{text}\n")
            self._output.flush()

    async def run(self, supervisor: Supervisor) -> None:
        """Keep the table on the terminal up to date until cancelled, then take it away; elsewhere say now and then how
        far the start is, until all pods are ready."""
        if not self._live:
            await self._tell_progress(supervisor)
            return
        meter = Meter()
        async with aiohttp.ClientSession(trust_env=False) as session:
            try:
                while True:
                    record = supervisor.record
                    senders = [pod.address for pod in record.pods if pod.role == "prefill" and pod.ready]
                    found = await transfers.recent(session, senders, _SHOWN_TRANSFERS)
                    lines = [*filter(None, [table.groups(record)]), *table.pods(record, meter.sample())]
                    if found:
                        lines += ["", *table.transfers(found)]
                    self._draw(lines)
                    await asyncio.sleep(_REFRESH_SECONDS)
            finally:
                self._draw([])

    async def _tell_progress(self, supervisor: Supervisor) -> None:
        while True:
            await asyncio.sleep(_PROGRESS_SECONDS)
            record = supervisor.record
            if record.ready:
                return
            self.say(table.progress(record.pods))

    def _draw(self, lines: list[str]) -> None:
        """Replace the table; pending reports go above it."""
        size = shutil.get_terminal_size()
        shown = [line[: size.columns - 1] for line in lines[: size.lines - 2]]
        parts = [_UP.format(self._height) if self._height else "", "\r" + _CLEAR]
        parts += [f"{text}\n" for text in self._pending]
        parts += [f"{line}\n" for line in shown]
        self._pending.clear()
        self._height = len(shown)
        self._output.write("".join(parts))
        self._output.flush()
