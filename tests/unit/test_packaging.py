"""The files that an installation starts from agree with each other."""

import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import venv
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

import coupled_adam
import coupled_adam_bench
import coupled_adam_registry
import embedding_geometry

ROOT = Path(__file__).parents[2]
OPTIMIZER = Path("packages") / "coupled-adam"
MEASURE = Path("packages") / "embedding-geometry"
REGISTRY = Path("packages") / "coupled-adam-registry"
PACKAGES = (OPTIMIZER, MEASURE, REGISTRY)


def read(name: str | Path) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def project_of(folder: Path) -> dict[str, Any]:
    return tomllib.loads(read(folder / "pyproject.toml"))["project"]


def run(*command: str | Path, **options: Any) -> str:
    """Run a command, which must end well, and return what it said."""
    return subprocess.run(command, capture_output=True, text=True, check=True, **options).stdout


def python(program: str, *arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a program of Python, which may fail."""
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)


PROJECT = project_of(Path())
# Of this repository, from where they are installed.
OURS = {PROJECT["name"], *(project_of(folder)["name"] for folder in PACKAGES)}
GROUPS = {"core": PROJECT["dependencies"], **PROJECT["optional-dependencies"]}
# Names on conda-forge where they are others than on PyPI.
CONDA_NAMES = {"torch": "pytorch", "matplotlib": "matplotlib-base"}


def requirements(*groups: str) -> list[Requirement]:
    """Return what groups require from an index."""
    found = [Requirement(text) for group in groups for text in GROUPS[group]]
    return [requirement for requirement in found if requirement.name not in OURS]


@pytest.fixture(scope="module")
def pins() -> dict[str, Version]:
    lines = read("constraints.txt").splitlines()
    matches = [
        re.fullmatch(r"([A-Za-z0-9._-]+)==([A-Za-z0-9.]+)", line)
        for line in lines
        if not line.startswith("#")
    ]
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
    """Otherwise an installation next year is not the tested one; only PyTorch's own CUDA packages
    are left to it. The tools of the site are installed apart, and not here."""
    groups = GROUPS.keys() - {"docs"}
    pending = [(r.name, extra) for r in requirements(*groups) for extra in (*r.extras, "")]
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
                if canonicalize_name(name) == "torch" and re.match(
                    "nvidia-|cuda-|triton", inner.name
                ):
                    continue
                pending += [(inner.name, inner_extra) for inner_extra in (*inner.extras, "")]


@pytest.fixture(scope="module")
def wheels(tmp_path_factory) -> dict[str, Path]:
    """Return the wheels of all distributions by their names, built from the files that git
    knows."""
    clone, built = tmp_path_factory.mktemp("clone"), tmp_path_factory.mktemp("wheels")
    for name in filter(None, run("git", "ls-files", "-z", cwd=ROOT).split("\0")):
        if (
            name.startswith(("src/", "packages/", "README", "LICENSE", "pyproject"))
            and (ROOT / name).is_file()
        ):
            (clone / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, clone / name)
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", built]
    folders = [*(clone / folder for folder in PACKAGES), clone]
    subprocess.run([sys.executable, "-m", "pip", "wheel", *options, *folders], check=True)
    return {"-".join(path.name.split("-")[0].split("_")): path for path in built.iterdir()}


def test_an_index_takes_all_wheels(wheels):
    assert set(wheels) == OURS
    subprocess.run(
        [sys.executable, "-m", "twine", "check", "--strict", *wheels.values()], check=True
    )


FOLDERS = {
    coupled_adam_bench: Path(),
    coupled_adam: OPTIMIZER,
    embedding_geometry: MEASURE,
    coupled_adam_registry: REGISTRY,
}
each_package = pytest.mark.parametrize(
    ("module", "folder"), FOLDERS.items(), ids=[module.__name__ for module in FOLDERS]
)


@each_package
def test_every_file_of_a_package_is_in_its_wheel(wheels, module, folder):
    source, package = ROOT / folder / "src", module.__name__
    files = {
        path.relative_to(source).as_posix()
        for path in (source / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    with zipfile.ZipFile(wheels[package.replace("_", "-")]) as wheel:
        found = set(wheel.namelist())
    assert f"{package}/py.typed" in found
    assert files <= found
    assert any(name.endswith("licenses/LICENSE") for name in found)


USE = """
import sys
import torch
from coupled_adam import CoupledAdam, coupled_param_groups

model = torch.nn.Sequential(torch.nn.Embedding(5, 2), torch.nn.Linear(2, 5))
optimizer = CoupledAdam(coupled_param_groups(model), lr=0.1)
model(torch.tensor([1])).sum().backward()
optimizer.step()
assert not {"pydantic", "coupled_adam_bench"} & set(sys.modules)
"""


MEASURE_WITHOUT = """
import sys

for name in ("torch", "transformers", "scipy", "pandas", "pydantic", "mlflow", "snakemake", "coupled_adam_bench"):
    sys.modules[name] = None  # as if it were not installed
from embedding_geometry.command import main

sys.exit(main())
"""


def test_the_wheels_work_in_empty_environments(wheels, tmp_path):
    """The bench finds the packages of this environment, but not our code, which is installed from
    the wheels."""
    theirs = [path for path in sys.path if path.endswith("site-packages")]
    pythons = {}
    installed = {
        "optimizer": ["coupled-adam"],
        "measure": ["embedding-geometry"],
        "bench": list(wheels),
    }
    for name, distributions in installed.items():
        venv.create(tmp_path / name, with_pip=False)
        pythons[name] = str(tmp_path / name / "bin" / "python")
        pip = [sys.executable, "-m", "pip", "--python", pythons[name], "install"]
        pip += ["--quiet", "--no-index", "--no-deps"]
        subprocess.run([*pip, *map(wheels.get, distributions)], check=True)
        (own,) = (tmp_path / name).glob("lib/python*/site-packages")
        (own / "others.pth").write_text(
            "\n".join(theirs), encoding="utf-8"
        )  # whose own .pth are not read

    def run_in(name: str, *arguments: str) -> str:
        return run(pythons[name], "-P", *arguments, cwd=tmp_path)

    run_in("optimizer", "-c", USE)
    np.save(tmp_path / "matrix.npy", np.eye(5))
    said = run_in("measure", "-c", MEASURE_WITHOUT, "matrix.npy")
    assert "embeddings isotropy" in said
    where = (
        "from coupled_adam_bench import optim; print(optim.CoupledAdam.__module__, optim.__file__)"
    )
    module, file = run_in("bench", "-c", where).split()
    assert module == "coupled_adam.optimizer"
    assert Path(file).is_relative_to(tmp_path / "bench")
    command = str(tmp_path / "bench" / "bin" / "coupled-adam-bench")
    said = run(command, "--help", cwd=tmp_path)
    assert "Studies are run by snakemake in a clone of the repository" in " ".join(said.split())
    said = run_in("bench", "-m", "coupled_adam_bench", "export", "--help")
    assert "ro-crate" in said  # of the registry's own wheel
    refused = [command, "report", "--plan", "plan.json"]
    result = subprocess.run(refused, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert result.returncode == 2
    assert (
        "no folder 'templates'; a clone of the repository has it, where studies are run"
        in result.stderr
    )


def test_the_optimizer_requires_torch_alone_and_the_bench_the_packages_of_its_release():
    optimizer, measure, torch_ = map(Requirement, GROUPS["core"])
    assert project_of(OPTIMIZER)["dependencies"] == [str(torch_)]
    assert optimizer.name == project_of(OPTIMIZER)["name"]
    assert coupled_adam.__version__ in optimizer.specifier
    assert measure.name == project_of(MEASURE)["name"]
    assert embedding_geometry.__version__ in measure.specifier
    licenses = {(ROOT / folder / "LICENSE").read_bytes() for folder in (Path(), *PACKAGES)}
    assert len(licenses) == 1


def test_the_registry_requires_the_bench_of_its_release():
    (bench,) = map(Requirement, project_of(REGISTRY)["dependencies"])
    # With an extra, a second call of pip on the installations of README ends in a conflict.
    assert (bench.name, bench.extras) == (PROJECT["name"], set())
    assert coupled_adam_bench.__version__ in bench.specifier
    assert project_of(REGISTRY)["requires-python"] == PROJECT["requires-python"]


def test_the_measure_requires_nothing_heavy(pins):
    required = list(map(Requirement, project_of(MEASURE)["dependencies"]))
    assert [one.name for one in required] == ["huggingface_hub", "numpy", "tokenizers"]
    assert all(pins[canonicalize_name(one.name)] in one.specifier for one in required)


@pytest.mark.parametrize(
    "name", ["README.md", "CONTRIBUTING.md", "Dockerfile", "apptainer.def", "environment.yml"]
)
def test_documented_installations_take_the_packages_from_the_clone(name):
    text = read(name)
    commands = re.findall(r"pip install [^`\n]*-e '\.\[.*", text)
    assert commands
    # The bench stands first: else pip looks for it on an index when the registry asks for it.
    ours = " ".join(f"-e {folder}" for folder in PACKAGES)
    assert all(f"]' {ours}" in command for command in commands)


def test_help_and_version_need_no_package_of_the_pipeline():
    for option, said in (
        ("--help", "measure "),
        ("--version", f"coupled-adam-bench {coupled_adam_bench.__version__}"),
    ):
        told = run(sys.executable, "-c", WITHOUT, "pydantic", option)
        assert said in told
        assert "``" not in told


def test_the_address_of_the_repository_is_set_in_one_place(tmp_path):
    address = PROJECT["urls"]["Repository"]
    assert all(project_of(folder)["urls"]["Repository"] == address for folder in PACKAGES)
    assert yaml.safe_load(read("CITATION.cff"))["repository-code"] == address
    makefile = read("Makefile")
    (names,) = re.findall(r"^ADDRESSED := (.*)$", makefile, re.MULTILINE)
    found = run("git", "grep", "-lF", address, cwd=ROOT)
    assert sorted(found.split()) == sorted(names.split())
    for name in ["Makefile", *names.split()]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    subprocess.run(["make", "address", "ADDRESS=https://host.test/us"], cwd=tmp_path, check=True)
    for name in names.split():
        changed = read(name).replace(address, "https://host.test/us")
        assert (tmp_path / name).read_text("utf-8") == changed


def test_the_pipeline_includes_all_that_training_needs():
    (itself,) = [one for one in map(Requirement, GROUPS["pipeline"]) if one.name == PROJECT["name"]]
    assert itself.extras == {"train"}


def test_setuptools_is_pinned_for_the_build(pins):
    (build,) = tomllib.loads(read("pyproject.toml"))["build-system"]["requires"]
    assert pins["setuptools"] in Requirement(build).specifier


def test_conda_environment_has_the_same_names_and_ranges():
    environment = yaml.safe_load(read("environment.yml"))
    *conda, pip = environment["dependencies"]
    from_pypi = pip["pip"][: -len(PACKAGES) - 1]
    assert pip["pip"] == [*from_pypi, *(f"-e {folder}" for folder in PACKAGES), "-e ."]
    found = {
        requirement.name: requirement.specifier
        for requirement in map(Requirement, [*conda, *from_pypi])
    }
    assert found.pop("python") == Requirement(f"python{PROJECT['requires-python']}").specifier
    assert not found.pop("pip")
    expected = requirements("core", "train", "pipeline")
    assert found == {CONDA_NAMES.get(one.name, one.name): one.specifier for one in expected}
    assert {str(one) for one in map(Requirement, from_pypi)} <= {
        str(one) for one in expected
    }  # extras, too


def test_python_versions_are_the_same_everywhere():
    minors = [
        int(re.fullmatch(r".* 3\.(\d+)", line)[1])
        for line in PROJECT["classifiers"]
        if re.search(r"3\.\d", line)
    ]
    assert PROJECT["requires-python"] == f">=3.{min(minors)},<3.{max(minors) + 1}"
    makefile = read("Makefile")
    assert f"(3, {min(minors)}) <= sys.version_info[:2] <= (3, {max(minors)})" in makefile


@each_package
def test_the_version_is_in_the_changelog(module, folder):
    assert f"\n## {module.__version__}" in read(folder / "CHANGELOG.md")


def test_the_citation_names_the_version_and_the_paper():
    citation = yaml.safe_load(read("CITATION.cff"))
    assert citation["version"] == coupled_adam_bench.__version__
    assert citation["license"] == PROJECT["license"]
    assert citation["authors"] == PROJECT["authors"]
    assert citation["references"][0]["url"] == PROJECT["urls"]["Paper"]


def test_a_release_has_one_version_everywhere():
    zenodo = json.loads(read(".zenodo.json"))
    assert {module.__version__ for module in FOLDERS} == {zenodo["version"]}


WITHOUT = """
import runpy
import sys

sys.modules[sys.argv.pop(1)] = None  # as if it were not installed
runpy.run_module("coupled_adam_bench", run_name="__main__", alter_sys=True)
"""


@pytest.mark.fault(
    "settings", "only the source of the packages is there", "the folder that is missing is named"
)
def test_a_missing_description_of_a_package_is_named_as_that():
    code = "\n".join(
        (
            "import sys, coupled_adam_bench.cli",
            "from importlib.metadata import requires",
            "from coupled_adam_bench.__main__ import main",
            "coupled_adam_bench.cli.main = lambda: requires('coupled-adam-other')",
            "sys.exit(main())",
        )
    )
    result = python(code)
    assert result.returncode == 2
    assert result.stderr.startswith(
        "error: no folder coupled_adam_other-*.dist-info is on Python's path; it says which"
    )
    assert "is not installed" not in result.stderr


@pytest.mark.parametrize(
    ("package", "arguments"),
    [
        ("pydantic", ["describe", "--plan", "p.json"]),
        ("yaml", ["plan", "--study", "demo.yaml", "--out", "plan.json"]),
    ],
)
@pytest.mark.fault(
    "settings",
    "a command of the pipeline is called where only the optimizer is installed",
    "a sentence says what to install",
)
def test_a_command_without_its_packages_says_what_to_install(package, arguments, tmp_path):
    result = python(WITHOUT, package, *arguments, cwd=tmp_path)
    assert result.returncode == 2
    assert result.stderr.startswith(f"error: the package {package!r} is not installed; ")
    assert "pip install 'coupled-adam-bench[pipeline]'" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["bundle", "results/demo", "--submitter", "Somebody", "--notes", "mine"],
        ["bundle", "--submitter", "Somebody", "results/demo"],
        ["registry", "check", "--again", "1"],
        ["registry"],
        ["registry", "--help"],
        ["export", "checklist", "manifest.json"],
        ["schema", "--out", "schemas"],
    ],
    ids=" ".join,
)
@pytest.mark.fault(
    "settings",
    "a command of the registry is called where its package is not installed",
    "a sentence says what to install, and nothing is written",
)
def test_the_bench_without_the_registry_says_what_to_install(arguments, tmp_path):
    result = python(WITHOUT, "coupled_adam_registry", *arguments, cwd=tmp_path)
    assert result.returncode == 2
    assert result.stderr == (
        "error: the package 'coupled_adam_registry' is not installed; this command needs it: pip"
        " install coupled-adam-registry (in a clone of the repository: pip install -e"
        f" {REGISTRY})\n"
    )
    assert not [*tmp_path.iterdir()]


def test_the_bench_without_the_registry_has_its_other_commands():
    told = run(sys.executable, "-c", WITHOUT, "coupled_adam_registry", "--help")
    listed = set(re.findall(r"^    ([a-z][a-z-]+) ", told, re.MULTILINE))
    assert {"bundle", "registry", "export", "report"} <= listed
    assert told.count("needs the package coupled-adam-registry") == 3


def test_a_module_that_is_missing_in_an_installed_package_is_no_matter_of_installation():
    broken = """
import sys
import coupled_adam_bench.__main__ as entry

sys.modules["coupled_adam_bench.cli"] = None
entry.main()
"""
    assert "ModuleNotFoundError" in python(broken).stderr


def test_the_license_is_whole():
    text = read("LICENSE")
    assert PROJECT["license"] == "Apache-2.0"
    assert "Apache License\n                           Version 2.0" in text
    assert "limitations under the License." in text


@pytest.fixture
def make(tmp_path):
    """Return a function that runs make in a folder with nothing but the Makefile and what it
    depends on."""
    if shutil.which("make") is None:
        assert not os.environ.get("CAB_REQUIRE_TOOLS"), "make is missing"
        pytest.skip("no make")
    for name in (
        "Makefile",
        "pyproject.toml",
        "constraints.txt",
        *(folder / "pyproject.toml" for folder in PACKAGES),
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    environment.pop("MFLAGS", None)

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = ["make", "-C", str(tmp_path), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)

    return run


@pytest.mark.parametrize("target", ["install", "docs"])
def test_a_python_that_does_not_fit_is_a_clear_error(target, make):
    result = make("PYTHON=false no-such-python", target)
    assert result.returncode != 0
    assert (
        "No Python 3.11 to 3.13 with the module ensurepip among: false no-such-python."
        in result.stderr
    )
    assert "make PYTHON=/path/to/python3.12" in result.stderr


def test_the_demo_installs_no_tools_for_tests(make):
    demo, test = make("-n", "demo").stdout, make("-n", "test").stdout
    assert "-e '.[pipeline]'" in demo
    assert "dev]" not in demo
    assert "-e '.[pipeline,dev]'" in test
    assert "-e '.[pipeline,dev]'" in make("-n", "lint").stdout


def write_python(folder: Path, script: str) -> None:
    """Put a script of the shell in the place of the environment's Python."""
    python = folder / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f"#!/bin/sh\n{script}\n")
    python.chmod(0o755)


