"""Pipeline stages as they are rendered: who finds whom, who holds which layers, and what nobody else is given."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import builders
import rendered
from builders import MISSING
from kvferry_contract.config import GroupConfig, RuntimeConfig
from kvferry_contract.split import Split
from kvferry_operator.api.types import DisaggregatedModel
from kvferry_operator.cli.documents import dump_yaml
from kvferry_operator.desired.build import build
from kvferry_operator.desired.revision import revision
from kvferry_operator.desired.stage import shares_key

GOLDEN = Path(__file__).parent / "golden" / "stages_2x3.yaml"
SPLIT: dict[str, Any] = {
    "prefill.parallelism": {"pipeline": 2},
    "decode.parallelism": {"pipeline": 3, "layers": [10, 12, 8]},
    "decode.replicas": 2,
    "placement.policy": "Preferred",
}
ALONE: dict[str, Any] = {"mode": "Aggregated", "prefill": MISSING, "decode.parallelism.pipeline": 2}


def engine(model: DisaggregatedModel, role: str = "decode", stage: int = 0) -> dict[str, Any]:
    return rendered.containers(rendered.pod(model, role, stage))["engine"]


def groups(model: DisaggregatedModel) -> dict[tuple[str, int], GroupConfig]:
    maps = rendered.of_kind(build(model, rendered.SETTINGS), "ConfigMap")
    found = [RuntimeConfig.from_json(item["data"]["config.json"]).group for item in maps]
    return {(group.role.value, group.stage): group for group in found}


def test_two_by_three_stages_render_as_recorded(update_golden: bool) -> None:
    text = dump_yaml(build(builders.model(SPLIT), rendered.SETTINGS))
    if update_golden:
        GOLDEN.write_text(text)
    assert text == GOLDEN.read_text(), "if this is wanted: pytest tests/operator/desired --update-golden"


def test_each_stage_knows_its_own_split_and_that_of_the_role_it_exchanges_kv_with() -> None:
    found = groups(builders.model(SPLIT))
    prefill, decode = Split(2), Split(3, (10, 12, 8))
    assert found.keys() == {*(("prefill", stage) for stage in range(2)), *(("decode", stage) for stage in range(3))}
    for (role, _), group in found.items():
        assert (group.split, group.peer_split) == ((prefill, decode) if role == "prefill" else (decode, prefill))


def test_without_prefill_the_only_split_is_its_own() -> None:
    found = groups(builders.model(ALONE))
    assert [group.peer_split for group in found.values()] == [Split(2), Split(2)]


def test_layers_are_part_of_the_revision() -> None:
    one, other = (
        revision(builders.model({"decode.parallelism": {"pipeline": 2, "layers": layers}}), rendered.SETTINGS)
        for layers in ([16, 14], [14, 16])
    )
    assert one != other
    left_out, empty = (
        revision(builders.model({"decode.parallelism": {"pipeline": 2, **layers}}), rendered.SETTINGS)
        for layers in ({}, {"layers": []})
    )
    assert left_out == empty


@pytest.mark.parametrize("changes", [SPLIT, ALONE], ids=["with prefill", "alone"])
def test_engines_that_are_stages_have_the_key_and_a_port_for_the_stage_before(changes: dict[str, Any]) -> None:
    model = builders.model(changes)
    for stage in range(model.spec.decode.parallelism.pipeline):
        container = engine(model, stage=stage)
        assert rendered.env(container)["KVFERRY_KEY_FILE"] == "/etc/kvferry-key/key"
        (mount,) = [item for item in container["volumeMounts"] if item["mountPath"] == "/etc/kvferry-key"]
        assert mount["readOnly"]
        volumes = rendered.pod(model, stage=stage)["spec"]["volumes"]
        (key,) = [item for item in volumes if item["name"] == mount["name"]]
        assert key["secret"]["secretName"] == "tiny-key"
        assert {"name": "stage", "containerPort": 7402, "protocol": "TCP"} in container["ports"]


def test_engines_that_are_no_stages_have_neither() -> None:
    """The sidecar alone speaks for them."""
    for model in (builders.model(), builders.model({"prefill.parallelism.pipeline": 2})):
        container = engine(model)
        assert "KVFERRY_KEY_FILE" not in rendered.env(container)
        assert not [item for item in container["volumeMounts"] if item["mountPath"] == "/etc/kvferry-key"]
        assert [port["name"] for port in container["ports"]] == ["http"]


@pytest.mark.parametrize(
    ("changes", "shared"),
    [
        ({}, True),
        (ALONE, True),
        ({"mode": "Aggregated", "prefill": MISSING}, False),
    ],
)
def test_a_key_is_made_where_any_two_pods_speak(changes: dict[str, Any], shared: bool) -> None:
    assert shares_key(builders.model(changes)) is shared


def test_the_key_of_an_engine_cannot_be_taken_away_by_a_template() -> None:
    clash = {
        "spec": {"containers": [{"name": "engine", "volumeMounts": [{"mountPath": "/etc/kvferry-key", "name": "x"}]}]}
    }
    model = builders.model({**ALONE, "decode.template": clash})
    with pytest.raises(Exception, match=r"volumeMounts\[/etc/kvferry-key\]: is set by kvferry"):
        build(model, rendered.SETTINGS)
