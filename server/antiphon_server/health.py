"""Whether a server answers 200: the health check of containers, started every few seconds.

    python -m antiphon_server.health http://127.0.0.1:8000/ready [SECONDS]

Exit code 0 when it does, within 5 seconds unless told otherwise; else 1 with the reason on stderr, 2 for what
cannot be asked. Only the standard library is imported, and no proxy asked.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import urllib.error
import urllib.request
from types import FrameType
from typing import NoReturn

WAIT_S = 5.0
USAGE = "usage: python -m antiphon_server.health URL [SECONDS]"


def complaint(url: str, wait: float = WAIT_S) -> str | None:
    """Why the server at ``url`` is not healthy, None when it is. ``wait``: seconds for all of it.

    Only in the main thread: an alarm ends what no timeout of a socket does, such as a slow look-up of a name or
    an answer that comes byte by byte.
    """

    def late(signum: int, frame: FrameType | None) -> NoReturn:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, wait)
    try:
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with contextlib.closing(opener.open(url)) as answer:
            status = int(answer.status)
        return None if status == 200 else f"{url} answers {status}, not 200"
    except urllib.error.HTTPError as error:
        error.close()
        return f"{url} answers {error.code}, not 200"
    except TimeoutError:
        return f"{url} does not answer within {wait:g} s"
    except urllib.error.URLError as error:
        if isinstance(error.reason, TimeoutError):
            return f"{url} does not answer within {wait:g} s"
        return f"{url} cannot be reached: {error.reason}"
    except (OSError, ValueError) as error:
        return f"{url} cannot be reached: {error}"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def main(words: list[str]) -> int:
    """Exit code."""
    try:
        url, wait = words[0], float(words[1]) if len(words) > 1 else WAIT_S
    except (IndexError, ValueError):
        print(USAGE, file=sys.stderr)
        return 2
    if not url.startswith(("http://", "https://")) or not 0 < wait < 3600 or len(words) > 2:
        print(f"{USAGE}: an http:// or https:// URL, and more than 0 seconds", file=sys.stderr)
        return 2
    if reason := complaint(url, wait):
        print(reason, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