def test_an_installation_says_its_size_and_keeps_a_log(make, tmp_path):
    said = make("-n", "install").stdout
    assert "5.4 GB" in said and "in .venv/install.log" in said
    assert "pytorch.org" not in said
    assert (
        "--extra-index-url https://download.pytorch.org/whl/cpu"
        in make("-n", "install", "TORCH=cpu").stdout
    )
    # Where pip fails, the end of its log is shown.
    write_python(tmp_path, "echo there is no such package; exit 1")
    failed = make("install")
    assert failed.returncode != 0
    assert "there is no such package" in failed.stdout


def test_an_installation_shows_what_is_large_as_it_comes(make, tmp_path):
    large = "Downloading torch-2.13.0.whl (532.1 MB)"
    said = ("Collecting torch", f"  {large}", "  Downloading yte-1.9.4.whl (10 kB)")
    write_python(tmp_path, "; ".join(f"echo '{line}'" for line in said))
    done = make("install")
    assert done.returncode == 0
    assert large in done.stdout
    assert "Collecting" not in done.stdout and "kB" not in done.stdout
    assert "Collecting torch" in (tmp_path / ".venv" / "install.log").read_text(encoding="utf-8")


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
    assert re.search(
        r"env -u PIP_EXTRA_INDEX_URL .*\.venv-cuda/bin/python -m pip .*\n.* --upgrade torch ",
        nightly,
    )
    cuda, others = (line for line in nightly.splitlines() if "-m pytest" in line)
    assert cuda.startswith('PATH="$PWD/.venv-cuda/bin:$PATH"')
    assert "tests/unit/tools/rehearsal" in cuda
    assert others.startswith('PATH="$PWD/.venv/bin:$PATH"')


