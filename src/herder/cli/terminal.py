"""Text of other users on the terminal of whoever reads it."""

from __future__ import annotations


def escaped(text: str) -> str:
    """Without control characters, by which names and messages in objects could rewrite the screen, set the title or
    fake lines of a table. Tabs stay."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() or each == "\t" else _visible(each) for each in text)


def _visible(character: str) -> str:
    return character.encode("unicode_escape").decode()
