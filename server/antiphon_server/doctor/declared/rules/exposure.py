"""Who can reach what, and what is readable. Hints: no manifest tells all of a network."""

from __future__ import annotations

import re
from collections.abc import Iterator
from urllib.parse import urlsplit

from antiphon_server.doctor.declared.box import Box
from antiphon_server.doctor.declared.declared import HIDDEN, SECRETS_FILE, Declared
from antiphon_server.doctor.declared.rule import Hit, rule
from antiphon_server.doctor.declared.settings_of_router import Settled, routers_of
from antiphon_server.doctor.finding import Severity
from antiphon_server.stack.reach import loopback

ANYWHERE = "0.0.0.0"


def _loopback(host: str) -> bool:
    return host == "localhost" or loopback(host.strip("[]"))


def reached(box: Box, host: str) -> str | None:
    """From where more than this machine gets to a port of the box that listens on ``host``; None: from
    nowhere that is known."""
    if _loopback(host):
        return None
    if box.published and not all(map(_loopback, box.published)):
        return "it is published on all addresses" if ANYWHERE in box.published else "it is published"
    if box.host_network or box.manager in ("shell", "systemd"):
        return f"it listens on {host} of its host"
    if box.manager == "kubernetes" and not box.fenced:
        return "every pod of the cluster reaches it, no NetworkPolicy selects it"
    return None


@rule(
    "engine-exposed",
    Severity.WARNING,
    "an engine that others can reach asks for a key",
    "Whoever reaches an engine can use it, read its metrics and move leases; tenants' KV is told apart only "
    "by the router.",
)
def engine_exposed(fleet: Declared) -> Iterator[Hit]:
    for engine in fleet.engines:
        how = reached(engine.box, engine.flags.get("host") or ANYWHERE)
        if how is not None and engine.key is None and "headless" not in engine.flags.values:
            what = f"it asks for no key, and {how}"
            yield Hit(
                engine.subject, what, "set ANTIPHON_ENGINE_KEY for it and the router, or fence its network"
            )


@rule(
    "router-exposed",
    Severity.NOTE,
    "a router that others can reach asks its clients for keys",
    "Whoever reaches it can use the engines.",
)
def router_exposed(fleet: Declared) -> Iterator[Hit]:
    for one in routers_of(fleet):
        how = reached(one.router.box, one.settings.host) if one.shows("host") else None
        keys = {"api_keys", "keys_file", "trust_forwarded_tenant"} & one.given
        if how is not None and not keys:
            what = f"it asks for no key, and {how}"
            yield Hit(
                one.router.subject, what, "set keys_file ('antiphon key' makes keys), or a gateway in front"
            )


@rule(
    "plain-secret",
    Severity.WARNING,
    "no secret is readable in a manifest, or in an environment file that every user may read",
    "Manifests are kept, shown and copied; whoever reads one has the key.",
)
def plain_secret(fleet: Declared) -> Iterator[Hit]:
    for secret in fleet.plain:
        what = f"{secret.name} is written as it is"
        remedy = "take it from a secret: a Secret reference, ${NAME} with .env kept out of git, or NAME_FILE"
        if secret.file is not None:
            what = f"{secret.name} is in {secret.file}, which every user of this machine may read"
            remedy = f"chmod 600 {secret.file}, or move it into a file of its own that only root may read"
        yield Hit(secret.subject, what, remedy)


@rule(
    "redis-password",
    Severity.WARNING,
    "a Redis beyond this machine asks for a password",
    "Whoever reaches it can read and take the handles of every conversation.",
)
def redis_password(fleet: Declared) -> Iterator[Hit]:
    for one in _remote(fleet):
        url = urlsplit(one.settings.store)
        if url.password is None:
            what = f"store {url.scheme}://{url.hostname} has no password"
            units = one.router.box.manager == "systemd"
            yield Hit(one.router.subject, what, _IN_SECRETS if units else _FENCED)
    for store in fleet.stores:
        words = " ".join(store.words)
        if "requirepass" in words or "--aclfile" in words or re.search(r"\.conf\b", words):
            continue
        how = reached(store.box, ANYWHERE)
        if how is not None and "--bind 127.0.0.1" not in words:
            yield Hit(store.subject, f"it asks for no password, and {how}", _FENCED)


_FENCED = "set a password (requirepass, redis://:password@...) or keep it on a network of its own"
# A site's file and what is rendered from it are open to every user of a host.
_IN_SECRETS = (
    "set a password (requirepass), and write ANTIPHON_STORE=redis://:password@... into "
    f"{SECRETS_FILE} on the router's host, not into a site's file; or keep it on a network of its own"
)


@rule(
    "redis-tls",
    Severity.NOTE,
    "a Redis beyond this machine is spoken to by TLS",
    "Handles and passwords go over the network in the clear.",
)
def redis_tls(fleet: Declared) -> Iterator[Hit]:
    for one in _remote(fleet):
        url = urlsplit(one.settings.store)
        if url.scheme == "redis":
            what = f"store redis://{url.hostname} is not encrypted"
            yield Hit(one.router.subject, what, "use rediss:// where the network is not your own")


def _remote(fleet: Declared) -> Iterator[Settled]:
    """Routers whose Redis is elsewhere: not a service of the same compose file, which has its own network."""
    beside = {store.box.network for store in fleet.stores if reached(store.box, ANYWHERE) is None}
    for one in routers_of(fleet):
        store = one.settings.store
        if not one.shows("store") or HIDDEN in store or not store.startswith(("redis://", "rediss://")):
            continue
        host = urlsplit(store).hostname or ""
        if not _loopback(host) and host not in beside:
            yield one


@rule(
    "pinned-image",
    Severity.WARNING,
    "images are pinned",
    "Prefill and decode must run the same versions; a tag that moves parts them at the next restart.",
)
def pinned_image(fleet: Declared) -> Iterator[Hit]:
    images = [(one.subject, one.box.image) for one in fleet.engines]
    images += [(one.subject, one.box.image) for one in fleet.routers]
    for subject, image in images:
        if image is None or "@" in image:
            continue
        tag = image.rpartition("/")[2].partition(":")[2]
        if tag in ("", "latest", "nightly"):
            yield Hit(subject, f"image {image} has no fixed version", "name a version, or a digest")


RULES = (engine_exposed, router_exposed, plain_secret, redis_password, redis_tls, pinned_image)
