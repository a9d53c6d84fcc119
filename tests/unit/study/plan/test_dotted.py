"""A user's own code is told from other code by its files, and from no more than these."""

import importlib.machinery
import importlib.metadata
import importlib.util
import os
import shutil
import sys
from pathlib import Path

import pytest
import torch

from coupled_adam_bench.store.files import sha256_file
from coupled_adam_bench.study.plan import dotted, make_plan, plan_from_json
from coupled_adam_bench.study.plan.dotted import changed_code, code_of
from coupled_adam_bench.study.settings import parse_study

FILES = {
    "my_module.py": (
        "import json\nimport torch\nfrom helpers import signs as s\nimport package.deep\n1 / 0\n"
    ),
    "helpers/signs.py": "def lazily():\n    from ..unknown import x\n    from . import other\n",
    "helpers/other.py": "import my_module\n",
    "package/__init__.py": "from .near import near\n",
    "package/near.py": "near = 1\n",
    "package/deep.py": "from package import near\n",
    "package/unused.py": "x = 1\n",
}
MINE = {"name": "custom", "path": "my_module.Mine", "key": "mine", "label": "Mine"}


@pytest.fixture(autouse=True)
def own(tmp_path, monkeypatch):
    """The working folder with a user's own modules, none of which may be imported."""
    monkeypatch.chdir(tmp_path)
    for name, text in FILES.items():
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text(text)
    yield
    assert not {"my_module", "helpers", "package"} & set(sys.modules)


def test_the_code_is_the_file_and_all_that_it_imports_from_the_user_s_folders():
    code = code_of("my_module.Mine")
    modules = [
        "helpers.other",
        "helpers.signs",
        "my_module",
        "package",
        "package.deep",
        "package.near",
    ]
    assert list(code) == modules
    assert code["helpers.signs"] == sha256_file(Path("helpers/signs.py"))


def test_folders_in_folders_need_no_init_file():
    Path("helpers/far").mkdir()
    Path("helpers/far/mine.py").write_text("x = 1\n")
    assert list(code_of("helpers.far.mine.Mine")) == ["helpers.far.mine"]


def test_this_program_and_its_optimizer_are_no_code_of_the_user():
    before = code_of("my_module.Mine")
    Path("my_module.py").write_text(
        FILES["my_module.py"]
        + "from coupled_adam import CoupledAdam\nimport coupled_adam_bench.optim\n"
    )
    assert list(code_of("my_module.Mine")) == list(before)


@pytest.mark.parametrize(
    "file", ["my_module.py", "helpers/other.py", "package/__init__.py", "package/near.py"]
)
def test_an_edit_of_any_of_them_is_other_code(file):
    code = code_of("my_module.Mine")
    assert changed_code("my_module.Mine", code) is None
    before = Path(file).read_text()
    Path(file).write_text(before + "# a comment\n")
    assert changed_code("my_module.Mine", code) == str(Path(file).absolute())
    Path(file).write_text(before)
    assert code_of("my_module.Mine") == code
    Path("package/unused.py").write_text("x = 2\n")
    assert code_of("my_module.Mine") == code


