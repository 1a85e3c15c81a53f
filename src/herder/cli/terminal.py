"""Escape untrusted text for terminal output."""

from __future__ import annotations


def escaped(text: str) -> str:
    """Escape control characters, with which objects could rewrite the screen, set the title or fake table rows. Tabs
    stay."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() or each == "\t" else _visible(each) for each in text)


def _visible(character: str) -> str:
    return character.encode("unicode_escape").decode()
