"""`kvferry plan` and `kvferry validate` as a person at a terminal meets them."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
import yaml

import builders
import crd_schema
from kvferry_operator.cli import documents, plan, validate
from kvferry_operator.cli.main import exit_code

Captured = pytest.CaptureFixture[str]


def kvferry(*arguments: str) -> int:
    """Run one of the two commands through the parser and the error handling of the program."""
    import argparse

    parser = argparse.ArgumentParser(prog="kvferry")
    subparsers = parser.add_subparsers(dest="command")
    plan.add_parser(subparsers)
    validate.add_parser(subparsers)
    args = parser.parse_args(arguments)
    return exit_code(args)


def write(folder: Path, *objects: object) -> str:
    file = folder / "model.yaml"
    file.write_text(yaml.safe_dump_all(objects))
    return str(file)


@pytest.mark.parametrize("example", crd_schema.EXAMPLES, ids=lambda path: path.stem)
def test_every_example_is_valid(example: Path, capsys: Captured) -> None:
    assert kvferry("validate", "-f", str(example)) == 0
    assert capsys.readouterr().out.endswith(": valid\n")


def test_errors_come_one_a_line(tmp_path: Path, capsys: Captured) -> None:
    file = write(tmp_path, builders.raw({"decode.replicas": -1, "transfer.transprt": "tcp"}))
    assert kvferry("validate", "-f", file) == 2
    assert capsys.readouterr().err.splitlines() == [
        "spec.decode.replicas: must be at least 0, found -1",
        "spec.transfer.transprt: unknown field; did you mean transport?",
    ]


def test_clashes_of_templates_are_found_too(tmp_path: Path, capsys: Captured) -> None:
    file = write(tmp_path, builders.raw({"decode.template": {"spec": {"restartPolicy": "Never"}}}))
    assert kvferry("validate", "-f", file) == 2
    assert capsys.readouterr().err.startswith("spec.decode.template.spec.restartPolicy: must be Always")


def test_of_several_objects_each_tells_what_is_wrong_with_it(tmp_path: Path, capsys: Captured) -> None:
    clash = {"decode.template": {"spec": {"restartPolicy": "Never"}}}
    models = [builders.raw(clash, name=name) for name in ("one", "two")]
    file = write(tmp_path, *models, builders.raw({"decode.replicas": -1}, name="three"))
    assert kvferry("validate", "-f", file) == 2
    assert [line.partition(":")[0] for line in capsys.readouterr().err.splitlines()] == ["one", "two", "three"]


def test_with_several_objects_errors_name_theirs(tmp_path: Path, capsys: Captured) -> None:
    file = write(
        tmp_path, builders.raw(name="good"), builders.raw({"decode.replicas": -1}, name="bad"), {"kind": "Pod"}
    )
    assert kvferry("validate", "-f", file) == 2
    assert capsys.readouterr().err == "bad: spec.decode.replicas: must be at least 0, found -1\n"


def test_with_several_files_errors_name_theirs(tmp_path: Path, capsys: Captured) -> None:
    files = []
    for name, method in (("good", "none"), ("bad", "zip"), ("worse", "fp4")):
        (tmp_path / name).mkdir()
        files.append(write(tmp_path / name, builders.raw({"transfer.compression.method": method})))
    assert kvferry("validate", "-f", *files) == 2
    lines = capsys.readouterr().err
    assert f"{files[1]}: spec.transfer.compression.method" in lines
    assert f"{files[2]}: spec.transfer.compression" in lines
    assert files[0] not in lines


@pytest.mark.parametrize("command", ["validate", "plan"])
@pytest.mark.parametrize("form", [["-f", "{0}", "{1}"], ["-f", "{0}", "-f", "{1}"]], ids=["one -f", "-f repeated"])
def test_all_files_that_are_named_are_read(command: str, form: list[str], tmp_path: Path, capsys: Captured) -> None:
    files = []
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        files.append(write(tmp_path / name, builders.raw(name=name)))
    assert kvferry(command, *(part.format(*files) for part in form)) == 0
    shown = capsys.readouterr().out
    assert "first" in shown and "second" in shown


def test_a_file_that_cannot_be_read_hides_no_error_of_another(tmp_path: Path, capsys: Captured) -> None:
    bad = write(tmp_path, builders.raw({"decode.replicas": -1}))
    missing = str(tmp_path / "nothing.yaml")
    assert kvferry("validate", "-f", missing, bad, str(tmp_path)) == 2
    shown = capsys.readouterr()
    assert not shown.out
    first, second, third = shown.err.splitlines()
    assert first == f"kvferry validate: {missing}: no such file"
    assert second == f"{bad}: spec.decode.replicas: must be at least 0, found -1"
    assert third.endswith("is a folder; name a file in it")


@pytest.mark.parametrize("command", ["validate", "plan"])
def test_a_model_that_nothing_serves_yet_is_warned_of(command: str, tmp_path: Path, capsys: Captured) -> None:
    file = write(tmp_path, builders.raw(name="good"), builders.raw({"engine.type": "vllm"}, name="other"))
    assert kvferry(command, "-f", file) == 0
    assert capsys.readouterr().err.splitlines() == [
        "warning: other: spec.engine.type vllm is rendered, not served yet: its connector is not built"
    ]


def test_a_list_is_read_like_its_items(tmp_path: Path, capsys: Captured) -> None:
    items = [builders.raw(name="one"), {"kind": "Pod"}, builders.raw(name="two")]
    file = write(tmp_path, {"apiVersion": "v1", "kind": "List", "items": items}, builders.raw(name="three"))
    assert kvferry("validate", "-f", file) == 0
    assert capsys.readouterr().out.splitlines() == ["one: valid", "two: valid", "three: valid"]


def test_lists_within_lists_are_read_too(tmp_path: Path, capsys: Captured) -> None:
    inner = {"kind": "DisaggregatedModelList", "items": [builders.raw({"decode.replicas": -1}, name="bad")]}
    file = write(tmp_path, {"apiVersion": "v1", "kind": "List", "items": [inner]}, builders.raw(name="good"))
    assert kvferry("validate", "-f", file) == 2
    assert capsys.readouterr().err.startswith("bad: spec.decode.replicas")


def test_a_list_that_holds_itself_ends(tmp_path: Path, capsys: Captured) -> None:
    file = tmp_path / "model.yaml"
    file.write_text("&list\nkind: List\nitems: [*list]\n---\n" + yaml.safe_dump(builders.raw()))
    assert kvferry("validate", "-f", str(file)) == 0
    assert capsys.readouterr().out == "tiny: valid\n"


def test_an_empty_list_holds_no_model(tmp_path: Path, capsys: Captured) -> None:
    file = write(tmp_path, {"apiVersion": "v1", "kind": "List", "items": None})
    assert kvferry("validate", "-f", file) == 2
    assert "holds no DisaggregatedModel, found no object at all" in capsys.readouterr().err


def test_a_misspelt_kind_is_refused_also_beside_a_right_one(tmp_path: Path, capsys: Captured) -> None:
    misspelt = {**builders.raw(name="bad"), "kind": "DisagregatedModel"}
    assert kvferry("validate", "-f", write(tmp_path, misspelt)) == 2
    assert kvferry("validate", "-f", write(tmp_path, builders.raw(), misspelt)) == 2
    alone, beside = capsys.readouterr().err.splitlines()
    assert alone.endswith("holds no DisaggregatedModel, found DisagregatedModel; did you mean DisaggregatedModel?")
    assert beside.endswith(
        "kvferry.io has DisaggregatedModel only, found DisagregatedModel; did you mean DisaggregatedModel?"
    )


def test_keys_that_a_merge_brings_may_be_set_again(tmp_path: Path, capsys: Captured) -> None:
    file = tmp_path / "model.yaml"
    file.write_text(
        yaml.safe_dump(builders.raw()) + "---\nbase: &base {a: 1}\nmore: &more {<<: *base, a: 2}\nlast: *more\n"
        "both: {<<: *base, <<: *more}\n"
    )
    assert kvferry("validate", "-f", str(file)) == 0
    assert capsys.readouterr().out == "tiny: valid\n"


def test_standard_input_is_read(monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(yaml.safe_dump(builders.raw()).encode())))
    assert kvferry("validate", "-f", "-") == 0
    assert capsys.readouterr().out == "tiny: valid\n"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "not YAML at line 1"),
        ("kind: Pod\n", "holds no DisaggregatedModel, found Pod"),
        ("", "found no object at all"),
        ("just text\n", "found no object at all"),
        (b"\xff\xfe\x00\x01", "not"),
        ("a: \x00\n", "not YAML"),
        ('a: !!int ""\n', "not YAML"),
        ("a: !!bool x\n", "not YAML"),
        ("a: !!timestamp x\n", "not YAML"),
        ("kind: Pod\nspec:\n  a: 1\n  b: 2\n  a: 1\n", "line 5, column 3: key a appears twice, first in line 3"),
        ('{"kind": "Pod", "kind": "Pod"}', "line 1, column 17: key kind appears twice, first in line 1"),
    ],
)
def test_an_unusable_file_is_one_clear_line(
    content: str | bytes, message: str, tmp_path: Path, capsys: Captured
) -> None:
    file = tmp_path / "model.yaml"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    assert kvferry("validate", "-f", str(file)) == 2
    shown = capsys.readouterr().err
    assert message in shown and str(file) in shown and len(shown.splitlines()) == 1


def test_a_missing_file_and_a_folder_are_named(tmp_path: Path, capsys: Captured) -> None:
    assert kvferry("plan", "-f", str(tmp_path / "nothing.yaml")) == 2
    assert kvferry("plan", "-f", str(tmp_path)) == 2
    first, second = capsys.readouterr().err.splitlines()
    assert first.endswith("nothing.yaml: no such file") and second.endswith("is a folder; name a file in it")


def test_plan_prints_objects_that_can_be_applied(tmp_path: Path, capsys: Captured) -> None:
    file = write(tmp_path, builders.raw())
    assert kvferry("plan", "-f", file) == 0
    as_yaml = list(yaml.safe_load_all(capsys.readouterr().out))
    assert kvferry("plan", "-f", file, "-o", "json") == 0
    as_json = json.loads(capsys.readouterr().out)
    assert as_json["kind"] == "List" and as_json["items"] == as_yaml
    assert {"StatefulSet", "Deployment", "Service", "ConfigMap"} <= {item["kind"] for item in as_yaml}


def test_a_part_that_occurs_twice_is_written_twice() -> None:
    part = {"a": 1}
    assert "&" not in documents.dump_yaml([{"x": part, "y": part}])


def test_a_file_larger_than_any_object_is_refused(tmp_path: Path, capsys: Captured) -> None:
    file = tmp_path / "large.yaml"
    file.write_bytes(b" " * (documents.MAX_BYTES + 1))
    assert kvferry("validate", "-f", str(file)) == 2
    assert "larger than" in capsys.readouterr().err
