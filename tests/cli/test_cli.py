"""The command line: what stands first, what it costs, and how it tells what is wrong."""

import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from tiny import tiny_study

import coupled_adam_bench
from coupled_adam_bench.cli import main, parser


def names() -> list[str]:
    """Return the commands in the order in which ``--help`` lists them."""
    (commands,) = [
        action for action in parser()._actions if action.dest == "handler" or action.choices
    ]
    return list(commands.choices or ())


def test_few_commands_and_those_for_people_first() -> None:
    assert names()[:4] == ["compare", "measure", "plan", "verify"]
    assert names()[4:6] == ["fetch", "rehearse"]
    assert len(names()) <= 14


def test_help_is_there_at_once() -> None:
    heavy = "{'torch', 'pandas', 'pydantic', 'lm_eval', 'mlflow', 'transformers'}"
    code = (
        "import sys\nfrom coupled_adam_bench.cli import main\ntry: main(['--help'])\n"
        f"except SystemExit: assert not {heavy} & set(sys.modules)"
    )
    seconds = []
    for _ in range(3):
        started = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
        seconds.append(time.perf_counter() - started)
    assert min(seconds) < 1  # 0.1 on a quiet machine


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert coupled_adam_bench.__version__ in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["plan", "nowhere.yaml"], "nowhere.yaml"),
        (["plan", "wrong.yaml"], "grid.0.seeds"),
        (["train", "--plan", "nowhere.json", "--cells", "a"], "nowhere.json"),
        (["train", "--plan", "damaged.json", "--cells", "a"], "damaged.json"),
    ],
)
def test_what_a_user_can_mend_is_told_without_a_traceback(
    home: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], named: str
) -> None:
    study = tiny_study()
    study["grid"][0]["seeds"] = "three"
    Path("wrong.yaml").write_text(yaml.safe_dump(study))
    Path("damaged.json").write_text('{"study": ')
    assert main(arguments) == 2
    told = capsys.readouterr()
    assert told.err.startswith("error: ")
    assert named in told.err
    assert told.out == ""


def test_a_cell_of_another_study_is_refused(
    finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "--plan", "results/tiny/plan.json", "--cells", "other"]) == 2
    assert "other" in capsys.readouterr().err
