"""respx for httpx and httpx2 alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, overload

from antiphon._errors import MissingDependencyError

if TYPE_CHECKING:
    import respx

P = ParamSpec("P")
T = TypeVar("T")


@overload
def mocked(function: Callable[P, T], /) -> Callable[P, T]: ...
@overload
def mocked(
    *, base_url: str | None = None, assert_all_called: bool = True, assert_all_mocked: bool = True
) -> respx.MockRouter: ...
def mocked(function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """``respx.mock`` that intercepts httpx2 as well, on which openai runs from version 3 on: there,
    ``respx.mock`` alone lets requests out into the network. Sync and async; no server, no socket.

    >>> with mocked(base_url="http://router/v1") as respx_mock:  # doctest: +SKIP
    ...     route = respx_mock.post("/chat/completions").respond(json=...)
    ...     run_my_agent(OpenAI(base_url="http://router/v1", api_key="none"))
    ...     assert_same_conversation(route.calls)

    Also a decorator, with options or without; a parameter called ``respx_mock`` is given the router. Options
    and routes are respx'. A request that nothing mocks raises in the client, and once more at the end: some
    clients take it for a lost connection, and programs live with that. Without httpx2 installed it is for
    httpx alone.

    Raises:
        MissingDependencyError: respx is not installed.
    """
    try:
        from antiphon.testing._respx import MockRouter
    except ImportError as error:
        raise MissingDependencyError(
            "antiphon.testing.mocked needs respx, which is not installed: pip install 'antiphon[testing]'"
        ) from error
    router = MockRouter(**options)
    return router if function is None else router(function)
