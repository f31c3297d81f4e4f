"""Lines that are being answered, in a file that outlives this process: if an answer ends it, the next run knows where to look.

The file is not synced: it is for processes that end, not for machines that do. Each record is a line of text. A record is dropped
if the disk is full: the job's other files end the job then.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

_BEGIN, _END, _DEATHS, _ALONE = "begin", "end", "deaths", "alone"


class InFlight:
    """The lines in flight of a job. For one thread.

    Attributes:
        deaths: by line, how many runs ended with it in flight, for lines that are not done.
        guilty: lines that ended a run when nothing else was in flight, after they had been in another one that ended.

    Args:
        path: the file; it is there while a job runs, and for as long as lines are suspected.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._died = False
        self.deaths, self.guilty = _read(path)
        path.write_text(self._summary())
        self._file = path.open("ab", buffering=0)  # a record is with the system before its line is answered

    def begin(self, line: int, *, alone: bool) -> None:
        """A line is about to be answered; `alone` if nothing else is before it ends."""
        self._record(_ALONE if alone else _BEGIN, line)

    def end(self, line: int) -> None:
        """It is in flight no more."""
        self._record(_END, line)

    def done(self, line: int) -> None:
        """Its answer is on the disk."""
        if self.deaths.pop(line, None) is not None:
            self._record(_DEATHS, line, 0)

    def died(self) -> None:
        """The engine ended with what is in flight."""
        self._died = True

    def close(self) -> None:
        """The run is over. Unless the engine `died`, what was in flight did not end it."""
        self._file.close()
        if self._died:
            return
        with contextlib.suppress(OSError):
            if self.deaths:
                self._path.write_text(self._summary())
            else:
                self._path.unlink(missing_ok=True)

    def _record(self, word: str, *numbers: int) -> None:
        with contextlib.suppress(OSError):
            self._file.write(" ".join([word, *map(str, numbers)]).encode() + b"\n")

    def _summary(self) -> str:
        return "".join(f"{_DEATHS} {line} {count}\n" for line, count in self.deaths.items())


def _read(path: Path) -> tuple[dict[int, int], set[int]]:
    try:
        text = path.read_text()
    except (FileNotFoundError, UnicodeDecodeError):
        return {}, set()
    deaths: dict[int, int] = {}
    flying: dict[int, bool] = {}  # with whether it was alone
    for record in text.splitlines():
        match record.split():
            case [("begin" | "alone") as word, number] if number.isdigit():
                flying[int(number)] = word == _ALONE
            case ["end", number] if number.isdigit():
                flying.pop(int(number), None)
            case ["deaths", number, count] if number.isdigit() and count.isdigit():
                deaths[int(number)] = int(count)
            case _:  # the last record may be cut off
                continue
    guilty = {line for line, alone in flying.items() if alone and deaths.get(line)}
    for line in flying:
        deaths[line] = deaths.get(line, 0) + 1
    return {line: count for line, count in deaths.items() if count}, guilty
