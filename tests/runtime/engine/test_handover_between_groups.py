"""Prefill by so many stages, decode by as many others: the answers of one engine, and no block lost at any stage."""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import reference_engines as engines
import tiny_model
from kv_settings import transfer_config
from kvferry_contract.config import FailurePolicy, Method, Role
from kvferry_contract.split import Split
from kvferry_runtime.agent.loopback import Loopback
from kvferry_runtime.codec.sparse.budget import SPARSE50, Budget
from kvferry_runtime.engine.reference.engine import Engine
from kvferry_runtime.engine.reference.request import Mode
from kvferry_runtime.errors import Reason
from reference_engines import Completion, until
from stage_groups import Group, loopback_agents
from tiny_model import prompt_of

HALF = Budget(SPARSE50, 16, 64)
THREE, TWO = Split(3), Split(2)
LENGTHS = (1, 16, 512, 700, 1100)
SPLITS = [
    (Split(2), Split(1)), (Split(1), Split(2)), (Split(2), Split(2)), (Split(3), Split(2)), (Split(2), Split(3)),
    (Split(3, (1, 3, 1)), Split(4)), (Split(5), Split(2, (4, 1))),
]  # fmt: skip


class Sides:
    """A prefill and a decode side, each of one stage or more, over one loopback."""

    def __init__(
        self, folder: Path, prefill: Split, decode: Split, budget: Budget | None = None, **changes: Any
    ) -> None:
        self.fabric = Loopback()
        self._stages = prefill.stages
        self.prefill = self._side(folder, prefill, budget, role=Role.PREFILL, peer_split=decode, **changes)
        self.decode = self._side(folder, decode, budget, role=Role.DECODE, peer_split=prefill, **changes)

    def _side(self, folder: Path, split: Split, budget: Budget | None, **changes: Any) -> Group:
        return Group(folder, split, loopback_agents(self.fabric, split, budget=budget), **changes)

    def params(self, number: int, role: str, **fields: Any) -> dict[str, Any]:
        return engines.transfer(number, role, prefill_stages=self._stages, **fields)

    async def ask(self, number: int, prompt: list[int], **fields: Any) -> tuple[Completion, Completion]:
        """What the router does: both at the same time, one transfer id."""
        first = {**fields, "max_tokens": 1, "kv_transfer_params": self.params(number, "prefill")}
        return await asyncio.gather(
            engines.complete(self.prefill.engine, prompt, **first),
            engines.complete(self.decode.engine, prompt, **fields, kv_transfer_params=self.params(number, "decode")),
        )

    @property
    def free(self) -> bool:
        return self.prefill.free and self.decode.free

    def close(self) -> None:
        self.prefill.close()
        self.decode.close()
        self.fabric.close()


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model.make(tmp_path_factory.mktemp("handover") / "layers", layers=5, dtype="bfloat16")


@pytest.fixture
def make_sides(folder: Path) -> Iterator[Callable[..., Sides]]:
    made: list[Sides] = []

    def make(prefill: Split = THREE, decode: Split = TWO, **changes: Any) -> Sides:
        made.append(Sides(folder, prefill, decode, **changes))
        return made[-1]

    yield make
    for sides in made:
        sides.close()


@pytest.mark.parametrize(("prefill", "decode"), SPLITS, ids=str)
async def test_answers_are_those_of_one_engine(make_sides, alone: Engine, prefill: Split, decode: Split) -> None:
    """Case 36: each stage's layers go to whichever stages hold them, by their global number."""
    sides = make_sides(prefill, decode)
    sampling = {"temperature": 1.0, "top_p": 0.95, "seed": 11}
    expected = [await engines.complete(alone, prompt_of(length), **sampling) for length in LENGTHS]
    found = await asyncio.gather(*(sides.ask(length, prompt_of(length), **sampling) for length in LENGTHS))
    for length, (first, rest), whole in zip(LENGTHS, found, expected, strict=True):
        assert (rest.tokens, rest.text) == (whole.tokens, whole.text)
        assert first.tokens == whole.tokens[:1]
        assert (rest.end.mode, rest.end.cached_tokens) == (Mode.TRANSFERRED, length)
        # every layer once: 5 layers, K and V, 2 heads of 16 values, 2 bytes each
        assert rest.end.transfer.raw_bytes == length * 5 * 2 * 2 * 16 * 2
    await until(lambda: sides.free)


