"""Benches that need a network: refused arguments, clean skips, and tiny runs with real processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import tiny_model
from eventually import eventually
from kvferry_runtime.__main__ import main
from kvferry_runtime.bench import model_overlap, namespaces, output
from kvferry_runtime.bench.figures import Figure
from kvferry_runtime.bench.overlap import Plan
from kvferry_runtime.bench.peers.comparison import explain
from kvferry_runtime.bench.rate import parse
from kvferry_runtime.errors import KvferryError


@pytest.fixture
def links() -> None:
    """Skips, with the reason, where no limited links can be made."""
    if lacks := namespaces.missing():
        pytest.skip("; ".join(lacks))


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["link", "--rates", "fast"], "rate 'fast': write a number and one of"),
        (["link", "--method", "zip"], "choose of none, lossless"),
        (["overlap", "--rate", "1kbit"], "allowed are 100kbit to 100gbit"),
        (["crossover", "--rates", "1gbit"], "at least 2 different ones"),
        (["crossover", "--method", "int8,fp8"], "none among them"),
        (["crossover", "--method", "none,auto"], "auto is measured in any case"),
        (["peers", "--layer-bytes", "8MB"], "size '8MB'"),
    ],
)
def test_wrong_arguments(arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", *arguments]) == 2
    assert text in capsys.readouterr().err


@pytest.mark.parametrize("bench", ["link", "overlap", "crossover"])
def test_without_rights_or_programs_it_says_what_to_do_and_measures_nothing(
    bench: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["bench", bench, "--json", str(tmp_path / "figures.jsonl")]) == 0
    told = capsys.readouterr()
    for part in (f"bench {bench} is skipped", "apt-get install iproute2", "apt-get install iperf3", "sudo"):
        assert part in told.err
    assert told.out == "" and not (tmp_path / "figures.jsonl").exists()


def test_figures_measured_before_a_failure_stay(tmp_path: Path) -> None:
    def failing() -> object:
        yield Figure("link.1gbit", 1.0, "MB/s", 1.0, 1.0, 3)
        raise KvferryError("the link broke")

    with pytest.raises(KvferryError, match="the link broke"):
        output.report(failing(), tmp_path / "figures.jsonl")  # type: ignore[arg-type]
    assert json.loads((tmp_path / "figures.jsonl").read_text())["name"] == "link.1gbit"


@pytest.mark.parametrize(
    ("stderr", "text"),
    [
        (
            "Traceback\nImportError: libibverbs.so.1: cannot open shared object file: No such file or directory\n",
            "ImportError: libibverbs.so.1: cannot open shared object file: No such file or directory: "
            "apt-get install libibverbs1",
        ),
        ("I1129 topology\nRuntimeError: Mooncake reports status -1", "RuntimeError: Mooncake reports status -1"),
        ("killed", "killed"),
        ("", "it says nothing"),
    ],
)
def test_a_peer_that_does_not_start_is_explained(stderr: str, text: str) -> None:
    assert explain(stderr) == text


def _names(file: Path) -> list[str]:
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    for line in lines:
        assert set(line) == {"name", "value", "unit", "against", "ratio", "n"}
    return [line["name"] for line in lines]


@pytest.mark.slow
def test_overlap_on_loopback(tmp_path: Path) -> None:
    pytest.importorskip("ucxx")
    file = tmp_path / "figures.jsonl"
    assert main(["bench", "overlap", "--rate", "none", "--count", "1", "--json", str(file)]) == 0
    names = _names(file)
    assert {"overlap.transfer_s", "overlap.hidden_share", "overlap.short_prompt"} <= set(names)


@pytest.mark.slow
def test_overlap_with_a_model(tmp_path: Path) -> None:
    pytest.importorskip("ucxx")
    plan = Plan(rate=None, count=1)
    found = list(model_overlap.figures(plan, tiny_model.make(tmp_path / "tiny"), lambda _: None))
    assert [figure.name.removeprefix("overlap.model.") for figure in found] == [
        "hidden_share",
        "first_token",
        "auto_first_token",
        "short_prompt",
    ]
    assert all(figure.value >= 0 for figure in found)
    assert 0 <= found[0].value <= 1


@pytest.mark.slow
@pytest.mark.usefixtures("links")
@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (
            ["link", "--rates", "1gbit", "--method", "int8", "--seconds", "0.05"],
            {"link.limit.1gbit", "link.1gbit", "link.tokens_128", "link.tokens_1024", "link.1gbit.int8_gain"},
        ),
        (
            ["crossover", "--rates", "500mbit,1gbit", "--method", "none", "--seconds", "0.05"],
            {"crossover.500mbit.none", "crossover.1gbit.none.size", "auto.1gbit", "auto.step_down", "auto.step_up"},
        ),
    ],
)
def test_limited_links(arguments: list[str], expected: set[str], tmp_path: Path) -> None:
    pytest.importorskip("ucxx")
    file = tmp_path / "figures.jsonl"
    assert main(["bench", *arguments, "--json", str(file)]) == 0
    assert expected <= set(_names(file))
    assert not _ours(os.getpid())


@pytest.mark.slow
@pytest.mark.usefixtures("links")
def test_what_a_killed_run_left_is_removed_by_the_next() -> None:
    code = (
        "import time; from kvferry_runtime.bench import namespaces, children\n"
        "with namespaces.linked() as link:\n"
        "    import subprocess; subprocess.Popen([*link.ends[0].prefix, 'sleep', '300'])\n"
        "    print('linked', flush=True); time.sleep(300)"
    )
    killed = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert killed.stdout is not None and killed.stdout.readline() == "linked\n"
    left = _ours(killed.pid)
    assert len(left) == 2
    eventually(lambda: _pids(left[0]), "a process inside")
    inside = _pids(left[0])
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    killed.stdout.close()
    namespaces.remove_stale()
    assert not _ours(killed.pid)
    eventually(lambda: not any(_running(pid) for pid in inside), "it has ended")


@pytest.mark.slow
@pytest.mark.usefixtures("links")
def test_a_link_has_the_rate_that_it_was_given() -> None:
    with namespaces.linked() as link:
        for text in ("100mbit", "500mbit"):
            link.limit(parse(text))
            for end in link.ends:
                shown = subprocess.run(
                    ["tc", "-netns", end.name, "qdisc", "show", "dev", namespaces.DEVICE],
                    check=True, capture_output=True, text=True,
                ).stdout  # fmt: skip
                assert f"rate {text[:-4]}Mbit" in shown


def _ours(pid: int) -> list[str]:
    folder = Path("/run/netns")
    names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    return sorted(name for name in names if name.startswith(f"{namespaces.PREFIX}-{pid}-"))


def _pids(name: str) -> list[int]:
    shown = subprocess.run(["ip", "netns", "pids", name], check=True, capture_output=True, text=True).stdout
    return [int(pid) for pid in shown.split()]


def _running(pid: int) -> bool:
    """Not gone, and no zombie whose parent does not look."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
