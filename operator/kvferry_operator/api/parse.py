"""Reads an object of any shape into the types of `types`, or says everything that is wrong with it.

The API server has checked an object against the CRD, but the CRD in a cluster may be older than this code: whatever
is stored is read here again, and nothing in it makes this module crash.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
import types
from collections.abc import Iterable, Mapping
from enum import StrEnum
from functools import cache
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from kvferry_operator.api import constraints, names, quantity, rules
from kvferry_operator.api.types import DisaggregatedModel, Spec
from kvferry_operator.errors import FieldError, SpecInvalid

_TOP = ("apiVersion", "kind", "metadata", "spec", "status")
_NAME = constraints.Text(253, constraints.DNS_SUBDOMAIN, "a legal object name", least=1)
_NAMESPACE = constraints.Text(63, constraints.DNS_LABEL, "a legal namespace", least=1)
_SHOWN = 60
_MAX_DEPTH = 64
_MAX_VALUES = 50_000
_SCALARS = (str, int, float, bool, type(None))
_RESOURCE_NAME = constraints.Text(317, r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$")


def parse(raw: object) -> DisaggregatedModel:
    """Read one object as it was parsed from JSON or YAML.

    Raises:
        SpecInvalid: anything is missing, unknown, ill-typed, out of bounds or against a rule; holds every such error.
    """
    errors: list[FieldError] = []
    if not isinstance(raw, Mapping):
        raise SpecInvalid([FieldError("object", f"must be an object, found {_show(raw)}")])
    _unknown(raw, _TOP, "", errors)
    for key, wanted in (("apiVersion", names.API_VERSION), ("kind", names.KIND)):
        if raw.get(key) != wanted:
            errors.append(FieldError(key, f"must be {wanted}, found {_show(raw.get(key))}"))
    metadata = raw.get("metadata")
    if not isinstance(metadata, Mapping):
        metadata = {}
    name = _read_text(metadata.get("name", ""), "metadata.name", _NAME, errors)
    namespace = _read_text(metadata.get("namespace") or "default", "metadata.namespace", _NAMESPACE, errors)
    spec = None
    if raw.get("spec") is None:
        errors.append(FieldError("spec", "is required"))
    else:
        spec = _read_object(Spec, raw["spec"], "spec", errors)
    if isinstance(spec, Spec):
        errors += rules.broken(spec)
    if errors or not isinstance(spec, Spec):
        raise SpecInvalid(errors)
    uid, generation = metadata.get("uid"), metadata.get("generation")
    return DisaggregatedModel(
        name=name,
        namespace=namespace,
        uid=uid if isinstance(uid, str) else "",
        generation=generation if isinstance(generation, int) else 0,
        spec=spec,
    )


@dataclasses.dataclass(frozen=True, slots=True)
class Field:
    """One key of an object: its name there and here, its type with bounds, and whether it may be left out."""

    key: str
    name: str
    hint: Any
    required: bool
    default: Any


@cache
def fields_of(kind: Any) -> tuple[Field, ...]:
    """The keys of a dataclass of `types`, in order."""
    hints = get_type_hints(kind, include_extras=True)
    found = []
    for item in dataclasses.fields(kind):
        head, *tail = item.name.split("_")
        key = str(item.metadata.get("key") or head + "".join(map(str.capitalize, tail)))
        factory = item.default_factory
        default = item.default if factory is dataclasses.MISSING else factory()
        required = default is dataclasses.MISSING
        found.append(Field(key, item.name, hints[item.name], required, None if required else default))
    return tuple(found)


def resolve(hint: Any) -> tuple[Any, Any]:
    """The bare type and the bound of a field's type; an optional one is that of its value."""
    bound = None
    while True:
        if get_origin(hint) is Annotated:
            hint, bound = get_args(hint)[:2]
        elif get_origin(hint) in (Union, types.UnionType):
            hint = next(option for option in get_args(hint) if option is not type(None))
        else:
            return hint, bound


