from __future__ import annotations

import pytest

from antiphon._calls import api_of_model_call, is_vendor


@pytest.mark.parametrize(
    ("method", "url", "api"),
    [
        ("post", "http://r/v1/chat/completions", "http://r/v1"),
        ("POST", "http://r/v1/completions?x=1", "http://r/v1"),
        ("post", "http://r/v1/responses/", "http://r/v1"),
        ("post", "http://r/v1/messages", "http://r/v1"),
        ("post", "http://r/openai/deployments/d/chat/completions?api-version=1", "http://r/openai"),
        ("post", "http://r/deployments/d/v1/completions", "http://r/deployments/d/v1"),
        ("get", "http://r/v1/responses", None),
        ("post", "http://r/v1/responses/r-1/cancel", None),
        ("post", "http://r/v1/chat/completions/c-1", None),
        ("post", "http://r/v1/threads/t/messages", None),
        ("post", "http://r/v1/embeddings", None),
    ],
)
def test_model_calls_are_told_from_other_requests(method: str, url: str, api: str | None) -> None:
    assert api_of_model_call(method, url) == api


@pytest.mark.parametrize(
    ("host", "vendor"),
    [
        ("api.openai.com", True),
        ("EU.api.openai.com.", True),
        ("mine.openai.azure.com", True),
        ("bedrock-mantle.eu-west-1.api.aws", True),
        ("localhost", False),
        ("notapi.openai.com", False),
        ("api.openai.com.evil.example", False),
        ("router.cloudapp.azure.com", False),
    ],
)
def test_vendors_are_told_from_routers(host: str, vendor: bool) -> None:
    assert is_vendor(host) is vendor
