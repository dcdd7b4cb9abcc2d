"""One MQTT connection that reconnects by itself.

- connection: connects, reads, publishes, acknowledges; link: its settings and its reports
- dial: name lookup, TCP and TLS in a thread; backoff: pauses between attempts
- socket_stream, packets: read the socket in large pieces and split PUBLISH packets off
- paho_client: handshakes, keep-alive and publishing by paho; outgoing: publishes in flight

paho imports urllib.request, which imports http and email. They take two megabytes of memory and serve only proxies of
paho's own sockets, which are not used here. So this package defers the import until urllib.request is really used.
"""

from __future__ import annotations

import sys
import urllib
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any, Final

_NAME: Final = "urllib.request"


class _LoadedWhenUsed(ModuleType):
    def __getattr__(self, name: str) -> Any:
        if sys.modules.get(_NAME) is self:
            del sys.modules[_NAME]
        return getattr(import_module(_NAME), name)


if _NAME not in sys.modules:
    _later = _LoadedWhenUsed(_NAME)
    _later.__spec__ = find_spec(_NAME)  # an import statement reads only this
    sys.modules[_NAME] = vars(urllib)["request"] = _later
