"""Settings as they are copied into files. Pure."""

from __future__ import annotations

import json

from antiphon_server.advise.settings import Setting, Settings


def router_yaml(settings: Settings) -> str:
    """A file for ``antiphon router --config``; engines and all else stay as they are."""
    return "".join(f"{setting.name}: {setting.value}\n" for setting in settings.router)


def environment(settings: Settings) -> str:
    """The same as variables."""
    return "".join(f"ANTIPHON_{s.name.upper()}={_plain(s)}\n" for s in settings.router)


def engine_json(settings: Settings) -> str:
    """What belongs into ``kv_connector_extra_config``."""
    extra = {"bidirectional_kv_xfer": True} | {s.name: int(s.value) for s in settings.engine}
    return json.dumps({"kv_connector_extra_config": extra}, indent=2)


def _plain(setting: Setting) -> str:
    """Lists with commas between, as variables have them."""
    return setting.value.strip("[]").replace(", ", ",")
