"""Licences of installed distributions, as SPDX expressions, and the ones that Headwater may depend on."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.metadata import Distribution, distribution
from typing import Final

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

# None of these asks that a program which uses the library be published. MPL 2.0 asks it of changes to its own files.
ALLOWED: Final = frozenset(
    (
        *("0BSD", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "CC0-1.0", "ISC", "MIT", "MIT-0", "MIT-CMU", "MPL-2.0"),
        *("PSF-2.0", "Zlib"),
    )
)
SPDX_OF_CLASSIFIER: Final = {
    "Apache Software License": "Apache-2.0",
    "BSD License": "BSD-3-Clause",
    "MIT License": "MIT",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "Python Software Foundation License": "PSF-2.0",
}
SPDX_OF_TEXT: Final = {"Apache 2.0": "Apache-2.0", "Apache License 2.0": "Apache-2.0", "BSD License": "BSD-3-Clause"}


def closure(*extras: str) -> list[Distribution]:
    """Installed distributions that headwater with these extras needs, by name; headwater itself is not among them."""
    needed: dict[str, Distribution] = {}  # by canonical name
    todo = list(_needs(distribution("headwater"), set(extras)))
    while todo:
        requirement = todo.pop()
        name = canonicalize_name(requirement.name)
        if name not in needed:
            needed[name] = distribution(name)
        todo += [
            each for each in _needs(needed[name], requirement.extras) if canonicalize_name(each.name) not in needed
        ]
    return [needed[name] for name in sorted(needed)]


def _needs(of: Distribution, extras: set[str]) -> Iterator[Requirement]:
    for text in of.requires or ():
        requirement = Requirement(text)
        marker = requirement.marker
        if marker is None or any(marker.evaluate({"extra": extra}) for extra in ("", *extras)):
            yield requirement


def direct_needs(of: Distribution, among: set[str]) -> list[str]:
    """Canonical names of what `of` needs itself, as far as it is in the closure."""
    return sorted(among.intersection(canonicalize_name(each.name) for each in _needs(of, set())))


def licence_of(of: Distribution) -> str:
    """An SPDX expression; '' if the metadata name none that we know.

    In this order: the field made for it, classifiers (several are taken together), the old free text.
    """
    found = of.metadata
    for expression in found.get_all("License-Expression") or ():
        return str(expression)
    classifiers = [
        text.rpartition(" :: ")[2] for text in found.get_all("Classifier") or () if "OSI Approved ::" in text
    ]
    if classifiers:
        return " AND ".join(SPDX_OF_CLASSIFIER.get(text, text) for text in classifiers)
    text = "".join(found.get_all("License") or ()).strip()
    return SPDX_OF_TEXT.get(text, text if text in ALLOWED else "")


def is_allowed(expression: str) -> bool:
    """Whether one side of each OR, and all of each AND, are allowed. Passing over brackets only makes it stricter."""
    if not expression:
        return False
    parts = re.split(r"\s+AND\s+", re.sub(r"[()]", " ", expression))
    return all(any(name.strip() in ALLOWED for name in re.split(r"\s+OR\s+", part)) for part in parts)
