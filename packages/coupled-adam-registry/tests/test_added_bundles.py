"""Which bundles continuous integration trains again: those that a branch adds, by asking git."""

import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / ".ci" / "added-bundles"


class Repository:
    """A repository whose main branch has one bundle."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        self.git("init", "-b", "main")
        self.add("old")

    def git(self, *arguments: str) -> None:
        command = ["git", "-c", "user.name=x", "-c", "user.email=x@y", *arguments]
        subprocess.run(command, cwd=self.folder, check=True, capture_output=True)

    def add(self, name: str) -> None:
        bundle = self.folder / "registry" / name / "bundle.json"
        bundle.parent.mkdir(parents=True)
        bundle.write_text('{"submitter": "somebody", "notes": "a bundle like all others"}')
        self.commit()

    def commit(self) -> None:
        self.git("add", "--all")
        self.git("commit", "--allow-empty", "-m", "x")

    def added(self) -> list[str]:
        return self.asked().stdout.split()

    def asked(self) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", SCRIPT], cwd=self.folder, capture_output=True, text=True, check=False
        )


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path / "repository")


def test_a_branch_adds_what_main_has_not(repository):
    repository.git("checkout", "-b", "branch")
    assert repository.added() == [
        "registry/old"
    ]  # HEAD is still that of main, whose last commit added it
    repository.add("new")
    repository.git("mv", "registry/old", "registry/renamed")  # which git would call a rename
    repository.commit()
    repository.git("checkout", "main")
    repository.add("by others")
    repository.git("checkout", "branch")
    assert repository.added() == ["registry/new", "registry/renamed"]


def test_an_own_bundle_that_moved_is_not_added(repository):
    own = repository.folder / "registry" / "own.txt"
    own.write_text("abc\n")
    repository.add("abc")
    repository.git("checkout", "-b", "branch")
    (repository.folder / "book" / "study").mkdir(parents=True)
    repository.git("mv", "registry/abc", "book/study/bundle")
    repository.commit()
    assert repository.added() == ["book/study/bundle"]
    own.write_text("abc  ../book/study/bundle\n")
    repository.commit()
    assert repository.added() == []
    repository.git("mv", "book/study/bundle", "book/study/another")
    own.write_text("def  ../book/study/another\n")
    repository.commit()
    assert repository.added() == ["book/study/another"]


def test_main_adds_what_its_last_commit_does(repository):
    assert repository.added() == ["registry/old"]  # the first commit
    repository.add("new")
    assert repository.added() == ["registry/new"]
    repository.commit()
    assert repository.added() == []


@pytest.mark.fault(
    "results",
    "A clone is so shallow, or lacks the main branch, that git cannot say which bundles a branch"
    " adds.",
    "`make registry` fails with a sentence, and does not take them for none.",
)
def test_a_clone_that_cannot_tell_says_so(repository, tmp_path):
    repository.add("new")
    clone = tmp_path / "shallow"
    subprocess.run(
        ["git", "clone", "--depth", "1", repository.folder.as_uri(), clone],
        check=True,
        capture_output=True,
    )
    shallow = Repository.__new__(Repository)
    shallow.folder = clone
    found = shallow.asked()
    assert (found.returncode, found.stdout) == (1, "")
    assert (
        "Cannot tell which bundles this branch adds: this clone is shallow; run git fetch"
        " --unshallow" in found.stderr
    )
    repository.git("branch", "-m", "main", "trunk")
    found = repository.asked()
    assert found.returncode == 1
    assert "there is no main branch here; fetch it, or name it in BASE" in found.stderr


def test_without_a_repository_there_is_none(tmp_path):
    found = subprocess.run(
        ["bash", SCRIPT], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (found.returncode, found.stdout) == (0, "")
