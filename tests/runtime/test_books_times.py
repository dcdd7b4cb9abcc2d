"""When a node publishes its books."""

from edge_agent.runtime.status_and_commands import BooksTimes

S = 1_000_000
T0 = 1_700_000_000 * S


def _published(books: dict[int, dict[str, object]], seconds: int) -> list[int]:
    """Second -> the book from then on. Returns the seconds at which books were published."""
    times, book, found = BooksTimes(), dict[str, object](), []
    for second in range(seconds):
        book = books.get(second, book)
        now_us = T0 + second * S
        if times.look(now_us) and times.due(book, now_us):
            times.published(book, now_us)
            found.append(second)
    return found


def test_books_that_change_all_the_time_are_published_every_two_minutes() -> None:
    assert _published({second: {"sent": second, "why": ""} for second in range(600)}, 600) == [0, 120, 240, 360, 480]


def test_books_that_did_not_change_are_published_again_after_an_hour_only() -> None:
    """A gateway without a query looked as if it had not been heard for days."""
    assert _published({0: {"sent": 1, "why": ""}, 300: {"sent": 2, "why": ""}}, 8000) == [0, 300, 3900, 7500]


def test_a_reason_that_is_over_is_not_shown_for_two_minutes() -> None:
    """The first books of a node leave before its parent's first receipt."""
    waits: dict[str, object] = {"sent": 0, "why": "waits for its parent: no receipt so far"}
    assert _published({0: waits, 3: {"sent": 0, "why": ""}}, 300) == [0, 10]


def test_a_reason_that_comes_and_goes_doubles_the_bytes_at_most() -> None:
    flaps: dict[int, dict[str, object]] = {
        second: {"sent": second, "why": "late" if second // 20 % 2 else ""} for second in range(1200)
    }
    assert 10 <= len(_published(flaps, 1200)) <= 20


def test_a_clock_that_steps_back_does_not_stop_the_books() -> None:
    times = BooksTimes()
    times.published({"sent": 1}, T0)
    assert times.look(T0 - 3600 * S)
    assert times.due({"sent": 2}, T0 - 3600 * S)
