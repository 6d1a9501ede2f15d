"""Objects in and out of files: YAML or JSON, several in one file, `-` for standard input."""

from __future__ import annotations

import argparse
import difflib
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from kvferry_operator.api import names
from kvferry_operator.api.parse import parse
from kvferry_operator.api.types import DisaggregatedModel
from kvferry_operator.cli import strict_yaml
from kvferry_operator.errors import FieldError, InputError, SpecInvalid

MAX_BYTES = 3 << 20
"""More than an API server takes in one request."""
_LISTS = ("List", f"{names.KIND}List")
_ALIKE = 0.8
"""Share of a kind's letters from which on it is taken for ours, misspelt."""


def add_filenames(parser: argparse.ArgumentParser) -> None:
    """`-f`, for commands that take several files: `-f a b`, `-f a -f b`, or both."""
    parser.add_argument(
        "-f",
        "--filename",
        required=True,
        nargs="+",
        action="extend",
        metavar="FILE",
        help="YAML or JSON; - is standard input",
    )


def read_models(
    name: str, check: Callable[[DisaggregatedModel], object] = lambda _model: None
) -> tuple[DisaggregatedModel, ...]:
    """Every DisaggregatedModel in a file, at least one. Documents of other kinds are left alone, if they are YAML.

    check: called for each of them; raises SpecInvalid for one that is refused.

    Raises:
        InputError: as `read_objects`.
        SpecInvalid: any object is refused; with several in the file, each path starts with the object's name.
    """
    objects = read_objects(name)
    errors: list[FieldError] = []
    models = []
    for raw in objects:
        try:
            model = parse(raw)
            check(model)
            models.append(model)
        except SpecInvalid as invalid:
            prefix = f"{_label(raw)}: " if len(objects) > 1 else ""
            errors += (FieldError(f"{prefix}{error.path}", error.message) for error in invalid.errors)
    if errors:
        raise SpecInvalid(errors)
    return tuple(models)


def read_objects(name: str) -> tuple[Mapping[str, Any], ...]:
    """The raw DisaggregatedModels of a file, in order, at least one; those in a `kind: List` too.

    Raises:
        InputError: no file, not readable, not YAML, a kind of ours that is misspelt, or no DisaggregatedModel.
    """
    shown = "standard input" if name == "-" else name
    documents = _documents(_read(name), shown)
    objects = tuple(item for item in documents if item.get("kind") == names.KIND)
    others = [item for item in documents if item.get("kind") != names.KIND]
    if not objects:
        kinds = sorted({str(item.get("kind", "no kind")) for item in others})
        found = ", ".join(kinds) if kinds else "no object at all"
        raise InputError(f"{shown}: holds no {names.KIND}, found {found}{_meant(kinds)}")
    for item in others:
        if str(item.get("apiVersion")).startswith(f"{names.GROUP}/"):
            kind = str(item.get("kind", "no kind"))
            raise InputError(f"{shown}: {names.GROUP} has {names.KIND} only, found {kind}{_meant([kind])}")
    return objects


def dump_yaml(objects: Iterable[Mapping[str, Any]]) -> str:
    return yaml.dump_all(objects, Dumper=_Plain, sort_keys=False, explicit_start=True, width=120)


def dump_json(objects: Iterable[Mapping[str, Any]]) -> str:
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)}, indent=2) + "\n"


class _Plain(yaml.SafeDumper):
    """Without anchors: a part that occurs twice is written twice."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _read(name: str) -> str:
    try:
        raw = sys.stdin.buffer.read(MAX_BYTES + 1) if name == "-" else _read_file(Path(name))
        if len(raw) > MAX_BYTES:
            raise InputError(f"{name}: larger than {MAX_BYTES} bytes, more than a cluster would take")
        return raw.decode()
    except FileNotFoundError:
        raise InputError(f"{name}: no such file") from None
    except IsADirectoryError:
        raise InputError(f"{name}: is a folder; name a file in it") from None
    except OSError as error:
        raise InputError(f"{name}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError:
        raise InputError(f"{name}: is not text in UTF-8") from None


def _read_file(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(MAX_BYTES + 1)


def _documents(text: str, shown: str) -> list[Mapping[str, Any]]:
    """All objects, those in lists among them; a document that is none is passed over."""
    try:
        documents = list(yaml.load_all(text, strict_yaml.Loader))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise InputError(f"{shown}: not YAML{where}: {error.problem}") from error
    except (yaml.YAMLError, ValueError, RecursionError, LookupError, AttributeError) as error:
        # the last two: what PyYAML makes of values that do not fit their own tag, such as `!!int ""`
        raise InputError(f"{shown}: not YAML: {str(error).partition(chr(10))[0]}") from error
    return list(_unpacked(documents))


def _unpacked(documents: Iterable[object]) -> Iterator[Mapping[str, Any]]:
    """In order, those in lists and in lists of lists too; each list once, as YAML may refer to one within itself."""
    waiting, seen = list(documents)[::-1], set[int]()
    while waiting:
        document = waiting.pop()
        if not isinstance(document, Mapping):
            continue
        if document.get("kind") not in _LISTS:
            yield document
        elif id(document) not in seen:
            seen.add(id(document))
            items = document.get("items")
            waiting += reversed(items) if isinstance(items, list) else ()


def _meant(kinds: Iterable[str]) -> str:
    alike = difflib.get_close_matches(names.KIND, list(kinds), n=1, cutoff=_ALIKE)
    return f"; did you mean {names.KIND}?" if alike else ""


def _label(raw: Mapping[str, Any]) -> str:
    metadata = raw.get("metadata")
    return str(metadata.get("name", "unnamed")) if isinstance(metadata, Mapping) else "unnamed"
