"""The small decisions of a container's life: probes, back-off, records, logs."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvferry_operator.local import logfiles, proc, table
from kvferry_operator.local.errors import CannotStart
from kvferry_operator.local.host import check_linux
from kvferry_operator.local.preflight import check_memory, check_model, check_runtime, unusable
from kvferry_operator.local.probes import Probe, Tally, TcpSocket
from kvferry_operator.local.process import exit_text
from kvferry_operator.local.record import ContainerRecord, Phase, PodRecord, Record
from kvferry_operator.local.restart import FORGIVEN_SECONDS, LONGEST_SECONDS, Backoff


@pytest.mark.parametrize(
    ("answers", "verdicts"),
    [
        ("+", "+"),
        ("+-", "++"),
        ("+---", "+++-"),
        ("+--+--", "++++++"),
        ("+---+", "+++-+"),
    ],
)
def test_a_verdict_changes_after_as_many_answers_in_a_row_as_the_probe_says(answers: str, verdicts: str) -> None:
    probe = Probe(TcpSocket("127.0.0.1", 1), 0, 1, 1, failures=3, successes=1)
    tally, found = Tally(passing=False), ""
    for answer in answers:
        tally = tally.count(answer == "+", probe)
        found += "+" if tally.passing else "-"
    assert found == verdicts


def test_early_ends_wait_longer_and_longer_and_a_long_run_is_forgiven() -> None:
    waits, backoff = [], Backoff()
    for _ in range(7):
        wait, backoff = backoff.after(ran_seconds=0.1)
        waits.append(wait)
    assert waits == [1, 2, 4, 8, 16, LONGEST_SECONDS, LONGEST_SECONDS]
    assert backoff.after(FORGIVEN_SECONDS)[0] == 1


@pytest.mark.parametrize(
    ("status", "text"),
    [(0, "exit status 0"), (-9, "killed by SIGKILL"), (-64, "killed by SIGRTMAX"), (-99, "killed by signal 99")],
)
def test_how_a_process_ended_is_said_in_words(status: int, text: str) -> None:
    assert exit_text(status) == text


def record(phase: Phase = Phase.RUNNING, ready: bool = True, note: str = "") -> Record:
    containers = (
        ContainerRecord("kvferry-sidecar", Phase.RUNNING, True, 0, 10, ""),
        ContainerRecord("engine", phase, ready, 3, 11, note),
    )
    return Record(
        "default", "m", 1, "http://127.64.0.2:8080", "/logs", (PodRecord("m-0", "decode", "127.64.0.1", containers),)
    )


def test_a_record_survives_its_file() -> None:
    assert Record.from_json(record().to_json()) == record()


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"pods": [{}]}', '{"pods": 1}'])
def test_what_is_no_record_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        Record.from_json(text)


def test_the_table_says_first_what_is_wrong() -> None:
    lines = table.pods(record(Phase.BACKOFF, False, "killed by SIGKILL"), {})
    assert lines[0].split() == ["POD", "ROLE", "ADDRESS", "READY", "STATE", "RESTARTS", "CPU", "MEMORY"]
    assert "1/2" in lines[1] and "engine: killed by SIGKILL" in lines[1]
    assert "engine starting" in table.pods(record(Phase.STARTING, False), {})[1]
    assert "2/2" in table.pods(record(), {})[1]


@pytest.mark.parametrize(
    ("transfer", "codec"),
    [
        ({"codec": "fp8", "bytes_raw": 4096, "bytes_wire": 2176}, "fp8"),
        ({"codec": "fp8", "bytes_raw": 4096, "bytes_wire": 4096}, "none"),
        ({"codec": "lossless", "bytes_raw": 4096, "bytes_wire": 4100}, "none"),
        ({"codec": "fp8", "bytes_raw": 0, "bytes_wire": 0}, "fp8"),
        ({"codec": "", "bytes_raw": 0, "bytes_wire": 0}, "-"),
    ],
)
def test_a_transfer_names_what_compressed_it_and_not_what_was_asked_for(transfer: dict[str, Any], codec: str) -> None:
    head, line = (row.split() for row in table.transfers([{"id": "ab", "state": "committed", **transfer}]))
    assert line[head.index("CODEC")] == codec


@given(count=st.floats(0, 1e15))
def test_sizes_are_short(count: float) -> None:
    assert len(table.size(count)) <= 10


def test_a_log_that_is_too_long_is_moved_aside(tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    with log.open("ab") as writer:
        writer.write(b"x" * 100)
        writer.flush()
        logfiles.cut(log, 100)
        assert log.stat().st_size == 100
        writer.write(b"y")
        writer.flush()
        logfiles.cut(log, 100)
        writer.write(b"new\n")
    assert log.read_bytes() == b"new\n"
    assert (tmp_path / "engine.log.1").read_bytes() == b"x" * 100 + b"y"
    logfiles.cut(tmp_path / "none.log", 1)


def test_a_tail_gives_whole_lines_once_and_survives_a_cut(tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    log.write_bytes(b"one\ntw")
    tail = logfiles.Tail([log, tmp_path / "none.log"])
    assert [line for _, line in tail.read()] == ["one"]
    with log.open("ab") as writer:
        writer.write(b"o\nthree\n")
    assert [line for _, line in tail.read()] == ["two", "three"]
    log.write_bytes(b"4\n")
    assert [line for _, line in tail.read()] == ["4"]


def test_a_stranger_with_a_recycled_id_is_never_killed() -> None:
    own = proc.identity(os.getpid())
    assert own is not None
    stranger = proc.Identity(own.pid, own.start - 1)
    assert not proc.alive(stranger)
    assert not proc.kill(stranger, signal.SIGKILL)
    assert proc.kill_session(stranger) == 0


def test_other_systems_are_told_so() -> None:
    with pytest.raises(CannotStart, match=r"Linux only .this is darwin."):
        check_linux("darwin")
    check_linux("linux")


def test_too_little_shared_memory_is_told_with_the_way_out() -> None:
    check_memory({"a/ring": "64Mi", "b/ring": "64Mi"}, 128 << 20)
    with pytest.raises(CannotStart, match=r"2 pods need 128 MiB of shared memory.*has 64 MiB free.*--shm-size"):
        check_memory({"a/ring": "64Mi", "b/ring": "64Mi"}, 64 << 20)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (None, "does not exist"),
        ([], "it has no config.json"),
        (["config.json"], r"it has no \*.safetensors"),
    ],
)
def test_a_missing_model_is_told_with_the_way_out(tmp_path: Path, files: list[str] | None, message: str) -> None:
    folder = tmp_path / "model"
    if files is not None:
        folder.mkdir()
        for name in files:
            (folder / name).touch()
    with pytest.raises(CannotStart, match=f"file:///models/model: .*{message}; .*--set-model PATH.*--model-dir DIR"):
        check_model(folder, "file:///models/model")


def test_a_model_with_weights_passes(tmp_path: Path) -> None:
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).touch()
    check_model(tmp_path, "file:///models/model")


@pytest.mark.parametrize(
    ("report", "why"),
    [
        ('{"transports": {"tcp": {"usable": true, "message": ""}, "rdma": {"usable": false, "message": "no"}}}', ""),
        ('{"transports": {"tcp": {"usable": false, "message": "no ucxx"}}}', "no ucxx"),
        ('{"transports": {}}', "no transport is known"),
        ("Traceback", "the probe's report cannot be read"),
        ("[]", "the probe's report cannot be read"),
    ],
)
def test_a_machine_without_any_transport_is_told_why(report: str, why: str) -> None:
    assert unusable(report) == why


def test_a_missing_runtime_is_told_with_the_way_out() -> None:
    with pytest.raises(CannotStart, match="kvferry-runtime is not installed here: pip install"):
        check_runtime("/nowhere/kvferry-runtime", {})
