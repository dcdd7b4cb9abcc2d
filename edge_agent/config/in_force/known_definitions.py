"""Decides which definitions of queries are valid at a parent.

Rules (docs/protocol.md 6.5): if the operator published a revision on a topic of this parent, that text is valid, even
if frames contain another. A revision newer than all published ones waits until it is published: until then neither its
text nor the range for which a child serves it is valid. The newest revision ends only if the operator ends it, and it
begins by now or by its `effective_from`. For an id that is not published, the first text of a revision in frames is
valid, as in ops.queries; at a root it is not served if a reading would be in very many windows. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, Final

from edge_agent.algebra.aggregates import basis_of
from edge_agent.algebra.frame import Plan, Serving
from edge_agent.algebra.query.key import QueryKey
from edge_agent.algebra.query.query import Aggregate, Group, Query
from edge_agent.algebra.text_shares import TextShares
from edge_agent.algebra.windows import extent_us, overlap
from edge_agent.config import topics
from edge_agent.config.checking import foreign_json
from edge_agent.config.definitions.definitions import canonical_query, parse_definition, query_of
from edge_agent.config.in_force.rejection import revision_in
from edge_agent.errors import ConfigError

Claims = dict[str, tuple[int, int]]  # query -> (revision, since; -1: reported)
Basis = Callable[[tuple[Aggregate, ...], int | None], tuple[str, ...]]  # the type of `basis_of`
OF_STATES: Final = ("slice", "window", "session")  # kinds of plans whose rows contain states of functions
PUBLISHED: Final = "published"
MOST_KNOWN: Final = 10_000  # cached answers of `contradicts`, and as many of `fits`
MOST_TEXTS: Final = 20_000  # unpublished texts of a child, for each gateway below it: a large one has 10 000 queries
MOST_HELD: Final = 1_000  # likewise, texts that wait until their revision is published
MOST_CLAIMS: Final = 1_000  # unpublished revisions of a child that are remembered for a report
MOST_EARLIER: Final = 1_000  # wide revisions that were published before newer ones: frames may come long after
MOST_REMOVED: Final = 1_000  # removed queries that are remembered: a gateway that was offline may still serve them
PATIENCE_US: Final = 10_000_000  # before a report: a child may get a definition earlier than its parent
AHEAD_US: Final = 300_000_000  # as for frontiers (docs/protocol.md 4.4)


@dataclass(frozen=True, slots=True)
class Publication:
    """The newest definition of a query on one topic.

    node: the node in the topic, '' for all. text: canonical text; '': removed; None: this version cannot read it.
    """

    node: str
    query: str
    revision: int
    text: str | None

    def plain(self) -> list[object]:
        """The publication as plain values, for a spool, a landing file or a decision."""
        return [self.node, self.query, self.revision, self.text]

    @classmethod
    def of_plain(cls, values: Sequence[Any]) -> Publication:
        """From the values of `plain`."""
        node, query, revision, text = values
        return cls(str(node), str(query), int(revision), None if text is None else str(text))


def publication(topic: str, payload: bytes) -> Publication | None:
    """The publication in a message on a definition topic; None if it is not for a query or has no revision."""
    parsed = topics.parse(topic)
    if parsed is None or parsed.what != "definition" or parsed.kind != "query" or not payload:
        return None
    node = "" if parsed.scope == topics.ALL else parsed.node
    try:
        definition = parse_definition("query", parsed.other, payload)
    except ConfigError:
        revision = revision_in(payload)
        return None if not revision else Publication(node, parsed.other, revision, None)
    if definition.revision is None:
        return None  # the parent publishes it again with a revision
    value = definition.value
    text = canonical_query(value) if isinstance(value, Query) else ""
    return Publication(node, parsed.other, definition.revision, text)


def difference(below: Publication, above: Publication) -> str:
    """The problem of a query that is published for all nodes on two brokers with different content; '' if there is
    none.
    """
    if below.revision > above.revision:
        why = f"revision {below.revision} on the lower broker, {above.revision} on the upper one"
        return f"{why}: its rows are not shown before it is published on the upper one, too"
    same = below.revision < above.revision or None in (below.text, above.text) or below.text == above.text
    return "" if same else f"revision {below.revision} has other content on the lower broker than on the upper one"


def published_in(state: Mapping[str, Any] | None) -> list[Publication]:
    """The publications in the state that a process keeps under PUBLISHED."""
    return [Publication.of_plain(each) for each in (state or {}).get(PUBLISHED, ())]


def contradiction(query: Query, group: Group, plan: Plan, basis: Basis = basis_of) -> str:
    """How the definition of a query contradicts a plan that names it; '' if it does not.

    basis: `basis_of`, or a cache of it for many plans.
    """
    if query.group_at(group.node) != group:
        return f"query {query.id} revision {query.revision} is defined with another window, filter or key"
    if plan.kind in OF_STATES and not set(basis(query.aggregates, plan.scale)) <= set(plan.basis):
        return f"query {query.id} revision {query.revision} is defined with other functions"
    return ""


class KnownDefinitions:
    """The publications, and the valid texts of definitions in the order of arrival."""

    def __init__(
        self, texts: Iterable[str] = (), published: Iterable[Publication] = (), overlap: int | None = None
    ) -> None:
        """overlap: most windows that may contain a reading of a query that nobody published; None: any number."""
        self.overlap = overlap
        self.texts = TextShares(MOST_TEXTS)
        self.version = 0
        # texts dropped because of a share (MOST_TEXTS, MOST_HELD) or no id, since the process started
        self.not_taken = 0
        self.unnamed: set[QueryKey] = set()  # new revisions that no plan and no member has named yet
        self.released: list[str] = []  # texts that waited and are valid now; the caller takes them
        self.corrected: list[str] = []  # published texts that replaced texts of frames; the caller takes them
        self._text: dict[QueryKey, str] = {}
        self._queries: dict[QueryKey, Query | None] = {}
        self._answers: dict[tuple[Group, Plan], str] = {}
        self._fits: dict[tuple[QueryKey, Group], bool] = {}
        self._wide: dict[QueryKey, int] = {}  # see `_too_wide`
        self._published: dict[str, dict[str, Publication]] = {}  # query -> node -> newest
        self._earlier: dict[QueryKey, Publication] = {}  # wide revisions that newer ones have replaced
        self._removed: dict[str, None] = {}  # removed queries, the latest last
        self._held: dict[str, QueryKey] = {}  # waiting text -> its revision, which is not published yet
        self._waiting = TextShares(MOST_HELD)  # the texts of `_held`
        self._claims: dict[str, Claims] = {}  # by child
        for each in published:
            self.publish(each)
        for text in texts:
            self.add(text)

    # --- publications ----------------------------------------------------------------------------------------------

    def publish(self, found: Publication) -> bool:
        """Add a publication. Returns whether it is new."""
        of_query = self._published.setdefault(found.query, {})
        known = of_query.get(found.node)
        if known is not None and (
            found.revision < known.revision or (found.revision == known.revision and known.text is not None)
        ):
            return False
        if found == known:
            return False
        if known is not None and known.text:
            self._remember_wide(known)
        of_query[found.node] = found
        gone = self._forget_removed(found)
        key = QueryKey(found.query, found.revision)
        self._changed()
        self._queries.pop(key, None)
        first = self._text.get(key)
        if found.text and first is not None and first != found.text:  # a frame came before the publication
            self.texts.remove(first)
            self.texts.add(found.text)
            self._text[key] = found.text
            self.corrected.append(found.text)
        if found.text:
            self.texts.release(found.text)  # a child may have given it too
        for claims in self._claims.values():  # only what ends is looked at: children may have many
            for query in (found.query, *gone):
                claims.pop(query, None)
        for text in [text for text, held in self._held.items() if held.query == found.query and not self._ahead(held)]:
            child = self._waiting.of[text]
            del self._held[text]
            self._waiting.remove(text)
            if taken := self.add(text, child):
                self.released.append(taken)
        return True

    def _remember_wide(self, known: Publication) -> None:
        """Remember a publication that a newer one replaces, so that its windows are never taken for too many."""
        key = QueryKey(known.query, known.revision)
        if self._width(key):
            self._earlier.pop(key, None)  # to the end: a restart publishes them in this order
            self._earlier[key] = known
            for oldest in [*self._earlier][:-MOST_EARLIER]:
                del self._earlier[oldest]

    def _forget_removed(self, found: Publication) -> list[str]:
        """If the query is removed on all topics, remember it among the latest MOST_REMOVED. Returns forgotten ones."""
        if any(each.text != "" for each in self._published[found.query].values()):
            self._removed.pop(found.query, None)
            return []
        self._removed[found.query] = None
        gone = [*self._removed][:-MOST_REMOVED]
        for query in gone:
            del self._removed[query], self._published[query]
            self._earlier = {key: each for key, each in self._earlier.items() if key.query != query}
        return gone

    def _changed(self) -> None:
        self._answers.clear()
        self._fits.clear()
        self._wide.clear()
        self.version += 1

    def published(self) -> list[Publication]:
        """The newest publications."""
        return [found for of_query in self._published.values() for found in of_query.values()]

    def publications(self) -> list[Publication]:
        """What another instance needs for the same answers: those of wide revisions that newer ones replaced, too."""
        return [*self._earlier.values(), *self.published()]

    @property
    def shares(self) -> tuple[TextShares, TextShares]:
        """The texts that are valid and those that wait (`held`), with their senders."""
        return self.texts, self._waiting

    @property
    def held(self) -> tuple[str, ...]:
        """The texts that wait until their revision is published."""
        return tuple(self._held)

    def _ahead(self, key: QueryKey) -> bool:
        """Whether the query is published, and the revision is newer than all published ones on any topic."""
        of_query = self._published.get(key.query)
        return of_query is not None and key.revision > max(each.revision for each in of_query.values())

    def _content(self, key: QueryKey) -> str | None:
        """The text of a revision that is published, or that was and is wide; None if there is none."""
        for each in self._published.get(key.query, {}).values():
            if each.revision == key.revision and each.text:
                return each.text
        return self._earlier[key].text if key in self._earlier else None

    # --- texts of frames -------------------------------------------------------------------------------------------

    def add(self, text: str, child: str = "", gateways: int = 1) -> str:
        """Add a text from a frame. Returns the valid text of its revision if that is new; else '', also if it waits.

        A text without an id, or whose revision is not a number, is not kept. Neither is one beyond the share of its
        child, unless it is published. child: '' for a text that was kept before; gateways: how many are below it.
        """
        said = foreign_json.table(text)
        revision = said.get("revision", 0)
        if isinstance(said.get("id"), str) and isinstance(revision, int):
            key = QueryKey(said["id"], revision)
            if self._ahead(key):
                if self._waiting.add(text, child, gateways):
                    self._held[text] = key
                else:
                    self.not_taken += 1
                return ""
            content = self._content(key)
            text, child = (text, child) if content is None else (content, "")
        else:  # no plan can name it, so it must not take room from others
            self.not_taken += 1
            return ""
        if text in self.texts:
            return ""
        if not self.texts.add(text, child, gateways):
            self.not_taken += 1
            return ""
        self._text.setdefault(key, text)
        self.unnamed.add(key)
        self._changed()
        return text

    def revisions(self) -> Set[QueryKey]:
        return self._text.keys()

    def readable(self, known: Container[QueryKey]) -> list[str]:
        """The texts of all other revisions than these that this version can read."""
        others = [key for key in self._text if key not in known and self._query(key) is not None]
        return [self._content(key) or self._text[key] for key in others]

    def name(self, keys: Iterable[QueryKey]) -> None:
        """Note that a plan or a member names these revisions."""
        self.unnamed.difference_update(keys)

    def forget(self, keys: Iterable[QueryKey]) -> list[QueryKey]:
        """Forget the texts of these revisions, except published and unnamed ones. Returns the forgotten revisions."""
        out = [key for key in keys if self._content(key) is None and key not in self.unnamed]
        for key in out:
            text = self._text.pop(key, None)
            if text is not None:
                self.texts.remove(text)
            self._queries.pop(key, None)
            for claims in self._claims.values():
                if key.query in claims and key.query not in self._published:
                    del claims[key.query]  # of a text with too many windows
        if out:
            self._changed()
        return out

    def reach_us(self, key: QueryKey) -> int | None:
        """How long after its first reading a row of this revision may end; None if the definition is not known."""
        query = self._query(key)
        return None if query is None else extent_us(query.window)

    def serves(self, child: str, leaves: Container[str], serving: Serving, now_us: int) -> bool:
        """Whether the range for which a child serves a query is valid. leaves: gateways below the child, or itself."""
        of_query = self._published.get(serving.query)
        if self._too_wide(serving.key):
            self._claim(child, serving.key, now_us)
            return False
        if of_query is None:
            return True
        newest = max(
            (each for node, each in of_query.items() if node in ("", child) or node in leaves),
            key=lambda each: each.revision,
            default=None,
        )
        if newest is None or serving.revision > newest.revision:
            self._claim(child, serving.key, now_us)
            return False
        if serving.revision < newest.revision:
            return True
        if newest.text == "" or serving.start_until_us is not None:  # removed, or ended without a newer revision
            return False
        query = self._query(newest_key) if (newest_key := serving.key) in self._text else None
        begin_us = max(now_us + AHEAD_US, 0 if query is None else query.effective_from_us or 0)
        return serving.start_from_us is None or serving.start_from_us <= begin_us

    def _claim(self, child: str, key: QueryKey, now_us: int) -> None:
        claims = self._claims.setdefault(child, {})
        revision, since_us = claims.get(key.query, (-1, now_us))
        if revision != key.revision and (key.query in claims or len(claims) < MOST_CLAIMS):
            claims[key.query] = (key.revision, since_us)

    def claims(self) -> list[list[object]]:
        """The unpublished revisions that children serve, as plain values for `claimed`."""
        return [[child, query, *of] for child, claims in self._claims.items() for query, of in claims.items()]

    def claimed(self, claims: Iterable[Sequence[Any]]) -> None:
        """Continue from the result of `claims`, so that each is reported once and in time also after a start."""
        self._claims = {}
        for child, query, revision, since_us in claims:
            self._claims.setdefault(str(child), {})[str(query)] = (int(revision), int(since_us))

    def overdue(self, now_us: int) -> list[tuple[str, str]]:
        """Returns (child, why) for revisions that a child serves and that were not published in time; each once."""
        out = []
        for child, claims in self._claims.items():
            for query, (revision, since_us) in claims.items():
                if since_us >= 0 and not 0 <= now_us - since_us < PATIENCE_US:
                    claims[query] = (revision, -1)
                    if why := self._why_claimed(QueryKey(query, revision)):
                        out.append((child, why))
        return out

    def _why_claimed(self, key: QueryKey) -> str:
        """Why a claim does not count; '' if it does: its text was forgotten, or this version has no bound."""
        if wide := self._too_wide(key):
            forms = [each for each in self._published.get(key.query, {}).values() if each.revision == key.revision]
            by, do = "by nobody", "publish it"
            if any(each.text is None for each in forms):
                by, do = "in a form that this version cannot read", "install the version of its publisher"
            return (
                f"query {key.query} revision {key.revision} is published {by}, and each of its readings would be "
                f"in {wide} windows, at most {self.overlap}: {do}, or give it a longer slide"
            )
        newest = max((each.revision for each in self._published.get(key.query, {}).values()), default=None)
        if newest is None:
            return ""
        return f"revision {key.revision} of query {key.query} is not published for it, only up to revision {newest}"

    # --- rows ------------------------------------------------------------------------------------------------------

    def fits(self, key: QueryKey, group: Group) -> bool:
        """Whether a query's revision belongs to the group, and has not more windows than it may have.

        True if its definition is not known or cannot be read.
        """
        answer = self._fits.get((key, group))
        if answer is None:
            if len(self._fits) >= MOST_KNOWN:
                self._fits.clear()
            query = self._query(key)
            own = query is None or query.group_at(group.node) == group
            answer = self._fits[key, group] = own and not self._too_wide(key)
        return answer

    def _too_wide(self, key: QueryKey) -> int:
        """In how many windows a reading would be, if that is too many for a text that only children gave; else 0.

        A text that was ever published stays: its last windows close after the next revision is published.
        """
        if self.overlap is None:
            return 0
        wide = self._wide.get(key)
        if wide is None:
            if len(self._wide) >= MOST_KNOWN:
                self._wide.clear()
            wide = self._wide[key] = self._width(key) if self.texts.of.get(self._text.get(key, "")) else 0
        return wide

    def _width(self, key: QueryKey) -> int:
        """In how many windows a reading would be, if an unpublished query may not have so many; else 0."""
        query = None if self.overlap is None else self._query(key)
        many = 0 if query is None else overlap(query.window)
        return many if self.overlap is not None and many > self.overlap else 0

    def contradicts(self, group: Group, plan: Plan) -> str:
        """How a plan contradicts the definitions of its queries; '' if it does not.

        Frames with such a plan are settled as bad and declared, because the root would fail on their rows in every
        batch.
        """
        answer = self._answers.get((group, plan))
        if answer is None:
            if len(self._answers) >= MOST_KNOWN:
                self._answers.clear()
            answer = self._answers[group, plan] = self._contradicts(group, plan)
        return answer

    def _contradicts(self, group: Group, plan: Plan) -> str:
        for key in plan.keys:
            query = self._query(key)
            if query is not None and (why := contradiction(query, group, plan)):
                return why
        return ""

    def _query(self, key: QueryKey) -> Query | None:
        if key not in self._queries:
            text = self._content(key) or self._text.get(key)
            if text is None:
                return None
            try:
                self._queries[key] = query_of(text)
            except ConfigError:  # from a newer version, or with words of a package that is not installed
                self._queries[key] = None
        return self._queries[key]
