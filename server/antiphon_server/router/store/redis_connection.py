"""Scripts on one Redis or Valkey, each within a bounded time. Redis Cluster is refused."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from dataclasses import dataclass, field
from typing import Any

from redis.asyncio import BlockingConnectionPool
from redis.asyncio.connection import AbstractConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import NoScriptError, RedisError, ResponseError

from antiphon_server.router.config.redact import redacted

_CONNECTIONS = 32


class StoreError(Exception):
    """Redis did not do as asked. ``unsent``: it was not even asked, so nothing has changed there."""

    def __init__(self, message: str, *, unsent: bool) -> None:
        super().__init__(message)
        self.unsent = unsent


@dataclass(frozen=True)
class Script:
    """Lua, known to Redis by its hash once it has run."""

    text: str
    sha: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "sha", hashlib.sha1(self.text.encode(), usedforsecurity=False).hexdigest())


class RedisConnection:
    """``prefix``: of all keys. ``timeout``: seconds that one script may take, the wait for a connection
    included."""

    def __init__(self, url: str, *, prefix: str, timeout: float) -> None:
        self.address = redacted(url)
        self._prefix = f"{{{prefix}}}:1:"
        self._timeout = timeout
        self._single = False
        self._pool = BlockingConnectionPool.from_url(
            url,
            max_connections=_CONNECTIONS,
            timeout=None,
            retry=Retry(NoBackoff(), 0),
            protocol=2,
        )

    async def run(self, script: Script, *args: str | bytes | int) -> Any:
        """What the script returns.

        Raises:
            StoreError
        """
        try:
            return await self._send("EVALSHA", script.sha, 1, self._prefix, *args)
        except _UnknownScriptError:
            return await self._send("EVAL", script.text, 1, self._prefix, *args)

    async def check(self) -> None:
        """Ask once whether this is a single server: the keys of a conversation are in one place there.

        Raises:
            StoreError
        """
        if self._single:
            return
        try:
            info: bytes = await self._send("INFO", "cluster")
        except _RefusedError:
            info = b""  # not allowed to this user
        if b"cluster_enabled:1" in info:
            raise StoreError(
                f"{self.address} is a Redis Cluster, which is not supported: name a single server, or the "
                "address of a proxy or failover in front of one",
                unsent=True,
            )
        self._single = True

    async def close(self) -> None:
        """Close all connections."""
        with contextlib.suppress(TimeoutError, RedisError, OSError):
            async with asyncio.timeout(self._timeout):
                await self._pool.aclose()

    async def _send(self, *command: str | bytes | int) -> Any:
        unsent = True
        try:
            async with asyncio.timeout(self._timeout):
                connection: AbstractConnection = await self._pool.get_connection()  # type: ignore[no-untyped-call]
                try:
                    unsent = False
                    await connection.send_command(*command)
                    return await connection.read_response()
                except ResponseError:
                    raise
                except BaseException:  # the next command must not read this one's answer
                    await connection.disconnect(nowait=True)
                    raise
                finally:
                    await self._pool.release(connection)
        except NoScriptError as error:
            raise _UnknownScriptError(str(error), unsent=True) from error
        except ResponseError as error:
            raise _RefusedError(f"{self.address} refuses: {error}", unsent=False) from error
        except TimeoutError as error:
            message = f"{self.address} did not answer within {self._timeout:g} s"
            raise StoreError(message, unsent=unsent) from error
        except (RedisError, OSError) as error:
            raise StoreError(f"{self.address}: {error}", unsent=unsent) from error


class _RefusedError(StoreError):
    """An error reply. The connection is sound."""


class _UnknownScriptError(StoreError):
    """Redis was restarted, or has never run it."""
