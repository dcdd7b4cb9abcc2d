"""Loads the built-in members of a registry: one file each, and one line in the registry's list (CONTRIBUTING.md)."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from types import ModuleType
from typing import Final, TypeVar

Member = TypeVar("Member")

RECORDS: Final[Mapping[str, str]] = {  # name that a file must define -> what it is
    "FAMILY": "a Family (edge_agent/algebra/aggregates/base.py)",
    "KINDS": "a tuple of ColumnKind (edge_agent/algebra/columns/kind.py)",
    "DRIVER": "a Driver (edge_agent/config/definitions/drivers.py)",
}


def source(folder: str, name: str) -> str:
    """The path of a file, for messages. folder: a package."""
    return f"{folder.replace('.', '/')}/{name}.py"


def module(folder: str, name: str, listed_in: str) -> ModuleType:
    """The module of a member. folder: a package; listed_in: the list and its file.

    Raises: TypeError if there is no such file, or a record in it lacks a field; otherwise what the file raises.
    """
    try:
        return import_module(f"{folder}.{name}")
    except ModuleNotFoundError as err:
        if err.name != f"{folder}.{name}":
            raise
        raise TypeError(f"{listed_in} names {name!r}, but there is no file {source(folder, name)}") from None
    except TypeError as err:
        raise TypeError(f"{source(folder, name)}: {err}") from err


def record(folder: str, name: str, wanted: str, kind: type[Member], listed_in: str) -> Member:
    """The record that a member's file defines. wanted: its name, one of RECORDS.

    Raises: TypeError if the file does not define it.
    """
    found = getattr(module(folder, name, listed_in), wanted, None)
    if not isinstance(found, kind):
        got = "" if found is None else f", got {type(found).__name__}"
        raise TypeError(f"{source(folder, name)}: define {wanted}, {RECORDS[wanted]}{got}")
    return found
