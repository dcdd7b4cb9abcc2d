"""Texts that several senders give, each within a share of its own: whoever gives too many costs only itself."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

KILOBYTE: Final = 1_024  # of a text counts as one of the share, so that a share bounds memory too


class TextShares:
    """Texts in order of arrival, each with the sender that gave it first.

    of: text -> its sender; '': the text counts for nobody, and always has room.

    >>> shares = TextShares(2)
    >>> [shares.add(text, "a") for text in ("1", "2", "3")], shares.add("3", "b"), list(shares)
    ([True, True, False], True, ['1', '2', '3'])
    """

    def __init__(self, most: int, kept: Iterable[str] = ()) -> None:
        """most: the share of a sender that speaks for one gateway, in texts of up to a kilobyte.

        kept: texts of nobody.
        """
        self.most = most
        self.of: dict[str, str] = dict.fromkeys(kept, "")
        self._used: dict[str, int] = {}  # sender -> how much of its share its texts take

    def add(self, text: str, sender: str = "", gateways: int = 1) -> bool:
        """Add a text. Returns False if the share of its sender has no room. gateways: for so many the sender speaks."""
        if text in self.of:
            return True
        if sender:
            used = self._used.get(sender, 0) + _size(text)
            if used > self.most * gateways:
                return False
            self._used[sender] = used
        self.of[text] = sender
        return True

    def remove(self, text: str) -> None:
        """Remove a text, if it is here, and give its room back to its sender."""
        sender = self.of.pop(text, "")
        if sender:
            self._used[sender] -= _size(text)

    def release(self, text: str) -> None:
        """Let a text count for nobody from now on, in its place in the order."""
        sender = self.of.get(text, "")
        if sender:
            self._used[sender] -= _size(text)
            self.of[text] = ""

    def assign(self, senders: Iterable[tuple[str, str]]) -> None:
        """Let texts of nobody count for their senders again, as pairs (text, sender) of `of` from before a restart."""
        for text, sender in senders:
            if sender and self.of.get(text) == "":
                self.of[text] = sender
                self._used[sender] = self._used.get(sender, 0) + _size(text)

    def __contains__(self, text: object) -> bool:
        return text in self.of

    def __iter__(self) -> Iterator[str]:
        return iter(self.of)

    def __len__(self) -> int:
        return len(self.of)


def _size(text: str) -> int:
    return len(text) // KILOBYTE + 1
