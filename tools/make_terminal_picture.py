"""Draw what a command shows in a terminal: make_terminal_picture.py OUT.svg fedlens run quickstart

Needs pyte, a terminal in Python; the command runs in a terminal of its own, and the picture is its last screen.
"""

import os
import pty
import re
import sys
from io import StringIO
from pathlib import Path

import pyte
from rich.console import Console
from rich.style import Style
from rich.text import Text

COLUMNS, LINES = 132, 40
COLOURS = {"brown": "yellow"}  # pyte's names that are not rich's


def screen_of(command: list[str]) -> tuple[pyte.Screen, int]:
    """Run a command to its end; the screen that it leaves, and its exit code."""
    screen = pyte.Screen(COLUMNS, LINES)
    stream = pyte.ByteStream(screen)
    child, terminal = pty.fork()
    if child == 0:
        os.environ |= {"TERM": "xterm-256color", "COLUMNS": str(COLUMNS), "LINES": str(LINES)}
        os.execvp(command[0], command)
    while True:
        try:
            content = os.read(terminal, 65536)
        except OSError:  # Linux' way to say that the other side is closed
            break
        if not content:
            break
        stream.feed(content)
    return screen, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def text_of(screen: pyte.Screen) -> Text:
    lines = []
    for row in range(screen.lines):
        line = Text()
        for column in range(screen.columns):
            cell = screen.buffer[row][column]
            colour = None if cell.fg == "default" else COLOURS.get(cell.fg, cell.fg if cell.fg.isalpha() else f"#{cell.fg}")
            line.append(cell.data, Style(color=colour, bold=cell.bold))
        line.rstrip()
        lines.append(line)
    while lines and not lines[-1].plain:
        lines.pop()
    return Text("\n").join(lines)


def main() -> None:
    out, *command = sys.argv[1:]
    screen, code = screen_of(command)
    recorder = Console(record=True, file=StringIO(), width=COLUMNS, force_terminal=True)
    recorder.print(Text(f"$ {' '.join(command)}", style="bold"))
    recorder.print(text_of(screen), soft_wrap=True)
    picture = recorder.export_svg(title=" ".join(command[:2]))
    Path(out).write_text(re.sub(r"@font-face \{.*?\}\s*", "", picture, flags=re.DOTALL))  # which would fetch fonts
    sys.exit(code)


main()
