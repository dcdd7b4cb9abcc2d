"""Every example of the documents parses, validates against its schema, and the tables say what the checker does."""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from pathlib import Path
from typing import Any, Final

import jsonschema
import pytest

from edge_agent.config import topics
from edge_agent.config.definitions.definitions import parse_definition
from edge_agent.config.node_file.settings import parse
from edge_agent.errors import ConfigError
from tests.support.config.mistakes import FILES, QUERIES, SENSORS
from tests.support.published.reference import PAGE, page
from tests.support.published.schema import FOLDER, schemas, text_of

ROOT: Final = Path(__file__).resolve().parents[2]
PAGES: Final = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("schemas/*.md")])
FENCE: Final = re.compile(r"^```(toml|json) (settings|sensor|query|state|wrong)\n(.*?)^```", re.MULTILINE | re.DOTALL)
MARKED: Final = [
    pytest.param(form, kind, text, id=f"{path.name}-{n}-{kind}")
    for path in PAGES
    for n, (form, kind, text) in enumerate(FENCE.findall(path.read_text(encoding="utf-8")))
]
SCHEMAS: Final = {name: jsonschema.Draft202012Validator(schema) for name, schema in schemas().items()}


def published() -> list[Any]:
    """Every mosquitto_pub line of the documents: page, topic, payload (None from a file)."""
    found: list[Any] = []
    for path in PAGES:
        for block in re.findall(r"^```sh\n(.*?)^```", path.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL):
            for line in block.replace("\\\n", " ").splitlines():
                words = shlex.split(line, comments=True)
                if words[:1] == ["mosquitto_pub"] and "-t" in words:
                    payload = words[words.index("-m") + 1] if "-m" in words else None
                    found.append(
                        pytest.param(words, words[words.index("-t") + 1], payload, id=f"{path.name}-{len(found)}")
                    )
    return found


def valid(kind: str, value: object) -> bool:
    return bool(SCHEMAS[kind].is_valid(json.loads(json.dumps(value, default=lambda moment: moment.isoformat()))))


@pytest.mark.parametrize(("form", "kind", "text"), MARKED)
def test_every_marked_example_parses_and_validates(form: str, kind: str, text: str) -> None:
    value = tomllib.loads(text) if form == "toml" else json.loads(text)
    match kind:
        case "settings":
            parse(text)
        case "sensor" | "query":
            parse_definition(kind, "x", text)
        case "wrong":
            with pytest.raises(ConfigError):
                parse(text)
            return
    assert valid(kind, value)


def test_the_page_marks_all_of_its_examples() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert len(re.findall(r"^```(?:toml|json)", text, re.MULTILINE)) == len(FENCE.findall(text)) > 10


@pytest.mark.parametrize(("words", "topic", "payload"), published())
def test_every_definition_that_the_documents_publish_is_right(
    words: list[str], topic: str, payload: str | None
) -> None:
    parsed = topics.parse(topic)
    assert parsed is not None, topic
    if parsed.what != "definition":
        return
    assert {"-r", "-V", "-q"} <= set(words), "a definition is retained, QoS 1, MQTT 5"
    if payload is not None:
        parse_definition(parsed.kind, parsed.other, payload)
        assert valid(parsed.kind, json.loads(payload))


def test_the_documents_publish_something() -> None:
    assert len(published()) >= 6


def test_the_mistakes_shown_are_the_ones_of_the_file_shown() -> None:
    text = PAGE.read_text(encoding="utf-8")
    (file,) = (body for _, kind, body in FENCE.findall(text) if kind == "wrong")
    with pytest.raises(ConfigError) as caught:
        parse(file, "headwater.toml")
    assert str(caught.value) in text


def test_the_tables_of_the_page_are_up_to_date() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert page(text) == text, "run: make docs"


@pytest.mark.parametrize("name", sorted(SCHEMAS))
def test_the_schemas_are_up_to_date(name: str) -> None:
    file = FOLDER / f"{name}.schema.json"
    assert file.read_text(encoding="utf-8") == text_of(schemas()[name]), "run: make docs"
    jsonschema.Draft202012Validator.check_schema(schemas()[name])


NOT_OF_SHAPE: Final = (  # what a schema cannot know: how values of a document go together, and what a text means
    *("longer than", "shorter than", "not shorter", "every reading would", "two columns", "where", "column of every"),
    *(
        "not a date",
        "time zone",
        "no such",
        "levels 0 to",
        "a CBOR batch",
        "no topic",
        "no payload",
        "2^53",
        "lowest comes first",
    ),
    *(
        "outage_every",
        "last level",
        "whole level",
        "shared subscription",
        "not a step",
        "table has this name",
        "itself",
    ),
    *(
        "without a user",
        "only valid together",
        "is not TLS",
        "needs a local broker",
        "is missing",
        "two heartbeats",
        "in members too",
    ),
    *(
        "braces may only contain",
        "must be 1MB",
        "not printable",
        "the port must be",
        "credentials",
        "at most 64kB",
        "no definitions of its own",
    ),
    *("is given too", "first parent", "is a parent of"),
)


@pytest.mark.parametrize("kind", ["query", "sensor", "settings"])
def test_what_is_wrong_in_shape_is_wrong_by_the_schema_too(kind: str) -> None:
    """An editor that knows the schema marks what the checker refuses, as far as shape goes."""
    checked = 0
    for text, why, _ in {"query": QUERIES, "sensor": SENSORS, "settings": FILES}[kind]:
        try:
            value = tomllib.loads(text)
        except tomllib.TOMLDecodeError:
            continue
        if value and not any(word in why for word in NOT_OF_SHAPE):
            assert not valid(kind, value), f"{text}: {why}"
            checked += 1
    assert checked >= 10
