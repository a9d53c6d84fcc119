import io

import pytest

from coupled_adam_bench.machine.progress import Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("line_seconds", "n_lines"), [(60, 2), (0, 4)])
def test_a_log_file_gets_lines_in_its_interval_and_at_the_end(
    line_seconds: float, n_lines: int
) -> None:
    stream = io.StringIO()
    with Progress(
        2000, "tokens", "train", initial=1000, stream=stream, line_seconds=line_seconds
    ) as progress:
        progress.update(100)
        progress.update(400, loss=3.14159, phase="warmup")
    lines = stream.getvalue().splitlines()
    assert len(lines) == n_lines
    assert lines[-1].startswith("train: 75.0 %, 1.50k/2.00k tokens, ")
    assert lines[-1].endswith("left, loss=3.14, phase=warmup")


def test_a_terminal_gets_a_bar_a_log_file_without_a_total_its_count_and_a_quiet_one_nothing() -> (
    None
):
    terminal, log, quiet = Terminal(), io.StringIO(), Terminal()
    for stream, total in ((terminal, 10), (log, None), (quiet, 10)):
        with Progress(total, "steps", "train", stream=stream, quiet=stream is quiet) as progress:
            progress.update(10, loss=2.5)
    assert "100%" in terminal.getvalue() and "loss=2.5" in terminal.getvalue()
    assert "train: 10.0 steps, " in log.getvalue()
    assert "%" not in log.getvalue() and "?" not in log.getvalue().splitlines()[-1]
    assert quiet.getvalue() == ""


def test_a_rate_that_is_not_known_yet_is_not_shown() -> None:
    for stream in (io.StringIO(), Terminal()):
        for total in (10, None):
            with Progress(total, "stages", "rehearse", stream=stream):
                pass
        shown = stream.getvalue()
        assert "rehearse" in shown and "?" not in shown


@pytest.mark.parametrize(
    ("count", "seconds", "rate"), [(2, 41, "20.5 s each"), (95_300, 1, "95.3k characters/s")]
)
def test_a_rate_is_in_words(count: int, seconds: int, rate: str) -> None:
    line = Progress.format_meter(count, None, seconds, unit="characters", unit_scale=True)
    assert f", {rate}" in line
