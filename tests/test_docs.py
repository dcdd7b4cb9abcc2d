"""What the documents say is true: links, commands, rule numbers, figures, pins."""

from __future__ import annotations

import itertools
import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from packaging.requirements import Requirement

from edge_agent.cli.main import VERBS, load, parser_of
from tests.benchmarks.targets import TARGETS
from tests.support import tables_page

ROOT: Final = Path(__file__).resolve().parents[1]
PAGES: Final = sorted(
    path for pattern in ("*.md", "docs/*.md", "schemas/*.md", "gateway_image/*.md") for path in ROOT.glob(pattern)
)
FENCE: Final = re.compile(r"^```(\w+)[^\n]*\n(.*?)^```", re.M | re.S)
RULES: Final = {1: 5, 2: 5, 3: 8, 4: 7, 5: 5, 6: 5, 7: 4, 8: 6, 9: 1}  # rules a section of docs/protocol.md


def fenced(language: str) -> Iterator[tuple[str, str]]:
    for path in PAGES:
        for found, text in FENCE.findall(path.read_text()):
            if found == language:
                yield path.relative_to(ROOT).as_posix(), text


def commands(text: str) -> Iterator[list[str]]:
    """Every `headwater VERB ...` of a piece of shell, as words."""
    for line in text.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        for joined, part in itertools.groupby(words, ("&", "&&", "|").__contains__):
            match [] if joined else list(part):
                case [name, *rest] if name.rpartition("/")[2] == "headwater":
                    yield rest[: rest.index(">")] if ">" in rest else rest
                case _:
                    pass  # another program


def rules_of(text: str) -> dict[str, str]:
    """Number -> text of each rule of the protocol page; a section's own mark goes for its rules."""
    rules: dict[str, str] = {}
    for section in re.split(r"^## ", text, flags=re.M)[1:]:
        heading = section.partition("\n")[0]
        for number, body in re.findall(r"^\*\*(\d\.\d)\*\*(.*?)(?=^\*\*\d\.\d\*\*|\Z)", section, re.M | re.S):
            rules[number] = body + (heading if "[" in heading else "")
    return rules


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_relative_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help_and_examples_that_parse(verb: str) -> None:
    module = load(verb)
    parser = parser_of(verb, module)
    assert module.HELP
    examples = [words for words in commands(module.EXAMPLES) if words]
    assert examples, f"headwater {verb} --help shows no example"
    for words in examples:
        if words[0] == verb:
            parser.parse_args(words[1:])


def test_every_command_in_the_documents_is_one() -> None:
    seen = set()
    for page, text in fenced("sh"):
        for words in commands(text):
            assert words, page
            if words[0].startswith("--"):
                continue
            assert words[0] in VERBS, f"{page}: headwater {words[0]}"
            parser_of(words[0], load(words[0])).parse_args(words[1:])
            seen.add(words[0])
    assert {"init", "check", "run", "land", "root", "query", "status", "peek"} <= seen


def test_every_make_target_in_the_documents_is_one() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.M))
    for page, text in fenced("sh"):
        for target in re.findall(r"^make ([a-z]+)", text, re.M):
            assert target in targets, f"{page}: make {target}"


def test_the_protocol_page_has_every_rule_and_says_what_is_built() -> None:
    rules = rules_of((ROOT / "docs/protocol.md").read_text())
    assert sorted(rules) == sorted(f"{section}.{n}" for section, count in RULES.items() for n in range(1, count + 1))
    for number, body in rules.items():
        assert re.search(r"\[[^\]]*(built|format|later)", body), f"{number} does not say what this version does with it"


def test_every_rule_that_is_built_has_a_test_that_names_it() -> None:
    named: set[str] = set()
    for path in (ROOT / "tests").rglob("*.py"):
        if path != Path(__file__):
            for numbers in re.findall(r"[Pp]rotocol((?:[ ,]|and|\d\.\d)+)", path.read_text()):
                named.update(re.findall(r"\d\.\d", numbers))
    rules = rules_of((ROOT / "docs/protocol.md").read_text())
    built = {number for number, body in rules.items() if re.search(r"\*\[[^\]]*built", body)}
    assert not built - named, f"no test names protocol {', '.join(sorted(built - named))}"


def test_the_performance_page_names_the_figures_and_no_others() -> None:
    method = (ROOT / "docs/performance.md").read_text().partition("## Figures")[0]
    rows = "\n".join(line.split("|")[1] for line in method.splitlines() if line.startswith("| `"))
    assert set(re.findall(r"`(\w+)`", rows)) == set(TARGETS)


@pytest.mark.parametrize("pins", ["lock.txt", "oldest.txt"])
def test_pinned_versions_are_among_those_allowed(pins: str) -> None:
    lines = (ROOT / "requirements" / pins).read_text().splitlines()
    pinned = dict(line.removesuffix(" \\").split("==") for line in lines if re.match(r"[a-z]", line))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    optional = [line for lines in project["optional-dependencies"].values() for line in lines]
    for requirement in map(Requirement, project["dependencies"] + (optional if pins == "lock.txt" else [])):
        assert pinned[requirement.name] in requirement.specifier, f"{requirement}, pinned {pinned[requirement.name]}"


def test_the_page_of_tables_is_that_of_the_code() -> None:
    assert tables_page.PAGE.read_text() == tables_page.page(), "run: make docs"
