"""One JSON object a line, as several commands print."""

from __future__ import annotations

import json
from typing import Final

# Ends of lines that JSON does not escape, but at which Python's splitlines and other readers end a line.
_LINE_ENDS: Final = str.maketrans({sign: f"\\u{ord(sign):04x}" for sign in "\u0085\u2028\u2029"})


def json_line(value: object) -> str:
    """The value as JSON without any end of a line, also of those that only Unicode knows."""
    return json.dumps(value, ensure_ascii=False).translate(_LINE_ENDS)
