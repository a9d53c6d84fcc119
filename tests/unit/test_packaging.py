"""The files that an installation starts from agree with each other."""

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

import coupled_adam_bench

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
GROUPS = {"core": PROJECT["dependencies"], **PROJECT["optional-dependencies"]}
# Names on conda-forge where they are others than on PyPI.
CONDA_NAMES = {"torch": "pytorch", "matplotlib": "matplotlib-base"}


def requirements(*groups: str) -> list[Requirement]:
    """Return what groups require, but for this project itself, by whose name one group includes another."""
    found = [Requirement(text) for group in groups for text in GROUPS[group]]
    return [requirement for requirement in found if requirement.name != PROJECT["name"]]


@pytest.fixture(scope="module")
def pins() -> dict[str, Version]:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    matches = [re.fullmatch(r"([A-Za-z0-9._-]+)==([A-Za-z0-9.]+)", line) for line in lines if not line.startswith("#")]
    assert all(matches), "one name==version a line, without URL, local version (+cpu) or spaces"
    names = [canonicalize_name(match[1]) for match in matches if match]
    assert len(names) == len(set(names))
    return {canonicalize_name(match[1]): Version(match[2]) for match in matches if match}


@pytest.mark.parametrize("group", list(GROUPS))
def test_every_requirement_is_pinned_within_its_range(group, pins):
    for requirement in requirements(group):
        version = pins[canonicalize_name(requirement.name)]
        assert version in requirement.specifier, requirement
        assert requirement.specifier, f"{requirement} has no lower bound"


def test_what_the_pinned_packages_require_is_pinned_too(pins):
    """Otherwise an installation next year is not the tested one; only PyTorch's own CUDA packages are left to it."""
    pending = [(r.name, extra) for r in requirements(*GROUPS) for extra in (*r.extras, "")]
    seen = set()
    while pending:
        name, extra = pending.pop()
        if (name, extra) in seen:
            continue
        seen.add((name, extra))
        assert canonicalize_name(name) in pins
        for text in importlib.metadata.requires(name) or ():
            inner = Requirement(text)
            if inner.marker is None or inner.marker.evaluate({"extra": extra}):
                if canonicalize_name(name) == "torch" and re.match("nvidia-|cuda-|triton", inner.name):
                    continue
                pending += [(inner.name, inner_extra) for inner_extra in (*inner.extras, "")]


def test_every_file_of_the_package_is_installed():
    patterns = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"][
        "package-data"
    ]
    source = ROOT / "src"
    declared = {
        path
        for package, globs in patterns.items()
        for glob in globs
        for path in source.glob(f"{package.replace('.', '/')}/{glob}")
    }
    others = {
        path
        for path in (source / "coupled_adam_bench").rglob("*")
        if path.is_file() and path.suffix != ".py" and "__pycache__" not in path.parts
    }
    assert others == declared
    assert {path.name for path in declared} == {
        "race.yaml", "truthfulqa_mc2.yaml", "py.typed", "README.md", "published.csv", "published_oec.csv",
    }  # fmt: skip


def test_the_optimizer_installs_no_package_but_torch():
    assert [requirement.name for requirement in requirements("core")] == ["torch"]


def test_the_pipeline_includes_all_that_training_needs():
    (itself,) = [one for one in map(Requirement, GROUPS["pipeline"]) if one.name == PROJECT["name"]]
    assert itself.extras == {"train"}


def test_setuptools_is_pinned_for_the_build(pins):
    (build,) = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["build-system"]["requires"]
    assert pins["setuptools"] in Requirement(build).specifier


def test_conda_environment_has_the_same_names_and_ranges():
    environment = yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))
    *conda, pip = environment["dependencies"]
    *from_pypi, itself = pip["pip"]
    assert itself == "-e ."
    found = {requirement.name: requirement.specifier for requirement in map(Requirement, [*conda, *from_pypi])}
    assert found.pop("python") == Requirement(f"python{PROJECT['requires-python']}").specifier
    assert not found.pop("pip")
    expected = requirements("core", "train", "pipeline")
    assert found == {CONDA_NAMES.get(one.name, one.name): one.specifier for one in expected}
    assert {str(one) for one in map(Requirement, from_pypi)} <= {str(one) for one in expected}  # extras, too


def test_python_versions_are_the_same_everywhere():
    minors = [
        int(re.fullmatch(r".* 3\.(\d+)", line)[1]) for line in PROJECT["classifiers"] if re.search(r"3\.\d", line)
    ]
    assert PROJECT["requires-python"] == f">=3.{min(minors)},<3.{max(minors) + 1}"
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert f"(3, {min(minors)}) <= sys.version_info[:2] <= (3, {max(minors)})" in makefile


def test_the_version_is_in_the_changelog():
    assert f"\n## {PROJECT['version']}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_the_version_is_that_of_the_installation():
    assert coupled_adam_bench.__version__ == importlib.metadata.version(PROJECT["name"])
    assert not hasattr(coupled_adam_bench, "__authors__")


def test_the_citation_names_the_version_and_the_paper():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == PROJECT["version"]
    assert citation["license"] == PROJECT["license"]
    assert citation["authors"] == PROJECT["authors"]
    assert citation["references"][0]["url"] == PROJECT["urls"]["Paper"]


