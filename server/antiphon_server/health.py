"""Whether a server answers 200: the health check of containers, started every few seconds.

    python -m antiphon_server.health http://127.0.0.1:8000/ready [SECONDS]

Exit code 0 when it does, within 5 seconds unless told otherwise; 1 when not, with the reason on stderr; 2 for
what cannot be asked. Only the standard library is imported, and no proxy asked. A name and a password in the
URL (``http://name:password@host``) are neither sent nor shown.
"""

from __future__ import annotations

import http.client
import queue
import re
import sys
import threading
import urllib.error
import urllib.request

WAIT_S = 5.0
USAGE = (
    "usage: python -m antiphon_server.health URL [SECONDS], with http:// or https:// and more than 0 seconds"
)
_USER = re.compile(r"^(https?://)(?:[^/?#]*|[^/?#:\[]*:(?!\d+[/?#]).*)@")
"""A user, as far as the last ``@`` before the path; or behind a ``/``, where it follows no host and port."""


def complaint(url: str, wait: float = WAIT_S) -> str | None:
    """Why the server at ``url`` is not healthy, None when it is. ``wait``: seconds for all of it."""
    # In a thread: a socket's timeout ends no slow look-up of a name and no answer that trickles.
    told: queue.SimpleQueue[str | None] = queue.SimpleQueue()
    threading.Thread(target=lambda: told.put(_ask(url, wait)), daemon=True).start()
    try:
        return told.get(timeout=wait)
    except queue.Empty:
        return f"{url} does not answer within {wait:g} s"


def _ask(url: str, wait: float) -> str | None:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=wait) as answer:
            status = int(answer.status)
        return None if status == 200 else f"{url} answers {status}, not 200"
    except urllib.error.HTTPError as error:
        error.close()
        return f"{url} answers {error.code}, not 200"
    except urllib.error.URLError as error:
        return f"{url} cannot be reached: {error.reason}"
    except (OSError, ValueError, http.client.HTTPException) as error:
        return f"{url} cannot be reached: {error!r}"


def _without_user(url: str) -> str:
    # urllib takes no user, and names what it cannot take in its errors.
    return _USER.sub(r"\1", url)


def main(words: list[str]) -> int:
    """Exit code."""
    try:
        url, wait = _without_user(words[0]), float(words[1]) if len(words) > 1 else WAIT_S
    except (IndexError, ValueError):
        url, wait = "", 0.0
    if not url.startswith(("http://", "https://")) or not 0 < wait < threading.TIMEOUT_MAX or len(words) > 2:
        print(USAGE, file=sys.stderr)
        return 2
    if reason := complaint(url, wait):
        print(reason, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
