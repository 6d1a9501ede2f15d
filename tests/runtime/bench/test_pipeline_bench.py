"""Two stages against one: what the figures are made of, what is left out where it cannot be measured, and tiny runs."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

import tiny_model
from kvferry_contract.split import Split
from kvferry_runtime.__main__ import main
from kvferry_runtime.bench import layouts, namespaces, pair
from kvferry_runtime.bench.pair import Transfer
from kvferry_runtime.bench.pipeline import engines, kv_links, staged_prefill
from kvferry_runtime.bench.pipeline.engines import Answer
from kvferry_runtime.bench.pods import Place
from kvferry_runtime.bench.rate import Rate, parse
from kvferry_runtime.bench.values import RequestKv
from kvferry_runtime.errors import KvferryError

RATE = parse("250mbit")


def said_nothing(_step: str) -> None: ...


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--rate", "fast"], "rate 'fast': write a number and one of"),
        (["--tokens", "0"], "--tokens 0: allowed are 1 to 16384"),
        (["--count", "101"], "--count 101: allowed are 1 to 100"),
        (["--model", "/absent"], "--model /absent: no model is there"),
    ],
)
def test_wrong_arguments(arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "pipeline", *arguments]) == 2
    assert text in capsys.readouterr().err


def test_what_cannot_be_measured_here_is_left_out_and_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {3})
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert main(["bench", "pipeline", "--json", "figures.jsonl"]) == 0
    told = capsys.readouterr()
    for part in (
        "KV over links: skipped: ip is not installed: apt-get install iproute2",
        "KV over links: skipped: network namespaces need root",
        "prefill by stages: skipped: taskset is not installed: apt-get install util-linux",
        "prefill by stages: skipped: 2 cores are needed, this process may use 1",
        "prefill by stages: skipped: no model in build/models/SmolLM2-135M-Instruct: kvferry-runtime model prepare",
    ):
        assert part in told.err
    assert told.out == "" and not (tmp_path / "figures.jsonl").exists()


def moved(asked: float, loaded: float, wire_bytes: int = 10**9) -> Transfer:
    return Transfer(wire_bytes, wire_bytes, started=0.0, asked=asked, computed=asked, loaded=loaded)


@pytest.mark.parametrize(
    ("transfers", "expected"),
    [
        ([moved(1.0, 3.0)], 2.0),
        ([moved(1.0, 3.0), moved(1.5, 2.0)], 2.0),
        ([moved(1.5, 2.0), moved(1.0, 3.5)], 2.5),
    ],
)
def test_kv_is_in_place_when_the_last_stage_has_its_part(transfers: list[Transfer], expected: float) -> None:
    """What each link's full bucket let pass at once counts as if it had taken its time, once and not for each stage."""
    at_once = RATE.bucket()[0] / RATE.bytes_per_second
    assert kv_links.until_in_place(transfers, RATE) == pytest.approx(expected + at_once)


def test_the_two_stages_hold_all_layers_and_other_values() -> None:
    first, second = (layouts.layout(layouts.SMALL, Split(2), stage) for stage in range(2))
    assert [*first.layers, *second.layers] == list(range(30))
    held = []
    for layout in (first, second):
        kv = RequestKv(layout, 16)
        kv.fill()
        assert kv.worst_error(16) == 0
        held.append(kv.memory().rows(layout.first_layer, 0, 0, 16)[0].tobytes())
    assert held[0] != held[1]