@pytest.mark.fault(
    "training",
    "a user's own code is replaced by other code of the same size and time of change",
    "what runs is the code that is there now, which the cell's id names, not what Python had"
    " compiled before",
)
def test_code_runs_as_it_was_hashed(monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    monkeypatch.syspath_prepend(str(Path.cwd()))
    for value in (1, 2):
        Path("edited.py").write_text(f"value = {value}\n")
        os.utime("edited.py", (10**9, 10**9))
        importlib.invalidate_caches()
        if value == 1:
            importlib.import_module("edited")  # compiled, and kept beside the file
        else:
            assert dotted.import_object("edited.value") == value
        sys.modules.pop("edited")


def test_an_installed_package_is_its_version(monkeypatch):
    assert code_of("torch.optim.Adagrad") == {"torch": importlib.metadata.version("torch")}
    monkeypatch.setattr(dotted, "version", lambda name: "0.1")
    assert code_of("pytorch_optimizer.Lion") == {"pytorch_optimizer": "0.1"}
    lost = Path("site-packages/lost.py")  # which no package knows
    lost.parent.mkdir()
    lost.write_text("import package.near\n")
    monkeypatch.syspath_prepend(str(lost.parent.absolute()))
    assert list(code_of("lost.Optimizer")) == ["lost", "package", "package.near"]


def test_a_file_with_the_name_of_an_installed_package_is_not_passed_over(monkeypatch):
    Path("packaging.py").write_text("class Mine: pass\n")
    with pytest.raises(ValueError, match=r"path: 'packaging' is .*another one, .*packaging\.py"):
        code_of("packaging.version.Version")
    Path("packaging.py").rename("my_packaging.py")
    assert list(code_of("my_packaging.Mine")) == ["my_packaging"]
    # A folder of data may have any name.
    Path("packaging").mkdir()
    assert list(code_of("packaging.version.Version")) == ["packaging"]


EFFECTS = {
    "import sys\nsys.exit(0)\n": r"cannot import 'effect' \(SystemExit: 0\)",
    "import os\nos.chdir('helpers')\n": "changes the working directory from",
    "import torch\ntorch.set_default_dtype(torch.float64)\n": (
        r"changes torch's default dtype from torch\.float32 to torch\.float64.*in a function"
    ),
    "import torch\ntorch.set_float32_matmul_precision('medium')\n": (
        "changes torch's precision of products from highest to medium"
    ),
    "import torch\ntorch.set_grad_enabled(False)\n": "changes whether torch computes gradients",
}
"""What a module does as it is imported, and what is said of it."""


@pytest.mark.fault(
    "settings",
    "A module with a study's own code ends the process as it is imported, or changes the working"
    " directory or a default of torch for the whole process.",
    "It is refused before the first job with what it changes.",
)
@pytest.mark.parametrize("text", EFFECTS)
def test_an_import_that_reaches_beyond_its_module_is_refused(text, monkeypatch):
    dtype, precision = torch.get_default_dtype(), torch.get_float32_matmul_precision()
    monkeypatch.syspath_prepend(str(Path.cwd()))
    here = Path.cwd()
    Path("effect.py").write_text(f"class Mine: pass\n{text}")
    importlib.invalidate_caches()
    try:
        with pytest.raises(ValueError, match=EFFECTS[text]):
            dotted.import_object("effect.Mine")
    finally:
        os.chdir(here)
        torch.set_default_dtype(dtype)
        torch.set_float32_matmul_precision(precision)
        torch.set_grad_enabled(True)
        sys.modules.pop("effect", None)
    # In a function, as the message says, it is no matter of the import.
    lines = "".join(f"    {line}\n" for line in text.splitlines())
    Path("effect.py").write_text(f"class Mine: pass\ndef later():\n{lines}")
    importlib.invalidate_caches()
    assert dotted.import_object("effect.Mine").__name__ == "Mine"
    sys.modules.pop("effect")


@pytest.mark.fault(
    "settings",
    "The code of a study's own optimizer is not there, has no file, is no Python, or may not be"
    " read.",
    "It is refused before the first job with its place in the study.",
)
@pytest.mark.parametrize(
    ("path", "message"),
    [
        (
            "my_modul.Mine",
            "path: no package or module 'my_modul' is installed, nor is there one in ",
        ),
        ("helpers.Mine", "or it has no file; correct the path"),
        ("sys.Mine", "or it has no file; correct the path"),
        ("broken.Mine", "path: .*broken.py: not valid Python"),
        ("closed.Mine", "path: closed.py cannot be read: Permission denied; make it readable"),
    ],
)
def test_code_that_cannot_be_identified_is_refused(path, message, monkeypatch):
    Path("broken.py").write_text("1 +\n")
    Path("closed.py").touch()
    read = dotted.sha256_file

    def closed(file):
        if file.name == "closed.py":
            raise PermissionError(13, "Permission denied", file.name)
        return read(file)

    monkeypatch.setattr(dotted, "sha256_file", closed)
    with pytest.raises(ValueError, match=message):
        code_of(path)


# In the plan.


def plan_of(tiny_study, **changes):
    settings = tiny_study()
    settings["grid"][0]["optimizers"] = ["adamw", MINE | changes]
    return make_plan(parse_study(settings))


def test_cells_of_other_code_are_other_cells(tiny_study):
    plan = plan_of(tiny_study)
    assert plan_from_json(plan.to_json(), "plan").cells == plan.cells
    Path("package/near.py").write_text("near = 2\n")
    written, edited = plan_from_json(plan.to_json(), "plan"), plan_of(tiny_study)
    assert list(written.cells) == list(plan.cells)  # what a job does
    same = [cell for cell in plan.cells.values() if cell.id in edited.cells]
    assert [cell.optimizer.key for cell in same] == ["adamw"] * 3
    Path("package/near.py").write_text(FILES["package/near.py"])
    assert list(plan_of(tiny_study).cells) == list(plan.cells)


def test_a_plan_is_made_without_the_code_and_has_no_cell_of_any(tiny_study):
    with_code = plan_of(tiny_study)
    Path("my_module.py").rename("other_module.py")
    without = plan_of(tiny_study)
    mine = [cell for cell in without.cells.values() if cell.optimizer.key == "mine"]
    assert len(mine) == 3
    assert all(cell.optimizer.code == {} and cell.id not in with_code.cells for cell in mine)


def test_a_study_that_names_its_code_is_refused_where_it_is_another(tiny_study):
    code = code_of("my_module.Mine")
    assert list(plan_of(tiny_study, code=code).cells) == list(plan_of(tiny_study).cells)
    Path("package/near.py").write_text("near = 2\n")
    message = (
        r"^grid\.0\.optimizers\.\d\.code: the study names other code of my_module\.Mine than is here \(.*near\.py\);"
        r" restore it"
    )
    with pytest.raises(ValueError, match=message):
        plan_of(tiny_study, code=code)


def test_an_editable_install_is_its_files(monkeypatch):
    source = str(Path(shutil.move("package", "elsewhere")).absolute())

    class Finder:
        @staticmethod
        def find_spec(name, path=None, target=None):
            if name == "package":
                return importlib.util.spec_from_file_location(
                    name, f"{source}/__init__.py", submodule_search_locations=[source]
                )
            return None

    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Finder])
    code = code_of("package.deep.Mine")
    assert list(code) == ["package", "package.deep", "package.near"]
    Path(source, "near.py").write_text("near = 2\n")
    assert changed_code("package.deep.Mine", code) == str(Path(source, "near.py"))
