"""Task files of the lm-evaluation-harness, found by the names of tasks without importing it (its
import takes seconds)."""

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from coupled_adam_bench.evaluation.task_yaml import read_task
from embedding_geometry.user_files import list_folder

PAPER_TASK_FILES = {
    "hellaswag": "hellaswag/hellaswag.yaml",
    "winogrande": "winogrande/default.yaml",
    "arc_easy": "arc/arc_easy.yaml",
    "arc_challenge": "arc/arc_challenge.yaml",
    "truthfulqa_mc2": "truthfulqa/truthfulqa_mc2.yaml",
    "lambada_openai": "lambada/lambada_openai.yaml",
    "race": "race/race.yaml",
}
"""The places of the paper's tasks in lm-eval, so that its 14,000 files need not be read. Others are
searched for."""
OLDER_TASKS = {"0.4.3": Path(__file__).parent / "tasks_v0_4_3"}
"""Our files of those tasks of the paper whose prompts or scores differ in an older lm-eval, by its
version."""
_NAME = re.compile(r"""^["']?(task|group)["']?:[ \t]*["']?([^\s"'#\[]+)""", re.MULTILINE)
_TAG = re.compile(r"^tag:(.*(?:\n[ \t]*-.*)*)", re.MULTILINE)
_WORDS = re.compile(r"""[^\s"'#\[\],]+""")
_PASSED_OVER = ".ipynb_checkpoints"
"""The hidden folder that lm-eval does not read."""


@dataclass(frozen=True)
class TaskFile:
    """A task, or a group of tasks, and the file that defines it."""

    name: str
    path: Path
    is_group: bool = False


@cache
def installed(library: str) -> str:
    """Return the version of a library; ``ValueError`` if it is not installed."""
    try:
        return version(library)
    except PackageNotFoundError:
        raise ValueError(
            f"{library} is not installed: pip install 'coupled-adam-bench[pipeline]'"
        ) from None


def harness_tasks() -> Path:
    """Return the folder of lm-eval's tasks, without importing lm-eval."""
    installed("lm_eval")
    spec = find_spec("lm_eval")
    assert spec is not None and spec.submodule_search_locations
    return Path(spec.submodule_search_locations[0]) / "tasks"


def find_tasks(
    names: Iterable[str], own_tasks: str | None, versions: str = "installed"
) -> list[TaskFile]:
    """Return the files of tasks by name: first those in ``own_tasks``, then lm-eval's in these
    ``versions``.

    ``ValueError`` that lists every unknown name with its near matches.
    """
    own = _own_tasks(own_tasks)
    older = _scan(OLDER_TASKS[versions]) if versions in OLDER_TASKS else {}
    places = {name: harness_tasks() / path for name, path in PAPER_TASK_FILES.items()}
    known = (
        {name: TaskFile(name, path) for name, path in places.items() if path.is_file()}
        | older
        | own
    )
    names = list(dict.fromkeys(names))
    if not known.keys() >= set(names):
        known = _scan(harness_tasks()) | known
    if problems := [_unknown(name, known) for name in names if name not in known]:
        raise ValueError("evaluation.downstream.tasks: " + "; ".join(problems))
    return [known[name] for name in names]


def _own_tasks(folder: str | None) -> dict[str, TaskFile]:
    """Return the tasks and groups of the user's folder by name; ``ValueError`` for a name that two
    of its files have."""
    if folder is None:
        return {}
    home = Path(folder).resolve()
    if not home.is_dir():
        raise ValueError(f"paths.tasks: {home} is not a folder; give the folder of the task files")
    own: dict[str, TaskFile] = {}
    files: dict[str, set[Path]] = {}
    for task in _named_in(home):
        own.setdefault(task.name, task)
        files.setdefault(task.name, set()).add(task.path.resolve())
    if any(task.is_group for task in own.values()):
        # lm-eval finds the members of a group by itself, and reads hidden files too.
        for hidden in list_folder(home).hidden:
            for task in _named_in(hidden) if hidden.name != _PASSED_OVER else ():
                if task.name in own:
                    files[task.name].add(task.path)
    twice = [
        f"{name} in {' and '.join(map(str, sorted(paths)))}"
        for name, paths in files.items()
        if len(paths) > 1
    ]
    if twice:
        raise ValueError(
            f"paths.tasks: tasks of one name in several files: {'; '.join(twice)}; remove one of"
            " the files, or give its task another name"
        )
    return own


def is_found_without_index(task: TaskFile, own_tasks: str | None) -> bool:
    """Tell whether a task is one, or a group of tasks that all lie in ``own_tasks``.

    For the members of other groups lm-eval reads all of its files.
    """
    if not task.is_group:
        return True
    own = _own_tasks(own_tasks)
    members = read_task(task.path).get("task", [])
    return all(isinstance(one, str) and one in own and not own[one].is_group for one in members)


def _unknown(name: str, known: Mapping[str, TaskFile]) -> str:
    tagged = [task.name for task in known.values() if name in _tags(task.path)]
    if tagged:
        return f"{name!r} is a tag, not a task; name its tasks instead: {', '.join(tagged)}"
    close = difflib.get_close_matches(name, known, n=5)
    return f"no task {name!r}" + (
        f"; did you mean {', '.join(close)}?" if close else "; name one of lm-eval or paths.tasks"
    )


def _tags(path: Path) -> list[str]:
    """Return the tags that a file gives its task."""
    text = path.read_text(encoding="utf-8", errors="replace")
    return [tag for given in _TAG.findall(text) for tag in _WORDS.findall(given)]


@cache
def _scan(folder: Path) -> dict[str, TaskFile]:
    """Return all tasks and groups below a folder by name; reads text, parses nothing."""
    found: dict[str, TaskFile] = {}
    for task in _named_in(folder):
        found.setdefault(task.name, task)
    return found


def _named_in(place: Path) -> Iterator[TaskFile]:
    """Yield the tasks and groups of a file, or of the files of a folder."""
    for path in list_folder(place).files if place.is_dir() else [place]:
        if path.suffix != ".yaml":
            continue
        for kind, name in _NAME.findall(path.read_text(encoding="utf-8", errors="replace")):
            yield TaskFile(name, path, kind == "group")


def shots_of(task: TaskFile, num_fewshot: int | None) -> int | None:
    """Return how many examples are in each prompt of a task under
    ``evaluation.downstream.num_fewshot``.

    As in lm-eval, a task that names 0 has its examples in the prompt, and a study without the
    setting takes the task's own number, which is 0 where it names none. None for a group, whose
    members have their own numbers.
    """
    if task.is_group:
        return num_fewshot
    own = read_task(task.path).get("num_fewshot")
    if own is not None and (not isinstance(own, int) or isinstance(own, bool) or own < 0):
        raise ValueError(f"{task.path}: num_fewshot: {own!r} must be a whole number, 0 or more")
    return own or 0 if own == 0 or num_fewshot is None else num_fewshot
