"""IP addresses and CIDR blocks. Zones and IPv4-mapped IPv6 addresses are rejected."""

from __future__ import annotations

import ipaddress
import re

from herder.engine.schema.cel.declarations import Library
from herder.engine.schema.cel.errors import EvaluationError
from herder.engine.schema.cel.types import BOOL, CIDR, INT, IP, STRING

library = Library()
Address = ipaddress.IPv4Address | ipaddress.IPv6Address
_PREFIX_LENGTH = re.compile(r"(?:0|[1-9][0-9]{0,2})\Z", re.ASCII)
_LINK_LOCAL_MULTICAST = ipaddress.ip_network("224.0.0.0/24")


class IPValue:
    """An IP address (net.IP)."""

    __slots__ = ("address",)
    cel_type = "net.IP"

    def __init__(self, address: Address) -> None:
        self.address = address

    def __eq__(self, other: object) -> bool:
        return isinstance(other, IPValue) and self.address == other.address

    def __hash__(self) -> int:
        return hash(self.address)

    def __str__(self) -> str:
        return str(self.address)


class CIDRValue:
    """An address with a prefix length; the address need not be the first of the block."""

    __slots__ = ("address", "bits")
    cel_type = "net.CIDR"

    def __init__(self, address: Address, bits: int) -> None:
        self.address = address
        self.bits = bits

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CIDRValue) and (self.address, self.bits) == (other.address, other.bits)

    def __hash__(self) -> int:
        return hash((self.address, self.bits))

    def __str__(self) -> str:
        return f"{self.address}/{self.bits}"

    def contains(self, address: Address) -> bool:
        shift = self.address.max_prefixlen - self.bits
        return self.address.version == address.version and int(self.address) >> shift == int(address) >> shift

    def masked(self) -> CIDRValue:
        shift = self.address.max_prefixlen - self.bits
        return CIDRValue(type(self.address)(int(self.address) >> shift << shift), self.bits)


def _parse_address(text: str) -> Address:
    """Parse an address; raises ValueError with the reason."""
    if "%" in text:
        raise ValueError(f'IP address "{text}" with zone value is not allowed')
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        reason = f'ParseAddr("{text}"): unable to parse IP'
        raise ValueError(f'IP Address "{text}" parse error during conversion from string: {reason}') from None
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        raise ValueError(f'IPv4-mapped IPv6 address "{text}" is not allowed')
    return address


def _parse_block(text: str) -> CIDRValue:
    host, slash, length = text.rpartition("/")
    wrong = f'network address parse error during conversion from string: netip.ParsePrefix("{text}"): '
    if not slash:
        raise ValueError(f"{wrong}no '/'")
    if "%" in host:
        raise ValueError(f"{wrong}IPv6 zones cannot be present in a prefix")
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        raise ValueError(f'{wrong}ParseAddr("{host}"): unable to parse IP') from None
    if not _PREFIX_LENGTH.match(length):
        raise ValueError(f'{wrong}bad bits after slash: "{length}"')
    if int(length) > address.max_prefixlen:
        raise ValueError(f"{wrong}prefix length out of range")
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        raise ValueError(f'IPv4-mapped IPv6 address "{text}" is not allowed')
    return CIDRValue(address, int(length))


@library.function("ip", STRING, returns=IP)
def ip(text: str) -> IPValue:
    try:
        return IPValue(_parse_address(text))
    except ValueError as error:
        raise EvaluationError(str(error)) from None


@library.function("isIP", STRING, returns=BOOL)
def is_ip(text: str) -> bool:
    try:
        _parse_address(text)
    except ValueError:
        return False
    return True


@library.function("ip.isCanonical", STRING, returns=BOOL)
def is_canonical(text: str) -> bool:
    return str(ip(text)) == text


@library.function("cidr", STRING, returns=CIDR)
def cidr(text: str) -> CIDRValue:
    try:
        return _parse_block(text)
    except ValueError as error:
        raise EvaluationError(f"network address parse error during conversion from string: {error}") from None


@library.function("isCIDR", STRING, returns=BOOL)
def is_cidr(text: str) -> bool:
    try:
        _parse_block(text)
    except ValueError:
        return False
    return True


library.function("string", IP, returns=STRING)(str)
library.function("string", CIDR, returns=STRING)(str)
library.method("family", IP, returns=INT)(lambda value: value.address.version)
library.method("isUnspecified", IP, returns=BOOL)(lambda value: value.address.is_unspecified)
library.method("isLoopback", IP, returns=BOOL)(lambda value: value.address.is_loopback)
library.method("isLinkLocalUnicast", IP, returns=BOOL)(lambda value: value.address.is_link_local)


@library.method("isLinkLocalMulticast", IP, returns=BOOL)
def is_link_local_multicast(value: IPValue) -> bool:
    if isinstance(value.address, ipaddress.IPv4Address):
        return value.address in _LINK_LOCAL_MULTICAST
    first, second = value.address.packed[:2]
    return first == 0xFF and second & 0x0F == 2


@library.method("isGlobalUnicast", IP, returns=BOOL)
def is_global_unicast(value: IPValue) -> bool:
    address = value.address
    special = address.is_unspecified or address.is_loopback or address.is_multicast or address.is_link_local
    return not special and str(address) != "255.255.255.255"


library.method("ip", CIDR, returns=IP)(lambda block: IPValue(block.address))
library.method("prefixLength", CIDR, returns=INT)(lambda block: block.bits)
library.method("masked", CIDR, returns=CIDR)(lambda block: block.masked())
library.method("containsIP", CIDR, IP, returns=BOOL)(lambda block, value: block.contains(value.address))
library.method("containsIP", CIDR, STRING, returns=BOOL)(lambda block, text: block.contains(ip(text).address))


@library.method("containsCIDR", CIDR, CIDR, returns=BOOL)
def contains_block(block: CIDRValue, other: CIDRValue) -> bool:
    return block.bits <= other.bits and block.contains(other.address)


library.method("containsCIDR", CIDR, STRING, returns=BOOL)(lambda block, text: contains_block(block, cidr(text)))