def test_kv_figure_of_links_that_each_carry_a_part(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers, setups = [], []

    class Link:
        def limit(self, rate: Rate) -> None:
            assert rate == RATE

    class Pods:
        def __init__(self, setup: pair.Setup) -> None:
            self.seconds = 1.6 / setup.split.stages - 0.1 * setup.stage

        def prepare(self, tokens: int) -> None: ...

        def check(self, tokens: int, tolerance: float) -> None:
            assert tolerance == 0.0

        def move(self, tokens: int) -> Transfer:
            return moved(10.0, 10.0 + self.seconds)

    @contextmanager
    def linked(number: int) -> Iterator[Link]:
        numbers.append(number)
        yield Link()

    @contextmanager
    def running(setup: pair.Setup, link: Link) -> Iterator[Pods]:
        setups.append((setup.split.stages, setup.stage))
        yield Pods(setup)

    monkeypatch.setattr(namespaces, "linked", linked)
    monkeypatch.setattr(pair, "running", running)
    (figure,) = kv_links.figures(kv_links.Plan(RATE, 2000, 3), said_nothing)
    at_once = RATE.bucket()[0] / RATE.bytes_per_second
    assert (numbers, setups) == ([0, 1, 2], [(1, 0), (2, 0), (2, 1)])
    assert (figure.name, figure.unit, figure.n) == ("pipeline.kv_two_links", "s", 3)
    assert figure.value == pytest.approx(0.8 + at_once) and figure.against == pytest.approx(1.6 + at_once)
    assert figure.ratio == pytest.approx(figure.value / figure.against)


class ScriptedGroup:
    """Answers like engines of so many stages; prompts: what it was given."""

    def __init__(self, stages: int, text: str) -> None:
        self.prompts: list[tuple[int, ...]] = []
        self._waits = iter([9.0, *({1: [5.0, 6.0, 5.5], 2: [3.0, 3.3, 9.0]}[stages])])
        self._text = text

    def first_token(self, prompt: Sequence[int]) -> Answer:
        self.prompts.append(tuple(prompt))
        return Answer(self._text, next(self._waits))


@pytest.fixture
def groups(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> dict[int, ScriptedGroup]:
    """Groups of scripted engines by number of stages; parameter: what each says."""
    texts: tuple[str, str] = request.param
    made = {stages: ScriptedGroup(stages, text) for stages, text in enumerate(texts, start=1)}

    @contextmanager
    def running(_model: Path, places: Sequence[Place], cores: Sequence[int]) -> Iterator[ScriptedGroup]:
        assert len(places) == len(set(cores)) == len(cores)
        yield made[len(places)]

    monkeypatch.setattr(engines, "running", running)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {2, 5, 7})
    return made


@pytest.mark.parametrize("groups", [(" a", " a")], indirect=True)
def test_prefill_figure_of_prompts_that_both_were_given(groups: dict[int, ScriptedGroup]) -> None:
    (figure,) = staged_prefill.figures(staged_prefill.Plan(Path("model"), 200, 3), said_nothing)
    assert (figure.name, figure.unit, figure.n) == ("pipeline.prefill_two_stages", "s", 3)
    assert (figure.value, figure.against, figure.ratio) == (3.3, 5.5, pytest.approx(3.3 / 5.5))
    assert groups[1].prompts == groups[2].prompts
    assert len(set(groups[1].prompts)) == 4 and {len(prompt) for prompt in groups[1].prompts} == {200}


@pytest.mark.parametrize("groups", [(" a", " b")], indirect=True)
@pytest.mark.usefixtures("groups")
def test_no_prefill_figure_where_the_tokens_differ() -> None:
    with pytest.raises(KvferryError, match="two stages answer ' b', one ' a'"):
        list(staged_prefill.figures(staged_prefill.Plan(Path("model"), 8, 1), said_nothing))


@pytest.mark.slow
def test_both_parts_with_real_processes(tmp_path: Path) -> None:
    pytest.importorskip("ucxx")
    if lacks := [*namespaces.missing(), *staged_prefill.missing()]:
        pytest.skip("; ".join(lacks))
    model, file = tiny_model.make(tmp_path / "tiny"), tmp_path / "figures.jsonl"
    arguments = ["--model", str(model), "--rate", "1gbit", "--tokens", "64", "--count", "1", "--json", str(file)]
    assert main(["bench", "pipeline", *arguments]) == 0
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [line["name"] for line in lines] == ["pipeline.kv_two_links", "pipeline.prefill_two_stages"]
    assert all(line["value"] > 0 and line["ratio"] > 0 for line in lines)
    folder = Path("/run/netns")
    assert not [path for path in folder.iterdir() if path.name.startswith(f"{namespaces.PREFIX}-{os.getpid()}-")]
