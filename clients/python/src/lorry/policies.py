"""Policies as people write them: ``{"mode": "rolling", "keep": 3}`` for ``lorry.common.v1.AdapterPolicy``."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from typing import Any

from google.protobuf import json_format
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from lorry.errors import LorryError

WINDOW_MAX = 64  # versions that a pool remembers, and so the most that ``keep`` may name


def keeping(versions: int | None) -> dict[str, Any]:
    """The fields of a policy by which so many of the last versions stay loaded, as many as a pool remembers at most; None: all of these.

    A single one leaves none that a door which is behind could serve, so that the store asks for ``max_staleness`` 0 then. It says nothing of
    requests that name a version.
    """
    if versions is None:
        return {"keep": "all"}
    return {"keep": min(versions, WINDOW_MAX)} | ({"max_staleness": 0} if versions == 1 else {})


def change(policy: Message, fields: Mapping[str, Any]) -> None:
    """Sets the given fields, None to their default.

    Raises:
        LorryError: POLICY_INVALID: no such field, or not what it takes.
    """
    known = policy.DESCRIPTOR.fields_by_name
    for name, value in fields.items():
        if name not in known:
            near = difflib.get_close_matches(name, list(known), 1)
            hint = f"; did you mean {near[0]}?" if near else f"; it has {', '.join(known)}"
            raise _invalid(f"a policy has no field {name!r}{hint}")
        policy.ClearField(name)
        if value is None:
            continue
        try:
            json_format.ParseDict({name: _to_json(known[name], value)}, policy)
        except json_format.ParseError as error:
            raise _invalid(f"{name} cannot be {value!r}: {error}") from None


def to_words(policy: Message) -> dict[str, Any]:
    """The fields that are set, as ``change`` takes them."""
    fields: dict[str, Any] = json_format.MessageToDict(policy, preserving_proto_field_name=True)
    out: dict[str, Any] = {}
    for name, value in fields.items():
        field = policy.DESCRIPTOR.fields_by_name[name]
        if field.enum_type is not None:
            value = value.removeprefix(_prefix(field.enum_type)).lower()
        elif field.cpp_type in (FieldDescriptor.CPPTYPE_INT64, FieldDescriptor.CPPTYPE_UINT64):
            value = int(value)  # JSON of protobuf writes 64 bits as text
        elif name == "keep":
            value = "all" if value.get("all") else value["versions"]
        elif name == "min_engines":
            value = f"{value['percent']}%" if "percent" in value else value["count"]
        out[name] = value
    return out


def _to_json(field: Any, value: Any) -> Any:
    """What protobuf's JSON takes for the words of a person."""
    if field.enum_type is not None and isinstance(value, str):
        return _enumerator(field, value)
    if field.name == "keep":
        if value == "all":
            return {"all": True}
        return {"versions": value} if isinstance(value, int) else value
    if field.name == "min_engines":
        percent = re.fullmatch(r"(\d+) ?%", value) if isinstance(value, str) else None
        if percent:
            return {"percent": int(percent[1])}
        return {"count": value} if isinstance(value, int) else value
    if field.name == "pools" and isinstance(value, list):
        return [{"pool": rule} if isinstance(rule, str) else rule for rule in value]
    return value


def _enumerator(field: Any, word: str) -> str:
    prefix = _prefix(field.enum_type)
    words = {n.removeprefix(prefix).lower(): n for n in field.enum_type.values_by_name if not n.endswith("UNSPECIFIED")}
    chosen = word.removeprefix(prefix).lower().replace("-", "_")
    if chosen not in words:
        raise _invalid(f"{field.name} cannot be {word!r}; it is one of {', '.join(words)}")
    name: str = words[chosen]
    return name


def _prefix(enum: Any) -> str:
    zero: str = enum.values_by_number[0].name
    return zero.removesuffix("UNSPECIFIED")


def _invalid(message: str) -> LorryError:
    return LorryError(message, "POLICY_INVALID", "INVALID_ARGUMENT")
