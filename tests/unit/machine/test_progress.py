"""Lines for whoever reads them later, a bar for whoever watches."""

from __future__ import annotations

import io

from herder.machine.progress import Screen, progress_line


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def shown(stream: io.StringIO, *lines: str) -> str:
    screen = Screen(stream)
    for line in lines:
        screen.show(line)
    return stream.getvalue()


LINES = ("Creating machine...", progress_line("(m1) Image", 50, "unpacking dash"), "(m1) It runs at 10.77.0.2")


def test_a_file_gets_every_line_as_it_is() -> None:
    assert shown(io.StringIO(), *LINES).splitlines() == list(LINES)


def test_a_terminal_gets_a_bar_in_its_place_and_a_new_line_after_it() -> None:
    text = shown(Terminal(), *LINES)
    assert f"\r\x1b[K(m1) Image: [{'█' * 15}{'·' * 15}]  50% unpacking dash\n(m1) It runs" in text


def test_a_bar_that_is_full_ends_its_line() -> None:
    assert shown(Terminal(), progress_line("Image", 100, "done"), "next").endswith("100% done\nnext\n")


def test_a_percentage_within_a_sentence_is_no_progress() -> None:
    assert shown(Terminal(), "the disk is 90% full") == "the disk is 90% full\n"