def test_make_alone_lists_every_target(make, tmp_path):
    listed = set(re.findall(r"^  make ([a-z-]+) ", make().stdout, re.MULTILINE))
    (phony,) = re.findall(
        r"^\.PHONY: (.*)$", (tmp_path / "Makefile").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert listed == set(phony.split())


def test_continuous_integration_is_an_executable_script():
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    if bash := shutil.which("bash"):
        subprocess.run([bash, "-n", str(script)], check=True)


WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def steps(path: Path) -> list[dict[str, Any]]:
    """Return the steps of all jobs of a workflow of the code host."""
    workflow = yaml.safe_load(path.read_text(encoding="utf-8"))
    return [step for job in workflow["jobs"].values() for step in job["steps"]]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_of_the_code_host_takes_actions_by_their_commit(path):
    """A tag can be moved to other code, a commit cannot."""
    used = re.findall(r"uses: (\S+)(.*)", path.read_text(encoding="utf-8"))
    assert used
    for action, comment in used:
        assert re.fullmatch(r"[\w/-]+@[0-9a-f]{40}", action), action
        assert re.fullmatch(r" # v[\d.]+", comment), action


def test_the_code_host_runs_what_a_contributor_runs():
    commands = [step.get("run") for path in WORKFLOWS for step in steps(path)]
    assert ".ci/run" in commands
    assert "make docs" in commands


def test_the_wheels_of_a_release_are_those_of_all_distributions():
    commands = [
        step.get("run", "") for step in steps(ROOT / ".github" / "workflows" / "wheels.yml")
    ]
    (built,) = re.findall(r"pip wheel .*--wheel-dir dist (.*)", "\n".join(commands))
    assert built.split() == [*(folder.as_posix() for folder in PACKAGES), "."]
