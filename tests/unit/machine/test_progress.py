"""Progress output: lines in files, a bar on terminals."""

from __future__ import annotations

import io

from herder.machine.progress import Screen, progress_line


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def printed(stream: io.StringIO, *lines: str) -> str:
    screen = Screen(stream)
    for line in lines:
        screen.show(line)
    return stream.getvalue()


LINES = ("Creating machine...", progress_line("(m1) Image", 50, "unpacking dash"), "(m1) It runs at 10.77.0.2")


def test_files_get_every_line_unchanged() -> None:
    assert printed(io.StringIO(), *LINES).splitlines() == list(LINES)


def test_terminals_get_a_progress_bar_and_a_line_break_after_it() -> None:
    text = printed(Terminal(), *LINES)
    assert f"\r\x1b[K(m1) Image: [{'█' * 15}{'·' * 15}]  50% unpacking dash\n(m1) It runs" in text


def test_a_complete_bar_ends_its_line() -> None:
    assert printed(Terminal(), progress_line("Image", 100, "done"), "next").endswith("100% done\nnext\n")


def test_a_percentage_in_a_sentence_is_not_progress() -> None:
    assert printed(Terminal(), "the disk is 90% full") == "the disk is 90% full\n"
