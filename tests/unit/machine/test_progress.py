import io

from coupled_adam_bench.machine.progress import Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_log_file_gets_a_last_line_only_within_a_minute() -> None:
    stream = io.StringIO()
    with Progress(2000, "token", "train", initial=1000, stream=stream) as progress:
        for _ in range(500):
            progress.update(1, loss=3.14159, phase="warmup")
        assert stream.getvalue() == ""
    (line,) = stream.getvalue().splitlines()
    assert line.startswith("train: 1.50k/2.00k token, 75.0 %, ")
    assert line.endswith("left, loss=3.142, phase=warmup")


def test_a_log_file_gets_lines_in_its_interval() -> None:
    stream = io.StringIO()
    with Progress(None, "token", "prepare", stream=stream, line_seconds=0) as progress:
        progress.update(1000)
        progress.update(500)
    lines = stream.getvalue().splitlines()
    assert len(lines) == 3
    assert lines[0].startswith("prepare: 1.00k token, ")
    assert "%" not in lines[0]


def test_a_terminal_gets_a_bar() -> None:
    stream = Terminal()
    with Progress(10, "step", "train", stream=stream) as progress:
        progress.update(10, loss=2.5)
    assert "100%" in stream.getvalue()
    assert "loss=2.5" in stream.getvalue()


def test_a_quiet_one_shows_nothing_anywhere() -> None:
    for stream in (Terminal(), io.StringIO()):
        with Progress(10, "step", "train", stream=stream, line_seconds=0, quiet=True) as progress:
            progress.update(10)
        assert stream.getvalue() == ""
