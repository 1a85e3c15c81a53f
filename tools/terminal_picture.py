"""Render the output of a command as an SVG picture of a terminal.

python tools/terminal_picture.py 'make demo' docs/demo.svg < OUTPUT
"""

from __future__ import annotations

import sys
from html import escape
from pathlib import Path

LINE, CHARACTER, MARGIN = 19, 8.05, 20


def picture(command: str, output: str) -> str:
    lines = [f"$ {command}", *output.rstrip("\n").split("\n")]
    width = max(60, max(map(len, lines))) * CHARACTER + 2 * MARGIN
    height = len(lines) * LINE + 2 * MARGIN + 24
    rows = "\n".join(row(line, MARGIN + 24 + (number + 0.8) * LINE) for number, line in enumerate(lines))
    dots = "".join(f'<circle cx="{22 + 18 * i}" cy="20" r="6" fill="{c}"/>' for i, c in enumerate(COLORS))
    return f"""<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" role="img">
<title>{escape(command)}</title>
<rect width="100%" height="100%" rx="10" fill="#14181f"/>{dots}
<g font-family="ui-monospace,SFMono-Regular,Menlo,Consolas,monospace" font-size="13.4" fill="#c9d1d9">
{rows}
</g></svg>
"""


COLORS = ("#ff5f57", "#febc2e", "#28c840")


def row(line: str, y: float) -> str:
    if line.startswith("$ "):
        color = "#ffffff"
    elif line.startswith("» "):
        color = "#7ee787"
    elif line.lstrip().startswith("4"):
        color = "#ffa657"
    else:
        color = "#c9d1d9"
    return f'<text x="{MARGIN}" y="{y:.0f}" fill="{color}" xml:space="preserve">{escape(line)}</text>'


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(picture(sys.argv[1], sys.stdin.read()))