def _read_object(kind: Any, raw: object, path: str, errors: list[FieldError]) -> Any:
    """The dataclass, or None after any error below."""
    if not isinstance(raw, Mapping):
        errors.append(FieldError(path, f"must be an object, found {_show(raw)}"))
        return None
    before = len(errors)
    known = fields_of(kind)
    _unknown(raw, [item.key for item in known], path, errors)
    values = {}
    for item in known:
        value = raw.get(item.key)
        where = f"{path}.{item.key}"
        if value is not None:
            values[item.name] = _read(item.hint, value, where, errors)
        elif item.required:
            errors.append(FieldError(where, "is required"))
    return kind(**values) if len(errors) == before else None


def _read(hint: Any, raw: object, path: str, errors: list[FieldError]) -> Any:
    kind, bound = resolve(hint)
    match bound:
        case constraints.Bytes():
            return _read_bytes(raw, path, bound, errors)
        case constraints.Decimal():
            return _read_decimal(raw, path, bound, errors)
        case constraints.Quantities():
            return _read_quantities(raw, path, bound, errors)
        case constraints.Items():
            return _read_list(get_args(kind)[0], raw, path, bound, errors)
        case constraints.Range():
            return _read_int(raw, path, bound, errors)
        case constraints.Text():
            return _read_text(raw, path, bound, errors)
        case constraints.Open():
            return _read_open(raw, path, errors)
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return _read_object(kind, raw, path, errors)
    if issubclass(kind, StrEnum):
        return _read_enum(kind, raw, path, errors)
    assert kind is bool, f"{path}: {kind} has no bound"
    if not isinstance(raw, bool):
        errors.append(FieldError(path, f"must be true or false, found {_show(raw)}"))
    return raw


def _read_int(raw: object, path: str, bound: constraints.Range, errors: list[FieldError]) -> int:
    if isinstance(raw, bool) or not isinstance(raw, int):
        errors.append(FieldError(path, f"must be a whole number, found {_show(raw)}"))
        return bound.low
    if raw < bound.low:
        errors.append(FieldError(path, f"must be at least {bound.low}, found {_show(raw)}"))
    elif raw > bound.high:
        errors.append(FieldError(path, f"must be at most {bound.high}, found {_show(raw)}"))
    return raw


def _read_text(raw: object, path: str, bound: constraints.Text, errors: list[FieldError]) -> str:
    if not isinstance(raw, str):
        errors.append(FieldError(path, f"must be text, found {_show(raw)}"))
        return ""
    if len(raw) < bound.least:
        errors.append(FieldError(path, "must not be empty"))
    elif len(raw) > bound.most:
        errors.append(FieldError(path, f"must have at most {bound.most} characters, found {len(raw)}"))
    elif not bound.fits(raw):
        errors.append(FieldError(path, f"must be {bound.wants}, found {_show(raw)}"))
    return raw


def _read_enum(kind: type[StrEnum], raw: object, path: str, errors: list[FieldError]) -> StrEnum | None:
    options = [option.value for option in kind]
    if isinstance(raw, str) and raw in options:
        return kind(raw)
    hint = _closest(raw, options) if isinstance(raw, str) else ""
    errors.append(FieldError(path, f"must be one of {', '.join(options)}, found {_show(raw)}{hint}"))
    return None


def _read_bytes(raw: object, path: str, bound: constraints.Bytes, errors: list[FieldError]) -> int:
    try:
        value = quantity.to_bytes(raw)
    except quantity.QuantityError as error:
        errors.append(FieldError(path, f"{error}, found {_show(raw)}"))
        return bound.low
    if not bound.low <= value <= bound.high:
        low, high = quantity.from_bytes(bound.low), quantity.from_bytes(bound.high)
        errors.append(FieldError(path, f"must be within {low} and {high}, found {_show(raw)}"))
    return value


def _read_decimal(raw: object, path: str, bound: constraints.Decimal, errors: list[FieldError]) -> float:
    if not isinstance(raw, str) or not re.fullmatch(constraints.DECIMAL.strip("^$"), raw, re.ASCII):
        errors.append(FieldError(path, f'must be a decimal number as text, such as "0.05", found {_show(raw)}'))
        return bound.low
    value = float(raw)
    if not bound.low <= value <= bound.high:
        errors.append(FieldError(path, f"must be within {bound.low:g} and {bound.high:g}, found {_show(raw)}"))
    return value


