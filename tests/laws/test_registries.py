"""Each file of a registry's folder is in the registry's list. Other facts: tests/test_contributing.py."""

from __future__ import annotations

from pathlib import Path

from tests.support.registries import unlisted


def test_every_file_with_a_member_is_in_its_list() -> None:
    missing = unlisted(Path(__file__).resolve().parents[2])
    assert not missing, "\n".join(missing)
