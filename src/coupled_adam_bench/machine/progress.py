"""Progress of a long job: a bar on a terminal, and at most a line per minute in log files."""

import sys
import time
from types import TracebackType
from typing import Any, Self, TextIO

from tqdm import tqdm

LINE_SECONDS = 60.0


def say(line: str) -> None:
    """Print a line on stderr at once."""
    print(line, file=sys.stderr, flush=True)


class Progress:
    """Counts units of work and shows count, rate, time left and other fields on ``stream``, by default stderr.

    ``total`` is None if it is unknown. ``initial`` is the count that an earlier run reached; it does not affect the
    rate. ``quiet`` shows nothing.
    """

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
        self._total = total
        self._unit = unit
        self._description = description
        self._initial = self._done = initial
        self._stream = sys.stderr if stream is None else stream
        self._line_seconds = line_seconds
        self._quiet = quiet
        self._fields: dict[str, Any] = {}
        self._start = self._last_line = time.monotonic()
        self._bar = (
            tqdm(total=total, initial=initial, unit=unit, desc=description, unit_scale=True, file=self._stream)
            if self._stream.isatty() and not quiet
            else None
        )

    def update(self, n: int, **fields: Any) -> None:
        """Add ``n`` units; ``fields`` such as ``loss=3.2`` are shown until the next update replaces them."""
        self._done += n
        self._fields = fields
        if self._bar is not None:
            self._bar.set_postfix(fields, refresh=False)
            self._bar.update(n)
        elif time.monotonic() - self._last_line >= self._line_seconds:
            self._print_line()

    def close(self) -> None:
        """Show the final state."""
        if self._bar is not None:
            self._bar.close()
        else:
            self._print_line()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _print_line(self) -> None:
        if self._quiet:
            return
        self._last_line = time.monotonic()
        seconds = self._last_line - self._start
        rate = (self._done - self._initial) / seconds if seconds > 0 else 0.0
        done = tqdm.format_sizeof(self._done)
        parts = [f"{tqdm.format_sizeof(rate)} {self._unit}/s", f"{tqdm.format_interval(seconds)} elapsed"]
        if self._total:
            done = f"{done}/{tqdm.format_sizeof(self._total)}"
            parts.insert(0, f"{100 * self._done / self._total:.1f} %")
            if rate > 0 and self._done < self._total:
                parts.append(f"{tqdm.format_interval((self._total - self._done) / rate)} left")
        parts += [
            f"{name}={value:.4g}" if isinstance(value, float) else f"{name}={value}"
            for name, value in self._fields.items()
        ]
        print(f"{self._description}: {done} {self._unit}, " + ", ".join(parts), file=self._stream, flush=True)
