"""Text files as a study finds them: each real file once, under one name, and what cannot be read is
said."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from coupled_adam_bench.study.plan.inputs import (
    fingerprints,
    hidden_in,
    other_files,
    text_files,
    tokenizer_file,
    tokenizer_identity,
)


def write(path: Path, text: str = "text") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def names(*patterns: str | Path) -> list[str]:
    return [name for name, _ in text_files(tuple(map(str, patterns)))]


def refused(*patterns: str | Path) -> str:
    with pytest.raises(ValueError) as raised:
        fingerprints(text_files(tuple(map(str, patterns))))
    assert str(raised.value).startswith("paths.text: ")
    return str(raised.value)


@pytest.fixture
def corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with ``text/a.txt`` and ``text/sub/b.jsonl``."""
    monkeypatch.chdir(tmp_path)
    write(Path("text/a.txt"))
    write(Path("text/sub/b.jsonl"))
    return tmp_path


def test_patterns_are_those_of_a_shell(corpus):
    for name in (
        "text/.c.txt",
        "text/.hidden/d.txt",
        "text/sub/[e].txt",
        "text/no.md",
        "text/dir.txt/f.txt",
    ):
        write(Path(name))
    # A folder has no hidden files, as a glob has none; who names one means it.
    assert names("text/.c.txt", "text/.hidden") == [".c.txt", "d.txt"]
    assert names("text") == [
        "a.txt",
        "dir.txt/f.txt",
        "sub/[e].txt",
        "sub/b.jsonl",
    ]
    assert names("text/*.txt") == ["a.txt"]
    assert (
        names("text/*/*")
        == names("text/*/[a-z[]*")
        == ["dir.txt/f.txt", "sub/[e].txt", "sub/b.jsonl"]
    )
    assert (
        names("text/**")
        == names("text/**/*")
        == ["a.txt", "dir.txt/f.txt", "sub/[e].txt", "sub/b.jsonl"]
    )
    assert names("text/sub/[e].txt") == ["[e].txt"]
    assert names("te*/a.txt") == ["text/a.txt"]
    assert names(f"{corpus}/te*/../text/a.txt") == ["text/../text/a.txt"]
    for pattern in ("text/*.md", "none", "none/*.txt", "text/a.txt/*", "x" * 4000):
        assert "matches no text file" in refused(pattern) or "File name too long" in refused(
            pattern
        )


@pytest.mark.fault(
    "text and data",
    "a folder of text has hidden copies, which notebooks, editors, Git and macOS leave there",
    "they are not read, and preparation and report say so",
)
def test_hidden_copies_are_no_text(corpus):
    read = fingerprints(text_files(("text",)))
    for name in (".ipynb_checkpoints/a-checkpoint.txt", "sub/._b.jsonl", ".git/x/y.txt"):
        write(Path("text", name))
    assert fingerprints(text_files(("text",))) == read
    assert [str(path) for path in hidden_in("text")] == [
        "text/.git",
        "text/.ipynb_checkpoints",
        "text/sub/._b.jsonl",
    ]
    assert hidden_in("text/a.txt") == hidden_in("text/*") == []
    write(Path("only/.a.txt"))
    assert "only/.a.txt is hidden, so it is not read" in refused("only")


POINTER = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 548105171\n"


@pytest.mark.fault(
    "text and data",
    "files of text are pointers of Git LFS, since the clone has not fetched them",
    "the start refuses them with the command that fetches them",
)
@pytest.mark.parametrize("name", ["a.txt", "a.jsonl", "a.parquet", "a.txt.gz"])
def test_pointers_of_git_lfs_are_no_text(name, corpus):
    write(Path("lfs", "other.txt"))
    write(Path("lfs", name), POINTER)
    assert f"lfs/{name}: a pointer of Git LFS" in refused("lfs")
    assert "type `git lfs pull`" in refused("lfs")
    write(Path("lfs", name))
    assert len(fingerprints(text_files(("lfs",)))) == 2


def test_a_text_is_known_by_its_names_and_contents(corpus):
    alone = fingerprints(text_files(("text",)))
    assert [[name, size] for name, size, _ in alone] == [["a.txt", 4], ["sub/b.jsonl", 4]]
    assert {sha256[:16] for _, _, sha256 in alone} == {"e394a2bfaec04bad"}
    Path("other").symlink_to("text")
    for patterns in (
        ("text", "text"),
        ("text/*.txt", "text"),
        ("text", f"{corpus}/text"),
        ("other", "text"),
    ):
        assert (
            fingerprints(text_files(patterns)) == alone
        )  # a file that patterns share is read once
    write(Path("another/a.txt"), "another text of the same name")
    assert names("text", "another") == ["a.txt", "a.txt", "sub/b.jsonl"]


TWICE: dict[str, tuple[Callable[[], None], tuple[str, ...], str]] = {
    "patterns with two roots": (lambda: None, ("text", "text/sub"), "'sub/b.jsonl' and 'b.jsonl'"),
    "a link to a file": (
        lambda: Path("text/c.txt").symlink_to("a.txt"),
        ("text",),
        "'a.txt' and 'c.txt'",
    ),
    "a link to a folder": (
        lambda: Path("text/c").symlink_to("sub"),
        ("text/**",),
        "'c/b.jsonl' and 'sub/b.jsonl'",
    ),
}


