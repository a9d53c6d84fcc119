"""``new``: a folder to begin an optimizer with, from its class to the bundle of its results."""

import os
from importlib.metadata import metadata
from importlib.util import find_spec
from pathlib import Path

import yaml

from coupled_adam_bench.store.files import write_text
from coupled_adam_bench.study.settings import parse_study

_CLONE = Path(__file__).parents[3]
_NAME, _CLASS = "my_optimizer", "MyOptimizer"
"""What the templates call the module and its class."""
_FILES = {
    "my_optimizer.py": "{name}.py",
    "test_my_optimizer.py": "test_{name}.py",
    "README.md": "README.md",
    "workflow.yml": ".github/workflows/{name}.yml",
}
"""The templates, and the files that are made of them."""
_STUDY = "study.yaml"


def write_folder(name: str) -> list[Path]:
    """Write a folder with an optimizer called ``name``, its test, its study and what runs them.

    Raises ``ValueError`` for a name that no module, no class or no folder can have here.
    """
    folder = Path(name)
    if not name.isidentifier() or name != name.lower():
        raise ValueError(
            f"{name!r}: must be a name that a Python module can have, in small letters, such as"
            f" {_NAME}"
        )
    if folder.exists():
        raise ValueError(f"{folder}: is there already; choose another name, or remove it")
    if find_spec(name) is not None:
        raise ValueError(f"{name}: a package of this name is installed; choose another name")
    class_name = "".join(part.capitalize() for part in name.split("_"))
    texts = {_STUDY: _study(name, class_name)}
    for template, place in _FILES.items():
        text = (_CLONE / "templates" / "new" / template).read_text(encoding="utf-8")
        texts[place.format(name=name)] = (
            text.replace(_NAME, name)
            .replace(_CLASS, class_name)
            .replace("ADDRESS", _address())
            .replace("CLONE", os.path.relpath(_CLONE, folder))
        )
    for place, text in texts.items():
        write_text(folder / place, text)
    return [folder / place for place in texts]


def _study(name: str, class_name: str) -> str:
    """Return the study for submissions, with this optimizer in the place of the one that stands
    there."""
    shipped = _CLONE / "workflow" / "config" / "submission.yaml"
    text = shipped.read_text(encoding="utf-8")
    settings = text[text.index("study:") :]
    for there, here in (
        ("study: submission", f"study: {name}"),
        ("torch.optim.NAdam", f"{name}.{class_name}"),
        ("key: nadam", f"key: {name}"),
        ("label: NAdam", f"label: {class_name}"),
        ("        nadam:", f"        {name}:"),
    ):
        assert there in settings, there
        settings = settings.replace(there, here)
    parse_study(yaml.safe_load(settings), _STUDY)
    said = (
        f"# The study of {class_name}; docs/registry.md of the bench has the rules of submissions."
    )
    return f"{said}\n{settings}"


def _address() -> str:
    """Return the address of the bench's repository."""
    urls: list[str] = metadata("coupled-adam-bench").get_all("Project-URL") or []
    (address,) = [url for url in urls if url.startswith("Repository")]
    return address.partition(", ")[2]