async def test_one_stage_s_failure_is_the_whole_request_s(make_sides, alone: Engine) -> None:
    sides = make_sides()
    prompt = prompt_of(700)
    expected = await engines.complete(alone, prompt)
    agent = sides.decode.agents[1]

    def fails(params, memory, start, stop, on_done):
        fetch = type(agent).fetch(agent, params, memory, start, stop, on_done)
        fetch.cancel("asked for by the test")
        return fetch

    agent.fetch = fails
    first, rest = await sides.ask(1, prompt)
    assert rest.tokens == expected.tokens
    assert (rest.end.mode, rest.end.why) == (Mode.RECOMPUTED, Reason.CANCELLED)
    assert first.tokens == expected.tokens[:1]
    # prefill's offers were not fetched whole: their blocks come back when that is known
    sides.prefill.engine.loop.withdraw(sides.params(1, "prefill")["transfer_id"])
    await until(lambda: sides.free)


@pytest.mark.parametrize("reason", [Reason.PEER_LOST, Reason.CORRUPT])
@pytest.mark.parametrize("policy", [FailurePolicy.RECOMPUTE, FailurePolicy.FAIL])
async def test_the_failure_policy_holds_for_groups(
    make_sides, alone: Engine, policy: FailurePolicy, reason: Reason
) -> None:
    sides = make_sides(failure_policy=policy)
    prompt = prompt_of(1100)
    expected = await engines.complete(alone, prompt)
    sides.fabric.fail(reason)
    first, rest = await sides.ask(1, prompt)
    assert first.tokens == expected.tokens[:1]
    if policy is FailurePolicy.FAIL:
        assert (rest.failed.status, rest.failed.code) == (502, reason)
        assert "stage " in rest.failed.message
    else:
        assert rest.tokens == expected.tokens
        assert (rest.end.mode, rest.end.why) == (Mode.RECOMPUTED, reason)
    await until(lambda: sides.free)


async def test_an_unknown_transfer_ends_by_its_deadline(make_sides) -> None:
    """Case 41."""
    sides = make_sides(failure_policy=FailurePolicy.FAIL)
    params = sides.params(9, "decode", deadline_ms=1000)
    rest = await engines.complete(sides.decode.engine, prompt_of(50), kv_transfer_params=params)
    assert rest.failed.code == Reason.DEADLINE
    await until(lambda: sides.free)


async def test_clients_that_leave_give_everything_back(make_sides) -> None:
    """Case 43."""
    sides = make_sides()
    for number in range(5):
        for group, role, length, state in (
            (sides.decode, "decode", 30, "parked"), (sides.prefill, "prefill", 2000, "prefilling"),
        ):  # fmt: skip
            params = sides.params(2 * number + (role == "prefill"), role)
            fields = {"max_tokens": 1, "kv_transfer_params": params}
            task = asyncio.create_task(engines.complete(group.engine, prompt_of(length), **fields))
            await until(lambda group=group, state=state: group.engine.loop.counts()[state] == 1)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
    await until(lambda: sides.free)
    for agent in (*sides.prefill.agents, *sides.decode.agents):
        assert (agent.state().open_sends, agent.state().open_loads) == (0, 0)
    _, rest = await sides.ask(1000, prompt_of(30))
    assert rest.end.mode is Mode.TRANSFERRED


async def test_a_withdrawn_offer_is_withdrawn_at_every_stage(make_sides) -> None:
    sides = make_sides()
    params = sides.params(1, "prefill", deadline_ms=3_600_000)
    await engines.complete(sides.prefill.engine, prompt_of(100), max_tokens=1, kv_transfer_params=params)
    assert sides.prefill.engine.loop.counts()["held"] == 1
    sides.prefill.engine.loop.withdraw(params["transfer_id"])
    await until(lambda: sides.free)


async def test_a_stage_that_cannot_take_a_request_in_fails_it_alone(make_sides) -> None:
    sides = make_sides()
    agent = sides.prefill.agents[1]
    agent.offer = lambda *_: 1 / 0
    params = sides.params(1, "prefill")
    first = await engines.complete(sides.prefill.engine, prompt_of(30), max_tokens=1, kv_transfer_params=params)
    assert first.failed.status == 500
    del agent.offer
    _, rest = await sides.ask(2, prompt_of(30))
    assert rest.end.mode is Mode.TRANSFERRED
    await until(lambda: sides.free)


async def test_sparse_transfers_keep_the_same_tokens_however_the_model_is_split(make_sides, folder: Path) -> None:
    answers = []
    for prefill, decode in ((Split(1), Split(1)), (Split(2), Split(3))):
        sides = make_sides(prefill, decode, budget=HALF, transfer=transfer_config(method=Method.SPARSE50))
        answers.append([await sides.ask(length, prompt_of(length)) for length in (16, 300, 700)])
        await until(lambda sides=sides: sides.free)
    one, other = ([rest.tokens for _, rest in pairs] for pairs in answers)
    assert one == other
