"""Build dataclasses from untrusted JSON. Every value is checked against its field's annotation.

Annotations may combine bool, int, float, str, Any, Literal, `| None`, list, dict, other dataclasses, and Annotated with
rules such as Range. Pydantic is not used, because importing it takes longer than a translation.
"""

import dataclasses
import math
import sys
import types
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol, TypeVar, Union, get_args, get_origin

from nmt_cli.system.errors import DataError

T = TypeVar("T")
MAX_SHOWN = 40  # characters of a wrong value in an error message
_NAMES = {bool: "a boolean", int: "an integer", float: "a finite number", str: "a string"}


class Rule(Protocol):
    """A condition on a value, in addition to its type. `requirement` completes the sentence "it must be …"."""

    @property
    def requirement(self) -> str: ...

    def allows(self, value: Any) -> bool: ...


def from_json(kind: type[T], values: dict[str, Any], path: Path) -> T:
    """Do the same as `build`, but raise a DataError that also names `path`, the file of the JSON object."""
    try:
        return build(kind, values)
    except ValueError as error:
        raise DataError(f"{path} is damaged: {error}") from None


def build(kind: type[T], values: dict[str, Any]) -> T:
    """Return a dataclass built from a JSON object. Keys that match no field are ignored.

    If the object does not match the annotations, raise a ValueError that names the first invalid or missing field.
    """
    return _convert(kind, values, "")  # type: ignore[no-any-return]


def _dataclass(kind: Any, values: Any, key: str) -> Any:
    if not isinstance(values, dict):
        raise _error(key, "an object", values)
    arguments = {}
    for field in dataclasses.fields(kind):
        name = f"{key}.{field.name}".lstrip(".")
        if field.name in values:
            arguments[field.name] = _convert(field.type, values[field.name], name)
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise ValueError(f"{name} is missing")
    return kind(**arguments)


def _convert(hint: Any, value: Any, key: str) -> Any:
    """Convert a value to the type of its annotation. If it does not match, raise a ValueError that names `key`."""
    origin, arguments = get_origin(hint), get_args(hint)
    if dataclasses.is_dataclass(hint):
        return _dataclass(hint, value, key)
    if origin is Annotated:
        value = _convert(arguments[0], value, key)
        for rule in arguments[1:]:
            if not rule.allows(value):
                raise _error(key, rule.requirement, value)
        return value
    if origin in (Union, types.UnionType):  # X | None
        return None if value is None else _convert(arguments[0], value, key)
    if origin is Literal:
        if not any(type(value) is type(choice) and value == choice for choice in arguments):
            raise _error(key, " or ".join(map(repr, arguments)), value)
        return value
    if origin is list:
        if not isinstance(value, list):
            raise _error(key, "a list", value)
        return [_convert(arguments[0], item, f"{key}.{i}") for i, item in enumerate(value)]
    if origin is dict:
        if not isinstance(value, dict):
            raise _error(key, "an object", value)
        return {_convert(arguments[0], k, key): _convert(arguments[1], item, f"{key}.{k}") for k, item in value.items()}
    if hint is float and type(value) is int and abs(value) <= sys.float_info.max:
        return float(value)
    if hint is Any or (type(value) is hint and (hint is not float or math.isfinite(value))):
        return value
    raise _error(key, _NAMES[hint], value)


def _error(key: str, rule: str, value: Any) -> ValueError:
    return ValueError(f"{key} must be {rule}, not {str(value)[:MAX_SHOWN]!r}".lstrip())
