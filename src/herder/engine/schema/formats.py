"""String formats, exactly as lenient and strict as in kube-apiserver.

Several are looser or odder than their RFCs (a duration may be `3 weeks`, a date-time may have any character before its
fraction). The quirks are reproduced, because objects that kube-apiserver stores must be accepted. Each check takes
linear time, since any writer of an object controls the text.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable
from functools import cache

from herder.engine.schema import re2

_HOSTNAME = (
    r"^([a-zA-Z0-9\p{S}\p{L}]((-?[a-zA-Z0-9\p{S}\p{L}]{0,62})?)|([a-zA-Z0-9\p{S}\p{L}]"
    r"(([a-zA-Z0-9-\p{S}\p{L}]{0,61}[a-zA-Z0-9\p{S}\p{L}])?)(\.)){1,}([a-zA-Z\p{L}]){2,63})$"
)
_DATE = r"([0-9]{4})-([0-9]{2})-([0-9]{2})\Z"
_TIME = r"([0-9]{2}):([0-9]{2}):([0-9]{2})(.[0-9]+)?(z|([+-][0-9]{2}:[0-9]{2}))\Z"
_PLAIN_DATE_TIME = r"[0-9]{4}-(?:0[1-9]|1[0-2])-(?:0[1-9]|1[0-9]|2[0-8])T(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]Z\Z"
_GO_DURATION = r"[-+]?(0|(([0-9]+(?:\.[0-9]*)?|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h))+)\Z"
_LOOSE_DURATION = r"(?<![0-9])([0-9]++)[\t\n\f\r ]*+([A-Za-zµ]+)"
_UNITS = (
    ("ns", "nano"), ("us", "µs", "micro"), ("ms", "milli"), ("s", "sec"), ("m", "min"), ("h", "hr", "hour"),
    ("d", "day"), ("w", "wk", "week"),
)  # fmt: skip
_UUID = "[0-9a-f]{8}-?[0-9a-f]{4}-?%s-?%s-?[0-9a-f]{12}\\Z"
_ANY4, _VARIANT = "[0-9a-f]{4}", "[89ab][0-9a-f]{3}"
_LABEL = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_CARD = (
    r"(?:4[0-9]{12}(?:[0-9]{3})?|5[1-5][0-9]{14}|6(?:011|5[0-9][0-9])[0-9]{12}|3[47][0-9]{13}|"
    r"3(?:0[0-5]|[68][0-9])[0-9]{11}|(?:2131|1800|35[0-9]{3})[0-9]{11})\Z"
)
_BYTE = r"\s*(0|[1-9]\d?|1\d\d?|2[0-4]\d|25[0-5])\s*"
_BASE64 = r"(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=|[A-Za-z0-9+/]{4})\Z"
_MAC = r"(?i)(?:[0-9a-f]{2}([:-]))(?:[0-9a-f]{2}\1)*[0-9a-f]{2}\Z|(?:[0-9a-f]{4}\.)+[0-9a-f]{4}\Z"
_ATEXT = "[a-zA-Z0-9!#$%&'*+/=?^_`{|}~\x80-\U0010ffff-]+"
_ADDRESS = rf"(?:{_ATEXT}(?:\.{_ATEXT})*|\"(?:[^\"\\\r\n]|\\.)*\")@(?:{_ATEXT}(?:\.{_ATEXT})*|\[[^\[\]\\]*\])"
_MAILBOX = (
    rf"(?:{_ADDRESS}|(?:[^<>@,;:\\\"()\[\]]*|\"(?:[^\"\\]|\\.)*\"[ \t]*)<{_ADDRESS}>)"
    r"[ \t]*(?:\([^()]*\)[ \t]*)?\Z"
)

_compiled = cache(re.compile)  # lazily: most servers only see date-times


def check_for(name: str) -> Callable[[str], bool] | None:
    """Return the check of a format (dashes in its name are ignored); None if the server ignores the format."""
    return _CHECKS.get(name.replace("-", ""))


def is_date(text: str) -> bool:
    found = _compiled(_DATE).match(text)
    if found is None:
        return False
    year, month, day = map(int, found.groups())
    try:
        datetime.date(year or 4, month, day)  # Go accepts year 0, which is a leap year
    except ValueError:
        return False
    return True


def is_date_time(text: str) -> bool:
    if _compiled(_PLAIN_DATE_TIME).match(text):  # fast path for timestamps written by servers
        return True
    day, separator, rest = text.lower().partition("t")
    if not separator or not is_date(day):
        return False
    found = _compiled(_TIME).match(rest.split("t")[0])
    return found is not None and found[1] <= "23" and found[2] <= "59" and found[3] <= "59"


def is_duration(text: str) -> bool:
    if _compiled(_GO_DURATION).match(text):
        return True
    valid = False
    for factor, word in _compiled(_LOOSE_DURATION).findall(text):
        if len(factor.lstrip("0")) > 19 or int(factor[-20:]) > 2**63 - 1:
            return False
        unit = word.strip().lower()
        valid = valid or any(unit in names or unit.startswith(names[-1]) for names in _UNITS)
    return valid


def is_hostname(text: str) -> bool:
    encoded = text.encode()
    if len(encoded) > 255 or any(len(label) > 63 for label in encoded.split(b".")):
        return False
    return re2.compile(_HOSTNAME).search(text)


def is_email(text: str) -> bool:
    return _compiled(_MAILBOX).match(text.lstrip(" \t")) is not None


def is_uri(text: str) -> bool:
    """Return whether Go's url.ParseRequestURI accepts the text: absolute, or an absolute path."""
    if not text or any(ord(char) < 0x20 or char == "\x7f" for char in text):
        return False
    if text == "*":
        return True
    scheme = re.match(r"[a-zA-Z][a-zA-Z0-9+.-]*:", text)
    rest = text[scheme.end() :] if scheme else text
    if not rest.startswith("/"):
        return bool(scheme and rest)
    if rest.startswith("//") and scheme:
        authority, slash, rest = rest[2:].partition("/")
        if not _is_authority(authority.split("?")[0]):
            return False
        rest = slash + rest
    return _has_valid_escapes(rest.split("?")[0])


