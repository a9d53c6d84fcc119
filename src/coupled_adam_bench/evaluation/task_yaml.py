"""What a task's YAML file says, read without importing lm-eval.

``!function`` values are Python functions beside the file and stay untouched here.
"""

from pathlib import Path
from typing import Any

import yaml

from coupled_adam_bench.store.files import cached_by_file
from coupled_adam_bench.study.settings.reading import EachKeyOnce

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


def included_files(path: Path) -> list[Path]:
    """Return the files that a task's YAML file includes itself, in its order."""
    included = _read_yaml(path).get("include", [])
    names = included if isinstance(included, list) else [included]
    if wrong := [name for name in names if not isinstance(name, str)]:
        raise ValueError(f"{path}: include: the path of a task file is expected, not {wrong[0]!r}")
    return [(path.parent / name).resolve() for name in names]


def with_included(path: Path) -> list[Path]:
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
        for other in included_files(file):
            if not other.is_file():
                raise ValueError(
                    f"{other}: no such task file, which {file} includes; give a path from the"
                    " folder of the file that includes it, or a whole one, also for a task of"
                    " lm-eval"
                )
            visit(other, depth + 1)
        ordered.append(file)

    visit(path.resolve(), 0)
    return ordered


def read_task(path: Path) -> dict[str, Any]:
    """Return a task's settings with those of the files it includes, as lm-eval merges them."""
    merged: dict[str, Any] = {}
    for file in with_included(path):
        merged |= _read_yaml(file)
    merged.pop("include", None)
    return merged