@pytest.mark.fault(
    "text and data",
    "the same text file is reached twice: by a link, or by patterns with two roots",
    "it is refused with both names and what to leave out",
)
@pytest.mark.parametrize("case", TWICE)
def test_one_file_under_two_names(case, corpus):
    make, patterns, named = TWICE[case]
    make()
    said = refused(*patterns)
    assert "are the same file and would be read twice" in said
    assert f"as {named}: remove the link, or leave one of the patterns out" in said


@pytest.mark.fault(
    "text and data",
    "text is a broken link, a link to a folder that it lies in, or may not be read",
    "it is refused before the first job with its name",
)
def test_what_cannot_be_read(corpus, monkeypatch):
    Path("text/c.txt").symlink_to("nothing")
    for pattern in ("text", "text/*"):
        assert "text/nothing cannot be read: No such file" in refused(pattern)
    Path("text/c.txt").unlink()
    Path("text/sub/again").symlink_to("..")
    for pattern in ("text", "text/**"):
        assert "would be read twice, as 'a.txt' and 'sub/again/a.txt'" in refused(pattern)
    Path("text/sub/again").unlink()

    # The tests may run as root, who may read everything.
    def denied(path: object, *_: object) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    for owner, name, where in ((Path, "open", "text/a.txt"), (os, "scandir", "text")):
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, denied)
            said = refused("text")
        assert (
            f"{where} cannot be read: Permission denied; make it readable, or leave it out" in said
        )


def test_the_tokenizer(corpus):
    write(Path("tok/tokenizer.json"), "{}")
    assert (
        tokenizer_file("tok") == tokenizer_file("tok/tokenizer.json") == Path("tok/tokenizer.json")
    )
    assert tokenizer_identity("tok")["tokenizer_sha256"].startswith("44136fa355b3678a")
    for path, expected in (
        ("none", "does not exist"),
        ("text", "does not exist"),
        ("text/a.txt", r"a\.txt is none; give a tokenizer\.json"),
        ("x" * 300, "cannot be read"),
    ):
        with pytest.raises(ValueError, match=rf"^paths\.tokenizer: .*{expected}"):
            tokenizer_identity(path)


def test_endings_in_capitals_are_text_and_others_are_counted(corpus):
    for name in (
        "text/B.TXT",
        "text/c.Jsonl.GZ",
        "text/t.csv",
        "text/u.csv",
        "text/README",
        "text/.DS_Store",
    ):
        write(Path(name))
    assert names("text") == ["B.TXT", "a.txt", "c.Jsonl.GZ", "sub/b.jsonl"]
    assert other_files(("text", "text/*")) == {".csv": 2, "no ending": 1}
    assert not other_files(("text/*.txt",))


def test_the_end_of_text_counts_where_the_tokenizer_alone_does_not_say_it(corpus):
    added = [{"content": "</s>", "special": True}, {"content": "<|im_end|>", "special": False}]
    write(Path("tok/tokenizer.json"), json.dumps({"added_tokens": added}))
    alone = tokenizer_identity("tok")
    assert alone.keys() == {"tokenizer_sha256"}
    for eos, expected in (
        ("</s>", alone),
        ({"content": "</s>"}, alone),
        (None, alone),
        ("<|im_end|>", alone | {"eos_token": "<|im_end|>"}),
    ):
        write(Path("tok/tokenizer_config.json"), json.dumps({"eos_token": eos}))
        assert tokenizer_identity("tok") == expected
    write(Path("tok/tokenizer_config.json"), "[]")
    with pytest.raises(ValueError, match=r"tokenizer_config\.json: a JSON object is expected"):
        tokenizer_identity("tok")


@pytest.mark.parametrize("pattern", [".", "..", "**/*.jsonl", "*/*/*/*.jsonl"])
def test_what_studies_write_is_no_text(corpus, pattern):
    write(Path("results/runs/cell/history.jsonl"))
    message = refused(pattern)
    assert f"{pattern!r} would take what studies write in {corpus / 'results'}" in message
    # A folder with the text only ends the refusal, and a place in the results may be meant.
    assert names("text") == ["a.txt", "sub/b.jsonl"]
    assert names("results/runs") == ["cell/history.jsonl"]


def test_a_folder_with_the_results_is_refused_before_there_are_any(corpus):
    assert "would take what studies write" in refused(corpus)
    write(Path("b.txt"))
    assert names("*.txt", "text") == ["a.txt", "b.txt", "sub/b.jsonl"]


@pytest.mark.parametrize("packing", [".gz", ".xz", ".zst", ".GZ"])
def test_a_file_beside_its_packed_form_is_not_read_twice(corpus, packing):
    packed = write(Path(f"text/a.txt{packing}"))
    message = refused("text")
    assert f"text/a.txt and {packed} would both be read" in message
    packed.rename(f"text/c.txt{packing}")
    assert names("text") == ["a.txt", f"c.txt{packing}", "sub/b.jsonl"]
