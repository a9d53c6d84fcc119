"""Task files of the lm-evaluation-harness, found, rewritten and hashed without importing it (its
import takes seconds).

A task is a YAML file; ``!function`` values are Python functions beside it and stay untouched here.
"""

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from glob import glob
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import yaml

from coupled_adam_bench.store.files import cached_by_file, sha256_once
from coupled_adam_bench.study.settings.reading import EachKeyOnce
from embedding_geometry.user_files import check_no_pointer, list_folder

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
LOCAL_READERS = (
    "arrow", "audiofolder", "conll", "csv", "eval", "fasta", "fastq", "genbank", "harbor", "hdf5",
    "iceberg", "imagefolder", "json", "lance", "meshfolder", "mmcif", "niftifolder", "pandas",
    "parquet", "pdb", "pdffolder", "text", "tsfile", "videofolder", "vortex", "webdataset", "xml",
)  # fmt: skip
"""The values of ``dataset_path`` that name a format of files, not a data set of the hub, for the
library `datasets`."""
MAX_INCLUDES = 50
"""Length of a chain of task files that include one another, above which it is refused; lm-eval's
longest has 4."""
_NAME = re.compile(r"""^["']?(task|group)["']?:[ \t]*["']?([^\s"'#\[]+)""", re.MULTILINE)
_TAG = re.compile(r"^tag:(.*(?:\n[ \t]*-.*)*)", re.MULTILINE)
_WORDS = re.compile(r"""[^\s"'#\[\],]+""")
_FUNCTION = re.compile(r"!function\s+([\w.]+)\.\w+")
_PASSED_OVER = ".ipynb_checkpoints"
"""The hidden folder that lm-eval does not read."""

StandIn = dict[str, Any]
"""The settings of a task that includes another and finds its data elsewhere."""
Digest = tuple[str, str]
"""Name of a file, without its folder, and the SHA-256 of its contents."""


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


# ---- which file a name stands for ----


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


# ---- what a file says ----


class _Loader(EachKeyOnce, yaml.SafeLoader):
    """SafeLoader that reads ``!function module.name`` as that string."""


def _function(loader: _Loader, node: yaml.Node) -> str:
    """Return the name of a function as text, wherever it stands in a file."""
    if not isinstance(node, yaml.ScalarNode) or "." not in node.value:
        problem = "!function must be followed by module.name, the name of a Python function"
        raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark)
    return str(loader.construct_scalar(node))


_Loader.add_constructor("!function", _function)


@cached_by_file
def _read_yaml(path: Path) -> dict[str, Any]:
    """Read a task's YAML file without what it includes; the result is cached, so callers must not
    change it."""
    try:
        task = yaml.load(path.read_text(encoding="utf-8"), _Loader)
    except FileNotFoundError:
        raise ValueError(f"{path}: no such task file") from None
    except RecursionError:
        raise ValueError(f"{path}: not a task: its YAML is nested too deeply to be read") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: not valid YAML: {error}") from None
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    if not isinstance(task, dict):
        raise ValueError(f"{path}: not a task: a mapping is expected")
    if not isinstance(task.get("dataset_kwargs") or {}, dict):
        raise ValueError(
            f"{path}: dataset_kwargs: a mapping is expected, not {task['dataset_kwargs']!r}"
        )
    return task


def _included_files(path: Path) -> list[Path]:
    """Return the files that a task's YAML file includes itself, in its order."""
    included = _read_yaml(path).get("include", [])
    names = included if isinstance(included, list) else [included]
    if wrong := [name for name in names if not isinstance(name, str)]:
        raise ValueError(f"{path}: include: the path of a task file is expected, not {wrong[0]!r}")
    return [(path.parent / name).resolve() for name in names]


def _with_included(path: Path) -> list[Path]:
    """Return a task's file and all that it includes, each after the files that it includes itself.

    ``ValueError`` for a file that is included twice, as in a ring, which lm-eval refuses too, and
    for an endless chain.
    """
    ordered: list[Path] = []
    seen: set[Path] = set()

    def visit(file: Path, depth: int) -> None:
        if file in seen:
            raise ValueError(
                f"{path}: `include` leads to {file} twice, as in a ring; include it once"
            )
        if depth > MAX_INCLUDES:
            raise ValueError(
                f"{path}: `include` leads through more than {MAX_INCLUDES} files; write fewer files"
            )
        seen.add(file)
        for other in _included_files(file):
            visit(other, depth + 1)
        ordered.append(file)

    visit(path.resolve(), 0)
    return ordered