def test_files_that_are_no_code_are_packaged():
    package = Path(coupled_adam_bench.__file__).parent
    with (ROOT / "pyproject.toml").open("rb") as file:
        data = tomllib.load(file)["tool"]["setuptools"]["package-data"]["coupled_adam_bench"]
    assert "py.typed" in data
    assert all((package / name).is_file() for name in data)


WITHOUT = """
import runpy
import sys

sys.modules[sys.argv.pop(1)] = None  # as if it were not installed
runpy.run_module("coupled_adam_bench", run_name="__main__", alter_sys=True)
"""


@pytest.mark.parametrize(
    ("package", "arguments"),
    [("pydantic", ["plan", "--help"]), ("yaml", ["plan", "--study", "demo.yaml", "--out", "plan.json"])],
)
@pytest.mark.fault(
    "settings",
    "a command of the pipeline is called where only the optimizer is installed",
    "a sentence says what to install",
)
def test_a_command_without_its_packages_says_what_to_install(package, arguments, tmp_path):
    result = subprocess.run(
        [sys.executable, "-c", WITHOUT, package, *arguments], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert result.returncode == 2
    assert result.stderr.startswith(f"error: the package {package!r} is not installed; ")
    assert "pip install 'coupled-adam-bench[pipeline]'" in result.stderr
    assert "Traceback" not in result.stderr


def test_a_module_that_is_missing_in_an_installed_package_is_no_matter_of_installation():
    broken = """
import sys
import coupled_adam_bench.__main__ as entry

sys.modules["pydantic.dataclasses"] = sys.modules["coupled_adam_bench.cli"] = None
entry.main()
"""
    result = subprocess.run([sys.executable, "-c", broken], capture_output=True, text=True, check=False)
    assert "ModuleNotFoundError" in result.stderr


def test_the_license_is_whole():
    text = (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert PROJECT["license"] == "Apache-2.0"
    assert "Apache License\n                           Version 2.0" in text
    assert "limitations under the License." in text


@pytest.fixture
def make(tmp_path):
    """Return a function that runs make in a folder with nothing but the Makefile and what it depends on."""
    if shutil.which("make") is None:
        assert not os.environ.get("CAB_REQUIRE_TOOLS"), "make is missing"
        pytest.skip("no make")
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    environment.pop("MFLAGS", None)

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = ["make", "-C", str(tmp_path), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)

    return run


def test_a_python_that_does_not_fit_is_a_clear_error(make):
    result = make("PYTHON=false no-such-python", "install")
    assert result.returncode != 0
    assert "No Python 3.11 to 3.13 with the module ensurepip among: false no-such-python." in result.stderr
    assert "make PYTHON=/path/to/python3.12" in result.stderr


def test_the_demo_installs_no_tools_for_tests(make):
    demo, test = make("-n", "demo").stdout, make("-n", "test").stdout
    assert "-e '.[pipeline]'" in demo
    assert "dev]" not in demo
    assert "-e '.[pipeline,dev]'" in test
    assert "-e '.[pipeline,dev]'" in make("-n", "lint").stdout


def test_a_second_call_installs_nothing_and_a_changed_pin_installs_again(make, tmp_path):
    assert "pip install" in make("-n", "test").stdout
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv" / ".installed").touch()
    demo = make("-n", "demo").stdout
    assert "pip" not in demo
    assert "snakemake --cores all" in demo
    assert make("-n", "test").stdout.count("pip install") == 1  # what tests need, and nothing else
    (tmp_path / ".venv" / ".installed-dev").touch()
    assert "pip" not in make("-n", "test").stdout
    later = (tmp_path / ".venv" / ".installed-dev").stat().st_mtime + 10
    os.utime(tmp_path / "constraints.txt", (later, later))
    assert "pip install" in make("-n", "test").stdout
    assert "pip install" in make("-n", "demo").stdout


def test_a_nightly_begins_with_the_newest_pytorch_for_cuda(make, tmp_path):
    (tmp_path / ".venv").mkdir()
    for name in (".installed", ".installed-dev"):
        (tmp_path / ".venv" / name).touch()
    nightly = make("-n", "nightly").stdout
    assert re.search(r"env -u PIP_EXTRA_INDEX_URL .*\.venv-cuda/bin/python -m pip .*\n.* --upgrade torch ", nightly)
    cuda, others = (line for line in nightly.splitlines() if "-m pytest" in line)
    assert cuda.startswith('PATH="$PWD/.venv-cuda/bin:$PATH"')
    assert "tests/unit/tools/rehearsal" in cuda
    assert others.startswith('PATH="$PWD/.venv/bin:$PATH"')


def test_make_alone_lists_every_target(make, tmp_path):
    listed = set(re.findall(r"^  make ([a-z-]+) ", make().stdout, re.MULTILINE))
    (phony,) = re.findall(r"^\.PHONY: (.*)$", (tmp_path / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert listed == set(phony.split())


def test_continuous_integration_is_an_executable_script():
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    if bash := shutil.which("bash"):
        subprocess.run([bash, "-n", str(script)], check=True)