def _read_quantities(raw: object, path: str, bound: constraints.Quantities, errors: list[FieldError]) -> dict[str, str]:
    if not isinstance(raw, Mapping):
        errors.append(FieldError(path, f"must be an object, found {_show(raw)}"))
        return {}
    if len(raw) > bound.most:
        errors.append(FieldError(path, f"must have at most {bound.most} entries, found {len(raw)}"))
    found = {}
    for name, amount in raw.items():
        if not isinstance(name, str) or len(name) > _RESOURCE_NAME.most or not _RESOURCE_NAME.fits(name):
            errors.append(FieldError(path, f"{_show(name)} is not the name of a resource"))
            continue
        try:
            quantity.parse(amount)
        except quantity.QuantityError as error:
            errors.append(FieldError(f"{path}.{name}", f"{error}, found {_show(amount)}"))
        found[name] = str(amount)
    return found


def _read_list(
    hint: Any, raw: object, path: str, bound: constraints.Items, errors: list[FieldError]
) -> tuple[Any, ...]:
    if not isinstance(raw, list):
        errors.append(FieldError(path, f"must be a list, found {_show(raw)}"))
        return ()
    if len(raw) > bound.most:
        errors.append(FieldError(path, f"must have at most {bound.most} items, found {len(raw)}"))
        return ()
    found = tuple(_read(hint, item, f"{path}[{index}]", errors) for index, item in enumerate(raw))
    _duplicates(found, path, bound, errors)
    return found


def _read_open(raw: object, path: str, errors: list[FieldError]) -> Any:
    """A part that is laid on a pod later: checked to be plain JSON of sane depth, so that merging it cannot fail."""
    if not isinstance(raw, Mapping):
        errors.append(FieldError(path, f"must be an object, found {_show(raw)}"))
        return {}
    pending: list[tuple[object, int]] = [(raw, 0)]
    seen = 0
    while pending:
        value, depth = pending.pop()
        seen += 1
        if seen > _MAX_VALUES:
            # references in a YAML file can make few lines into more values than memory holds
            errors.append(FieldError(path, f"has more than {_MAX_VALUES} values"))
            return {}
        if depth > _MAX_DEPTH:
            errors.append(FieldError(path, f"is nested more than {_MAX_DEPTH} levels deep"))
            return {}
        if isinstance(value, Mapping):
            if not all(isinstance(key, str) for key in value):
                errors.append(FieldError(path, "has a key that is not text; put it in quotes"))
                return {}
            pending += ((item, depth + 1) for item in value.values())
        elif isinstance(value, list):
            pending += ((item, depth + 1) for item in value)
        elif not isinstance(value, _SCALARS):
            errors.append(FieldError(path, f"has a value that JSON does not know, {_show(value)}; put it in quotes"))
            return {}
    return raw


def _duplicates(found: tuple[Any, ...], path: str, bound: constraints.Items, errors: list[FieldError]) -> None:
    if not bound.key and not bound.unique:
        return
    seen: set[object] = set()
    for index, item in enumerate(found):
        # an item with errors of its own is None; the key's name is the same in the object and here
        key = getattr(item, bound.key, None) if bound.key else item
        if key is not None and key in seen:
            where = f"{path}[{index}].{bound.key}" if bound.key else f"{path}[{index}]"
            errors.append(FieldError(where, f"appears twice: {_show(key)}"))
        seen.add(key)


def _unknown(raw: Mapping[Any, Any], known: Iterable[str], path: str, errors: list[FieldError]) -> None:
    options = list(known)
    for key in raw:
        if key not in options:
            where = f"{path}.{_show(key, quote=False)}".lstrip(".")
            errors.append(FieldError(where, f"unknown field{_closest(str(key), options)}"))


def _closest(word: str, options: Iterable[str]) -> str:
    found = difflib.get_close_matches(word[:_SHOWN], list(options), n=1, cutoff=0.6)
    return f"; did you mean {found[0]}?" if found else ""


def _show(value: object, *, quote: bool = True) -> str:
    """A value in an error: never long, never a document."""
    if value is None:
        return "nothing"
    if isinstance(value, Mapping):
        return "an object"
    if isinstance(value, list):
        return "a list"
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > 4 * _SHOWN:
        return "a very large number"
    text = repr(value) if quote and isinstance(value, str) else str(value)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"