def _is_authority(authority: str) -> bool:
    user, at, host = authority.rpartition("@")
    if at and not re.match(r"[A-Za-z0-9\-._~!$&'()*+,;=%:]*\Z", user):
        return False
    if not _has_valid_escapes(host) or " " in host or any(char in host for char in '"<>\\^`{|}'):
        return False
    if host.startswith("["):
        return re.match(r"\[[^\]]*\](:[0-9]*)?\Z", host) is not None
    return ":" not in host or re.search(r":[0-9]*\Z", host) is not None


def _has_valid_escapes(text: str) -> bool:
    return re.search(r"%(?![0-9a-fA-F]{2})", text) is None


def is_ipv4(text: str) -> bool:
    return "." in text and _is_ip(text)


def is_ipv6(text: str) -> bool:
    # The strict parser: leading zeros in a dotted tail are rejected, unlike for ipv4 and cidr.
    return ":" in text and _is_ip(text) and not re.search(r"(?:^|[:.])0\d+(?=\.|$)", text.rpartition(":")[2])


def is_cidr(text: str) -> bool:
    address, slash, bits = text.partition("/")
    if not slash or not (bits.isascii() and bits.isdigit()) or len(bits) > 3 or not _is_ip(address):
        return False
    return int(bits) <= (128 if ":" in address else 32)


def _is_ip(text: str) -> bool:
    return _is_dotted(text) if ":" not in text else _is_colon_hex(text)


def _is_dotted(text: str) -> bool:
    parts = text.split(".")
    return len(parts) == 4 and all(part.isascii() and part.isdigit() and _is_octet(part) for part in parts)


def _is_octet(digits: str) -> bool:
    significant = digits.lstrip("0")
    return len(significant) <= 3 and int(significant or 0) <= 255


