"""Which pages may ask: against pages that send requests with their reader's browser (CSRF, DNS rebinding)."""

import ipaddress
import re
import socket
from collections.abc import Sequence
from dataclasses import dataclass

from starlette.datastructures import Headers

from nmt_cli.system.errors import UsageError, printable

# A host of a Host header or an origin, and its port
_HOST = r"(\[[0-9a-f:.]{2,45}\]|[a-z0-9_.-]{1,253})(?::([0-9]{1,5}))?"
_AUTHORITY = re.compile(_HOST, re.IGNORECASE | re.ASCII)
_ORIGIN = re.compile(f"[a-z][a-z0-9+.-]{{0,30}}://{_HOST}", re.IGNORECASE | re.ASCII)
_USUAL_PORTS = "80", "443"
_SAFE = "GET", "HEAD", "OPTIONS"
ANY = "*"


@dataclass(frozen=True)
class Access:
    """The names under which clients reach the server, and the pages elsewhere that may ask it."""

    hosts: frozenset[str] = frozenset({ANY})
    addresses: bool = False  # each address is one of ours
    origins: tuple[str, ...] = ()

    def refuse(self, method: str, headers: Headers, keys: bool) -> tuple[int, str] | None:
        """Return the status and the sentence for a request that must not be answered."""
        hosts = headers.getlist("Host")
        for host in hosts:
            if not self._is_ours(host):
                shown = printable(host, 100)
                return 421, f"{shown} is no name of this server. Start nmt serve with --allow-host {shown} if it is"
        origin = headers.get("Origin")
        if keys or origin is None or method in _SAFE or ANY in self.origins or origin in self.origins:
            return None
        if any(_is_same(origin, host) for host in hosts):
            return None
        shown = printable(origin, 100)
        advice = f". Start nmt serve with --cors {shown} if they may" if _ORIGIN.fullmatch(origin) else ""
        return 403, f"Pages of {shown} must not ask this server{advice}"

    def _is_ours(self, host: str) -> bool:
        found = _AUTHORITY.fullmatch(host)
        if not found:
            return False
        name = found[1].lower().removesuffix(".")
        if ANY in self.hosts or name in self.hosts:
            return True
        try:
            address = ipaddress.ip_address(name.strip("[]"))
        except ValueError:
            return False
        return self.addresses or address.is_loopback


def _is_same(origin: str, host: str) -> bool:
    """Return whether a page's origin is the host that it asks, with TLS (which a proxy may end) or without."""
    pair = []
    for found in (_ORIGIN.fullmatch(origin), _AUTHORITY.fullmatch(host)):
        if not found:
            return False
        pair.append((found[1].lower(), None if found[2] in _USUAL_PORTS else found[2]))
    return pair[0] == pair[1]


def access(host: str, names: Sequence[str], origins: Sequence[str]) -> Access:
    """Return who may ask a server at the address `host`; UsageError for a name or an origin that is none."""
    for name in names:
        found = _AUTHORITY.fullmatch(name)
        if name != ANY and (not found or found[2]):
            raise UsageError(f"--allow-host {printable(name, 100)} is no host name. Give example.org, without a port")
    for origin in origins:
        if origin != ANY and not _ORIGIN.fullmatch(origin):
            raise UsageError(
                f"--cors {printable(origin, 100)} is no origin. Give https://example.org, with a port if it has one"
            )
    own = {"localhost", host.lower(), f"[{host.lower()}]"}
    if not is_loopback(host):
        own.add(socket.gethostname().lower())
    try:
        wildcard = ipaddress.ip_address(host).is_unspecified
    except ValueError:
        wildcard = False
    lowered = (name.lower().removesuffix(".") for name in names)
    return Access(frozenset({*own, *lowered}), wildcard, tuple(origin.lower() for origin in origins))


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
