"""A recorder is bounded, may be used by several threads, and writes what it kept."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from kvferry_runtime.errors import SettingsError
from kvferry_runtime.trace import chrome
from kvferry_runtime.trace.events import Event, Phase
from kvferry_runtime.trace.recorder import Recorder, for_process


def _event(sequence: int) -> Event:
    return Event(Phase.SENT, "ab" * 16, 0, 1, 0, 16, sequence, sequence, sequence + 1)


def test_the_newest_events_stay_and_the_others_are_counted() -> None:
    recorder = Recorder("engine", capacity=10)
    for sequence in range(25):
        recorder.add(_event(sequence))
    trace = recorder.trace()
    assert [event.sequence for event in trace.events] == list(range(15, 25))
    assert trace.dropped == 15


def test_threads_lose_nothing() -> None:
    recorder = Recorder("engine", capacity=100)
    threads = [
        threading.Thread(target=lambda: [recorder.add(_event(sequence)) for sequence in range(1000)]) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    trace = recorder.trace()
    assert len(trace.events) + trace.dropped == 4000


def test_a_file_is_written_and_read_back(tmp_path: Path) -> None:
    file = tmp_path / "new" / "trace.json"
    recorder = for_process(file, "prefill engine")
    assert recorder is not None
    recorder.add(_event(1))
    recorder.write(file)
    (trace,) = chrome.load(file.read_text(), str(file))
    assert (trace.process, trace.events) == ("prefill engine", (_event(1),))


def test_without_a_file_there_is_no_recorder() -> None:
    assert for_process(None, "engine") is None


def test_a_file_that_cannot_be_written_is_told_at_start(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SettingsError, match="the trace"):
        for_process(tmp_path / "file" / "trace.json", "engine")
    with pytest.raises(SettingsError, match="Is a directory"):
        for_process(tmp_path, "engine")
