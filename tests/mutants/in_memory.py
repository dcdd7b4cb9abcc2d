"""Puts a break into functions that are imported already, so that a process with all tests need not be started anew.

What a module computes when it is imported (constants, classes, decorators) is out of reach: such a break needs a new
process.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator
from pathlib import Path, PurePath
from types import CodeType, FunctionType
from typing import Final

# what distinguishes the code of two functions, apart from their constants and the lines where they stand
_SAME: Final = (
    *("co_code", "co_names", "co_varnames", "co_freevars", "co_cellvars", "co_flags", "co_exceptiontable"),
    *("co_argcount", "co_posonlyargcount", "co_kwonlyargcount"),
)


def put_in(folder: Path, file: str, whole: str, broken: str) -> bool:
    """Give the functions of a module their broken code. Returns False if that is not all that breaks; nothing changes.

    file: relative to the folder from which it was imported; one that was not imported yet needs to be broken there
    only. whole, broken: its text before and after the break.
    """
    name = ".".join(PurePath(file).with_suffix("").parts)
    if name not in sys.modules:
        return True
    path = str(folder / file)
    before, after = (compile(text, path, "exec", dont_inherit=True) for text in (whole, broken))
    try:
        module = sys.modules[name]
        pairs = [(_function(vars(module), old), new) for old, new in _changes(before, after)]
    except LookupError:
        return False
    if any(len(new.co_freevars) != len(function.__code__.co_freevars) for function, new in pairs):
        return False
    for function, new in pairs:
        function.__code__ = new
    return bool(pairs)


def _changes(before: CodeType, after: CodeType) -> Iterator[tuple[CodeType, CodeType]]:
    """The outermost functions in which two modules, or two bodies of a class, differ. Raises: LookupError."""
    if not _alike(before, after, deep=False):
        raise LookupError("what is computed when the module is imported")
    for old, new in zip(_nested(before), _nested(after), strict=True):
        if _alike(old, new, deep=True):
            continue
        if "<" in old.co_name:
            raise LookupError(f"{old.co_name} outside of any function")
        if old.co_flags & _OPTIMIZED:
            yield old, new
        else:
            yield from _changes(old, new)


_OPTIMIZED: Final = 1  # inspect.CO_OPTIMIZED: a function; bodies of classes are not


def _alike(one: CodeType, other: CodeType, *, deep: bool) -> bool:
    """Whether two pieces of code do the same. deep: with the functions in them."""
    if any(getattr(one, name) != getattr(other, name) for name in _SAME):
        return False
    if len(one.co_consts) != len(other.co_consts):
        return False
    for a, b in zip(one.co_consts, other.co_consts, strict=True):
        if isinstance(a, CodeType) and isinstance(b, CodeType):
            if deep and not _alike(a, b, deep=True):
                return False
        elif type(a) is not type(b) or a != b:
            return False
    return True


def _nested(code: CodeType) -> list[CodeType]:
    return [each for each in code.co_consts if isinstance(each, CodeType)]


def _function(names: object, code: CodeType) -> FunctionType:
    """The function that a module has of this code. Raises: LookupError if what has its name is another one."""
    found = names
    for name in code.co_qualname.split("."):
        found = found[name] if isinstance(found, dict) else vars(found)[name]
    for each in _inside(found):
        if isinstance(each, FunctionType) and _alike(each.__code__, code, deep=True):
            return each
    raise LookupError(code.co_qualname)


def _inside(found: object) -> Iterator[object]:
    """What decorators have put around a function, and the function."""
    waiting = [found]
    while waiting:
        each = waiting.pop()
        yield each
        if isinstance(each, property):
            waiting += [part for part in (each.fget, each.fset) if part is not None]
        elif isinstance(each, staticmethod | classmethod):
            waiting.append(each.__func__)
        elif isinstance(each, functools.cached_property):
            waiting.append(each.func)
        elif hasattr(each, "__wrapped__"):
            waiting.append(each.__wrapped__)
