"""Keeps a crawler out of private networks.

The check stands where a socket is made, on the address it is about to connect to. So it covers names that
resolve into a private network, names that resolve differently a moment later, numbers in any spelling, and
redirects.
"""

import ipaddress
import socket
from typing import Any

_NAT64 = ipaddress.ip_network("64:ff9b::/96")

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class PrivateAddress(OSError):
    """The host's address is in a private network (or loopback, link-local, shared, reserved, multicast)."""

    def __init__(self) -> None:
        super().__init__("the host is in a private network")


def is_public(text: str) -> bool:
    """Whether an address is in the public internet, and so is any address wrapped in it."""
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return False
    return all(_is_public(each) for each in _unwrapped(address))


def public_socket(info: tuple[Any, ...]) -> socket.socket:
    """aiohttp's ``socket_factory``: a socket for an address that may be connected to.

    Raises PrivateAddress.
    """
    family, kind, protocol, _, address = info
    if not is_public(str(address[0])):
        raise PrivateAddress
    return socket.socket(family=family, type=kind, proto=protocol)


def _is_public(address: Address) -> bool:
    return address.is_global and not (
        address.is_multicast or address.is_reserved or address.is_unspecified or address.is_loopback
    )


def _unwrapped(address: Address) -> list[Address]:
    """The IPv4 address inside an IPv6 one (mapped, 6to4, Teredo, NAT64), beside it or in its place."""
    if isinstance(address, ipaddress.IPv4Address):
        return [address]
    if address.ipv4_mapped is not None:
        return [address.ipv4_mapped]
    if address in _NAT64:
        return [ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF)]
    wrapped: list[Address] = [address]
    if address.sixtofour is not None:
        wrapped.append(address.sixtofour)
    if address.teredo is not None:
        wrapped.extend(address.teredo)
    return wrapped
