"""respx, taught httpx2. Importing this needs respx."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any, ClassVar

import httpx
import respx
from respx.mocks import HTTPCoreMocker, Mocker
from respx.models import AllMockedAssertionError

_NAME = "httpcore2"


def mockers() -> list[type[Mocker]]:
    """What patches httpx and, where it is installed, httpx2. ``respx.mock(using="httpcore2")`` finds the
    second one by its name from the first call on."""
    if find_spec(_NAME) is None:
        return [HTTPCoreMocker]
    if _NAME not in Mocker.registry:
        _define()
    return [HTTPCoreMocker, Mocker.registry[_NAME]]


def _define() -> None:
    import httpx2

    @contextmanager
    def translating() -> Iterator[None]:
        """Errors that a route is told to raise are httpx'; programs on httpx2 expect its own."""
        try:
            yield
        except httpx.RequestError as error:
            raise getattr(httpx2, type(error).__name__)(str(error)) from error

    class HTTPCore2Mocker(HTTPCoreMocker):
        name = _NAME
        targets: ClassVar = [name.replace("httpcore.", f"{_NAME}.", 1) for name in HTTPCoreMocker.targets]

        @classmethod
        def handler(cls, httpx_request: httpx.Request) -> Any:
            respx_own: Any = super()
            with translating():
                return respx_own.handler(httpx_request)

        @classmethod
        async def async_handler(cls, httpx_request: httpx.Request) -> Any:
            respx_own: Any = super()
            with translating():
                return await respx_own.async_handler(httpx_request)


class MockRouter(respx.MockRouter):
    """respx' router, for both libraries at once. It tells of unmocked requests at its end as well: openai 2
    makes a connection error of them, which a program may well swallow."""

    def start(self) -> None:
        self.snapshot()
        self._unmocked: list[str] = []
        self._mockers = mockers()
        for mocker in self._mockers:
            mocker.register(self)
            mocker.start()

    def stop(self, clear: bool = True, reset: bool = True, quiet: bool = False) -> None:
        for mocker in self._mockers:
            mocker.unregister(self)
            mocker.stop()
        try:
            if not quiet and self._unmocked:
                listed = ", ".join(dict.fromkeys(self._unmocked))
                raise AllMockedAssertionError(f"nothing mocks {listed}: add a route for each")
            if not quiet and self._assert_all_called:
                self.assert_all_called()
        finally:
            if clear:
                self.rollback()
            if reset:
                self.reset()

    def handler(self, request: Any) -> Any:
        try:
            return super().handler(request)
        except AllMockedAssertionError:
            self._note(request)
            raise

    async def async_handler(self, request: Any) -> Any:
        try:
            return await super().async_handler(request)
        except AllMockedAssertionError:
            self._note(request)
            raise

    def _note(self, request: Any) -> None:
        """Routers are asked in the order of their opening: only the last one knows that none had a route."""
        if all(mocker.routers[-1] is self for mocker in self._mockers):
            self._unmocked.append(f"{request.method} {request.url}")
