"""Progress of a long job: a bar on a terminal, and at most a line per minute in log files."""

import re
import sys
from typing import Any, TextIO

from tqdm import tqdm

LINE_SECONDS = 60.0
_LINE = (
    "{desc}: {percentage:.1f} %, {n_fmt}/{total_fmt} {unit}, {rate_fmt}, in {elapsed}, {remaining}"
    " left{postfix}"
)
_COUNT = "{desc}: {n_fmt} {unit}, {rate_fmt}, in {elapsed}{postfix}"
"""The line where the total is unknown."""


def say(line: str) -> None:
    """Print a line on stderr at once."""
    print(line, file=sys.stderr, flush=True)


class _Lines:
    """A log file in which each state of a bar is a separate line."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> None:
        if line := text.strip():
            self._stream.write(f"{line}\n")

    def flush(self) -> None:
        self._stream.flush()


class Progress(tqdm):  # type: ignore[type-arg]
    """Counts units of work and shows count, rate, time left and other fields on ``stream``, by
    default stderr.

    ``total`` is None if it is unknown, and ``unit`` is a noun in the plural. ``initial`` is the
    count that an earlier run reached; it does not affect the rate. ``quiet`` shows nothing.
    """

    monitor_interval = 0  # no thread of tqdm's

    def __init__(
        self,
        total: int | None,
        unit: str,
        description: str,
        *,
        initial: int = 0,
        stream: TextIO | None = None,
        line_seconds: float = LINE_SECONDS,
        quiet: bool = False,
    ) -> None:
        stream = sys.stderr if stream is None else stream
        options: dict[str, Any] = {
            "file": stream,
            "initial": initial,
            "unit_scale": True,
            "miniters": 1,
        }
        if not stream.isatty():
            form = _COUNT if total is None else _LINE
            options |= {"file": _Lines(stream), "mininterval": line_seconds, "bar_format": form}
        super().__init__(total=total, unit=unit, desc=description, disable=quiet, **options)

    @staticmethod
    def format_meter(*values: Any, **fields: Any) -> str:
        """Return the line, without the rate and the time left as long as they are unknown.

        A rate is ``95.3k characters/s``, and below one a second ``20.5 s each``.
        """
        line: str = tqdm.format_meter(*values, **fields)
        unit = fields["unit"]
        for unknown in (f", ?{unit}/s", ", ? left", "<?"):
            line = line.replace(unknown, "")
        line = re.sub(rf"(?<=\d)s/{unit}", " s each", line)
        return re.sub(rf"(?<=[\d.kMGT]){unit}/s", f" {unit}/s", line)

    def update(self, n: int, **fields: Any) -> None:  # type: ignore[override]
        """Add ``n`` units; ``fields`` such as ``loss=3.2`` are shown until the next update replaces
        them."""
        self.set_postfix(fields, refresh=False)
        super().update(n)
