"""One MQTT connection that keeps itself connected.

- connection: connects, reads, publishes, acknowledges; link: its settings and its reports
- dial: name, TCP and TLS in a thread; backoff: pauses between attempts
- socket_stream, packets: large reads, and PUBLISH packets split off them
- paho_client: handshakes, keep-alive and publishing by paho; outgoing: publishes in flight

paho imports urllib.request, which brings http and email: two megabytes of a gateway for proxies that only paho's own
sockets ask for. Here it is loaded once something of it is used.
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
    _later.__spec__ = find_spec(_NAME)  # an import statement looks at it, and at nothing else
    sys.modules[_NAME] = vars(urllib)["request"] = _later