def read_task(path: Path) -> dict[str, Any]:
    """Return a task's settings with those of the files it includes, as lm-eval merges them."""
    merged: dict[str, Any] = {}
    for file in _with_included(path):
        merged |= _read_yaml(file)
    merged.pop("include", None)
    return merged


def shots_of(task: TaskFile, num_fewshot: int | None) -> int | None:
    """Return how many examples are in each prompt of a task under
    ``evaluation.downstream.num_fewshot``.

    As in lm-eval, a task that names 0 has its examples in the prompt, and a study without the
    setting takes the task's own number, which is 0 where it names none. None for a group, whose
    members have numbers of their own.
    """
    if task.is_group:
        return num_fewshot
    own = read_task(task.path).get("num_fewshot")
    if own is not None and (not isinstance(own, int) or isinstance(own, bool) or own < 0):
        raise ValueError(f"{task.path}: num_fewshot: {own!r} must be a whole number, 0 or more")
    return own or 0 if own == 0 or num_fewshot is None else num_fewshot


# ---- what identifies it ----


def task_contents(
    task: TaskFile, stand_in: StandIn | None, own_tasks: str | None
) -> dict[str, Any]:
    """Return the hashes of a task's YAML files, Python code and local data, wherever they lie.

    One of the user's own tasks counts with all Python files in its folder, and a group of tasks
    with all of the user's tasks. ``ValueError`` for a file that the task names and that is not
    there.
    """
    own = None if own_tasks is None else Path(own_tasks).resolve()
    yamls = [task.path]
    if task.is_group and own is not None:
        own_yamls = [path for path in list_folder(own).files if path.suffix == ".yaml"]
        yamls += [path for path in own_yamls if path != task.path]
    for path in yamls:
        _with_included(path)  # which says what is wrong with the files
    files = [file for path in yamls for file in _files_of_task(path)]
    for path in yamls:
        if own in path.parents:
            files += [file for file in list_folder(path.parent).files if file.suffix == ".py"]
    settings = [read_task(path) | (stand_in or {}) for path in yamls]
    digests = [_digest(path) for path in dict.fromkeys(files)]
    data = [_data(task, values) for values in settings]
    return {"name": task.name, "files": digests, "data": data}


def reads_files(contents: dict[str, Any]) -> bool:
    """Tell by its :func:`task_contents` whether a task reads files of this machine."""
    for data in contents["data"]:
        for named in data.values():
            if any(sha256 for _, sha256 in named):
                return True
    return False


def _digest(path: Path) -> Digest:
    check_no_pointer(path)
    return path.name, sha256_once(path)


def _files_of_task(path: Path) -> Iterator[Path]:
    """Yield a YAML file, those that it includes, and the Python files beside them that they name a
    function of."""
    yield path
    for other in _included_files(path):
        yield from _files_of_task(other)
    for module in _FUNCTION.findall(path.read_text(encoding="utf-8")):
        file = path.parent / f"{module.replace('.', '/')}.py"
        if file.is_file():
            yield file


def _data(task: TaskFile, settings: dict[str, Any]) -> dict[str, list[Digest]]:
    """Return the digests of the local data files of a task by split; empty for data on the hub."""
    options, source = settings.get("dataset_kwargs") or {}, settings.get("dataset_path")
    is_reader = source in LOCAL_READERS
    if not isinstance(source, str) or not (is_reader or Path(source).exists()):
        return {}
    folder = Path(options.get("data_dir") or "") if is_reader else Path(source)
    if "data_files" not in options:  # the folder is read whole
        return {"": [_digest(path) for path in list_folder(folder).files if path.is_file()]}
    named = options["data_files"]
    splits = named if isinstance(named, dict) else {"": named}
    digests: dict[str, list[Digest]] = {}
    for split, names in splits.items():
        listed = [names] if isinstance(names, str) else names
        digests[str(split)] = [one for name in listed for one in _digests(task, folder, name)]
    return digests


def _digests(task: TaskFile, folder: Path, name: str) -> list[Digest]:
    """Return the digests of the files that one name stands for: a path, a glob, or a URL, which is
    not fetched."""
    if "://" in name:
        return [(name, "")]
    found = sorted(glob(str(folder / name), recursive=True))  # noqa: PTH207 - the name may be an absolute path
    if not found:
        raise ValueError(
            f"evaluation.downstream.tasks: {task.name} needs {folder / name}, which does not exist"
            f" (data_files in {task.path}, from the folder in which the study is run)"
        )
    return [_digest(Path(path)) for path in found]