def _is_colon_hex(text: str) -> bool:
    head, gap, tail = text.partition("::")
    if "::" in tail or (gap and tail.startswith(":")):
        return False
    groups = (head.split(":") if head else []) + (tail.split(":") if tail else [])
    size = len(groups)
    if groups and "." in groups[-1]:
        if not _is_dotted(groups.pop()):
            return False
        size += 1
    if not all(re.match(r"[0-9a-fA-F]{1,4}\Z", group) for group in groups):
        return False
    return size < 8 if gap else size == 8


def is_mac(text: str) -> bool:
    return _compiled(_MAC).match(text) is not None and len(re.sub("[:.-]", "", text)) in (12, 16, 40)


def is_isbn10(text: str) -> bool:
    digits = re.sub(r"[\s-]+", "", text, flags=re.ASCII)
    if not re.match(r"(?:[0-9]{9}X|[0-9]{10})\Z", digits):
        return False
    weighed = sum((at + 1) * (10 if digit == "X" else int(digit)) for at, digit in enumerate(digits))
    return weighed % 11 == 0


def is_isbn13(text: str) -> bool:
    digits = re.sub(r"[\s-]+", "", text, flags=re.ASCII)
    if not re.match(r"[0-9]{13}\Z", digits):
        return False
    weighed = sum((3 if at % 2 else 1) * int(digit) for at, digit in enumerate(digits[:12]))
    return int(digits[12]) == (10 - weighed % 10) % 10


def is_credit_card(text: str) -> bool:
    digits = re.sub("[^0-9]+", "", text)
    if not _compiled(_CARD).match(digits):
        return False
    total = 0
    for at, digit in enumerate(reversed(digits)):
        doubled = int(digit) * 2 if at % 2 else int(digit)
        total += doubled % 10 + 1 if doubled >= 10 else doubled
    return total % 10 == 0


def _matching(pattern: str, *, flags: str = "", max_length: int | None = None) -> Callable[[str], bool]:
    regex = f"(?a{flags}){pattern}"
    return lambda text: (max_length is None or len(text) <= max_length) and _compiled(regex).match(text) is not None


_CHECKS: dict[str, Callable[[str], bool]] = {
    "bsonobjectid": _matching(r"[0-9a-fA-F]{24}\Z"),
    "uri": is_uri,
    "email": is_email,
    "hostname": is_hostname,
    "ipv4": is_ipv4,
    "ipv6": is_ipv6,
    "cidr": is_cidr,
    "mac": is_mac,
    "uuid": _matching(_UUID % (_ANY4, _ANY4), flags="i"),
    "uuid3": _matching(_UUID % ("3[0-9a-f]{3}", _ANY4), flags="i"),
    "uuid4": _matching(_UUID % ("4[0-9a-f]{3}", _VARIANT), flags="i"),
    "uuid5": _matching(_UUID % ("5[0-9a-f]{3}", _VARIANT), flags="i"),
    "isbn": lambda text: is_isbn10(text) or is_isbn13(text),
    "isbn10": is_isbn10,
    "isbn13": is_isbn13,
    "creditcard": is_credit_card,
    "ssn": lambda text: len(text) == 11 and re.match(r"[0-9]{3}[- ]?[0-9]{2}[- ]?[0-9]{4}\Z", text) is not None,
    "hexcolor": _matching(r"#?([0-9a-fA-F]{3}|[0-9a-fA-F]{6})\Z"),
    "rgbcolor": _matching(rf"rgb\({_BYTE},{_BYTE},{_BYTE}\)\Z"),
    "byte": lambda text: _compiled(_BASE64).match(text) is not None,
    "password": lambda text: True,
    "date": is_date,
    "datetime": is_date_time,
    "duration": is_duration,
    "k8sshortname": _matching(_LABEL + r"\Z", max_length=63),
    "k8slongname": _matching(rf"{_LABEL}(\.{_LABEL})*\Z", max_length=253),
}
