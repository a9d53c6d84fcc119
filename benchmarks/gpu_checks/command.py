"""The training command of a study, as the workflow calls it, in a folder of its own."""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from gpu_checks.common import At, write_tokens

from coupled_adam_bench.store import paths
from coupled_adam_bench.store.files import write_sealed


class Command:
    """The command that trains the cells of one plan, one for each seed."""

    def __init__(
        self,
        at: At,
        name: str,
        model: Any,
        training: dict[str, Any],
        steps: int,
        execution: dict[str, Any],
        seeds: Sequence[int] = (1,),
    ) -> None:
        self._at, self._folder = at, at.folder / name
        plan = at.plan(model, training, execution, tokens=[{"steps": steps}], seeds=list(seeds))
        self._cells = list(plan.cells.values())
        self.files = [paths.RunFiles(self._folder / paths.run_dir(cell.id)) for cell in self._cells]
        write_tokens(self._folder / paths.data_dir(self._cells[0].data_id), self._cells[0])
        write_sealed(self._folder / "plan.json", plan.to_json())

    def start(self) -> subprocess.Popen[bytes]:
        """Start the command."""
        ids = [cell.id for cell in self._cells]
        words = ["train", "--plan", "plan.json", "--cells", *ids, "--device", self._at.device.type]
        return subprocess.Popen(
            [sys.executable, "-m", "coupled_adam_bench", *words], cwd=self._folder
        )

    def lines(self) -> int:
        """Return the number of lines of the first cell's history."""
        history = self.files[0].history
        return len(history.read_text(encoding="utf-8").splitlines()) if history.exists() else 0

    def saved(self) -> set[str]:
        """Return the names of the first cell's checkpoints."""
        return {path.name for path in self.files[0].checkpoints.iterdir()}

    def history(self) -> list[tuple[float, float]]:
        """Return loss and norm of the gradient in each line of the first cell's history."""
        rows = map(json.loads, self.files[0].history.read_text(encoding="utf-8").splitlines())
        return [(row["loss"], row["grad_norm"]) for row in rows]

    def speeds(self) -> list[float]:
        """Return the tokens a second of each cell in the last line of its history."""
        histories = [files.history.read_text(encoding="utf-8").splitlines() for files in self.files]
        return [float(json.loads(lines[-1])["tokens_per_second"]) for lines in histories]


def reaches(process: subprocess.Popen[bytes], is_there: Callable[[], bool]) -> bool:
    """Wait until something is there, and tell whether the process still runs then."""
    while process.poll() is None and not is_there():
        time.sleep(0.02)
    return process.poll() is None
