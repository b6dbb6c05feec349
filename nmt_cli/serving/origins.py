"""Check the Host and Origin headers of requests, to prevent DNS rebinding and CSRF."""

import ipaddress
import re
import socket
from collections.abc import Sequence
from dataclasses import dataclass

from starlette.datastructures import Headers

from nmt_cli.system.errors import UsageError, printable

# A host and an optional port, such as example.org, localhost:3000 or [::1]:80
_HOST = r"(\[[0-9a-f:.]{2,45}\]|[a-z0-9_.-]{1,253})(?::([0-9]{1,5}))?"
_AUTHORITY = re.compile(_HOST, re.IGNORECASE | re.ASCII)
_ORIGIN = re.compile(f"[a-z][a-z0-9+.-]{{0,30}}://{_HOST}", re.IGNORECASE | re.ASCII)
_DEFAULT_PORTS = "80", "443"
_SAFE_METHODS = "GET", "HEAD", "OPTIONS"
ANY = "*"


@dataclass(frozen=True)
class Access:
    """The host names of the server, and the origins whose web pages may use it."""

    hosts: frozenset[str] = frozenset({ANY})
    addresses: bool = False  # accept every IP address as a host name
    origins: tuple[str, ...] = ()

    def refusal(self, method: str, headers: Headers, has_keys: bool) -> tuple[int, str] | None:
        """Return the status and the message of a refusal, or None if the request is accepted.

        `has_keys` means that every request needs an API key. In this case, pages of every origin may send requests.
        """
        hosts = headers.getlist("Host")
        for host in hosts:
            if not self.has_host(host):
                found = _AUTHORITY.fullmatch(host)
                advice = f". To allow it, start nmt serve with --allow-host {printable(found[1], 100)}" if found else ""
                return 421, f"{printable(host, 100)} is not a name of this server{advice}"
        origin = headers.get("Origin")
        if has_keys or origin is None or method in _SAFE_METHODS or ANY in self.origins or origin in self.origins:
            return None
        if any(_is_same(origin, host) for host in hosts):
            return None
        shown = printable(origin, 100)
        advice = f". To allow them, start nmt serve with --cors {shown}" if _ORIGIN.fullmatch(origin) else ""
        return 403, f"Pages from {shown} may not use this server{advice}"

    def has_host(self, host: str) -> bool:
        """Return whether a Host header has a name of this server. Accept every loopback address."""
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
    """Return whether an origin has the host and port of a Host header.

    A missing port equals both 80 and 443, and the scheme does not matter, because a proxy may terminate TLS.
    """
    pair = []
    for found in (_ORIGIN.fullmatch(origin), _AUTHORITY.fullmatch(host)):
        if not found:
            return False
        pair.append((found[1].lower(), None if found[2] in _DEFAULT_PORTS else found[2]))
    return pair[0] == pair[1]


def access_for(host: str, names: Sequence[str], origins: Sequence[str]) -> Access:
    """Return the rules for a server that listens on `host`, a host name or an IP address.

    `names` are the values of --allow-host, and `origins` those of --cors. In both, "*" allows all. Raise UsageError if
    a name or an origin is malformed.
    """
    for name in names:
        found = _AUTHORITY.fullmatch(name)
        if name != ANY and (not found or found[2]):
            raise UsageError(
                f"--allow-host {printable(name, 100)} is not a host name. Use a name such as example.org without a port"
            )
    for origin in origins:
        if origin != ANY and not _ORIGIN.fullmatch(origin):
            raise UsageError(
                f"--cors {printable(origin, 100)} is not an origin. "
                "Use an origin such as https://example.org or http://localhost:3000"
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
