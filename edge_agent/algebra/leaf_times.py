"""A time for every leaf below a parent, stored compactly, because most leaves of one member share a time."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import ItemsView, Iterator, Mapping, Sequence, ValuesView

Shared = Sequence[tuple[tuple[str, ...], int]]  # (leaves, the time that they share)


class LeafTimes(Mapping[str, int]):
    """A frozen mapping from leaf to time [us]. Access to single entries builds a plain dict; other methods do not.

    >>> times = LeafTimes(("a", "b", "c"), [(("a", "b"), 5), (("c",), 7)], {"b": 2})
    >>> times.below(6), sorted(times.distinct()), dict(times)
    ({'a': 5, 'b': 2}, [2, 5, 7], {'a': 5, 'b': 2, 'c': 7})
    """

    __slots__ = ("_own", "_plain", "_shared", "names")

    def __init__(self, names: tuple[str, ...], shared: Shared, own: Mapping[str, int]) -> None:
        """names: all leaves, sorted. own: leaf -> its own time, which overrides the shared one."""
        self.names = names
        self._shared, self._own = shared, own
        self._plain: dict[str, int] | None = None

    @classmethod
    def of(cls, times: Mapping[str, int]) -> LeafTimes:
        """A LeafTimes with the times of any mapping."""
        return times if isinstance(times, LeafTimes) else cls(tuple(sorted(times)), (), times)

    def below(self, before_us: int) -> dict[str, int]:
        """The leaves whose time is below `before_us`, with their times."""
        own = self._own
        out = {leaf: us for leaves, us in self._shared if us < before_us for leaf in leaves if leaf not in own}
        out.update((leaf, us) for leaf, us in own.items() if us < before_us)
        return out

    def distinct(self) -> set[int]:
        """All times that occur."""
        own = self._own
        return {us for leaves, us in self._shared if not all(leaf in own for leaf in leaves)}.union(own.values())

    def in_order(self) -> list[int]:
        """The time of each leaf in `names`."""
        times = self._times()
        return [times[leaf] for leaf in self.names]

    def also(self, times: Mapping[str, int]) -> LeafTimes:
        """A copy with the times of further leaves. Leaves that are already in it keep their time."""
        new = {leaf: us for leaf, us in times.items() if leaf not in self}
        return LeafTimes(tuple(sorted((*self.names, *new))), self._shared, {**self._own, **new}) if new else self

    def __getitem__(self, leaf: str) -> int:
        return self._dict()[leaf]

    def __contains__(self, leaf: object) -> bool:
        at = bisect_left(self.names, leaf) if isinstance(leaf, str) else len(self.names)
        return at < len(self.names) and self.names[at] == leaf

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)

    def items(self) -> ItemsView[str, int]:
        return self._dict().items()

    def values(self) -> ValuesView[int]:
        return self._dict().values()

    def _dict(self) -> dict[str, int]:
        if self._plain is None:
            self._plain = self._times()
        return self._plain

    def _times(self) -> dict[str, int]:
        times: dict[str, int] = {}
        for leaves, us in self._shared:
            times.update(dict.fromkeys(leaves, us))
        times.update(self._own)
        return times
