"""Text files as a study finds them: each real file once, under one name, and what cannot be read is said."""

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from coupled_adam_bench.study.inputs import fingerprints, text_files, tokenizer_file, tokenizer_sha256


def write(path: Path, text: str = "text") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def names(*patterns: str | Path) -> list[str]:
    return [name for name, _ in text_files(tuple(map(str, patterns)))]


def refused(*patterns: str | Path) -> str:
    with pytest.raises(ValueError) as raised:
        fingerprints(tuple(map(str, patterns)))
    assert str(raised.value).startswith("paths.text: ")
    return str(raised.value)


@pytest.fixture
def corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with ``text/a.txt`` and ``text/sub/b.jsonl``."""
    monkeypatch.chdir(tmp_path)
    write(Path("text/a.txt"))
    write(Path("text/sub/b.jsonl"))
    return tmp_path


def test_patterns_are_those_of_a_shell(corpus: Path) -> None:
    for name in ("text/.c.txt", "text/.hidden/d.txt", "text/sub/[e].txt", "text/no.md", "text/dir.txt/f.txt"):
        write(Path(name))
    assert names("text") == [".c.txt", ".hidden/d.txt", "a.txt", "dir.txt/f.txt", "sub/[e].txt", "sub/b.jsonl"]
    assert names("text/*.txt") == ["a.txt"]
    assert names("text/*/*") == names("text/*/[a-z[]*") == ["dir.txt/f.txt", "sub/[e].txt", "sub/b.jsonl"]
    assert names("text/**") == names("text/**/*") == names("text/**/**") == [
        "a.txt", "dir.txt/f.txt", "sub/[e].txt", "sub/b.jsonl",
    ]  # fmt: skip
    assert names("text/**/b.*") == ["sub/b.jsonl"]
    assert names("text/.*") == [".c.txt"]
    assert names("text/sub/[e].txt") == ["[e].txt"]
    assert names("te*/a.txt") == ["text/a.txt"]
    assert names(f"{corpus}/te*/../text/a.txt") == ["text/../text/a.txt"]
    for pattern in ("text/*.md", "none", "none/*.txt", "text/a.txt/*", "x" * 4000):
        assert "matches no text file" in refused(pattern) or "File name too long" in refused(pattern)


def test_a_file_that_patterns_share_is_read_once(corpus: Path) -> None:
    alone = fingerprints(("text",))
    for patterns in (
        ("text", "text"), ("text", "text/*.txt"), ("text/*.txt", "text"), ("text", "text/../text"),
        ("text", "./text"), ("text", f"{corpus}/text"), ("text", "text/**/*"), ("text", "text/a.txt"),
    ):  # fmt: skip
        assert fingerprints(patterns) == alone
    write(Path("other/a.txt"), "another text of the same name")
    assert names("text", "other") == ["a.txt", "a.txt", "sub/b.jsonl"]
    write(Path("text/copy.txt"))  # the same text in another file is a matter of the user's
    assert len(names("text")) == 3


def link(name: str, target: str) -> None:
    Path(name).symlink_to(target)


TWICE: dict[str, tuple[Callable[[], None], tuple[str, ...], tuple[str, str]]] = {
    "patterns with two roots": (lambda: None, ("text", "text/sub"), ("'sub/b.jsonl' and 'b.jsonl'", "leave one of")),
    "a link to a file": (lambda: link("text/c.txt", "a.txt"), ("text",), ("'a.txt' and 'c.txt'", "a link leads from")),
    "a link to a folder": (lambda: link("text/c", "sub"), ("text",), ("'c/b.jsonl' and 'sub/b.jsonl'", "a link leads")),
    "a link to a root": (lambda: link("other", "text"), ("text", "other"), ("'a.txt' and 'a.txt'", "by 'text' and by")),
    "a hard link": (lambda: os.link("text/a.txt", "text/c.txt"), ("text/*",), ("'a.txt' and 'c.txt'", "a link leads")),
    "a hard link of one name": (
        lambda: os.link("text/a.txt", write(Path("x/b.txt")).with_name("a.txt")),
        ("text", "x"),
        ("text/a.txt and x/a.txt are the same file", "leave one of them out"),
    ),
}


@pytest.mark.fault(
    "text and data",
    "the same text file is reached twice: by a link, a hard link, or patterns with two roots",
    "it is refused with both names and what to leave out",
)
@pytest.mark.parametrize("case", TWICE)
def test_one_file_under_two_names(case: str, corpus: Path) -> None:
    make, patterns, (named, advice) = TWICE[case]
    make()
    said = refused(*patterns)
    assert named in said
    assert advice in said
    assert "are the same file and would be read twice" in said


@pytest.mark.fault(
    "text and data",
    "a folder of text has a link to a folder that it lies in",
    "it is refused as a loop; a glob would find each text 41 times",
)
@pytest.mark.parametrize("pattern", ["text", "text/**/*.txt", "text/**", "t*/**/b.*"])
def test_links_that_lead_in_a_circle(pattern: str, corpus: Path) -> None:
    link("text/sub/again", "..")
    link("text/sub/more", "..")
    said = refused(pattern)
    assert "text/sub/again is a link to a folder that it lies in, a loop" in said


@pytest.mark.fault(
    "text and data",
    "text is a broken link, a pipe, a socket or a file that may not be read",
    "it is refused before the first job with its name; a pipe would wait for ever",
)
def test_what_cannot_be_read(corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link("text/c.txt", "nothing")
    for pattern in ("text", "text/*", "text/c.txt"):
        assert "text/c.txt is a link to nothing" in refused(pattern)
    Path("text/c.txt").unlink()
    link("text/c.txt", "c.txt")
    assert "text/c.txt cannot be read: Too many levels of symbolic links" in refused("text")
    Path("text/c.txt").unlink()
    os.mkfifo("text/c.txt")
    for pattern in ("text", "text/*", "text/c.txt"):
        assert "text/c.txt is a pipe, a socket or a device" in refused(pattern)
    Path("text/c.txt").unlink()
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("text/c.txt")
        assert "text/c.txt is a pipe, a socket or a device" in refused("text")
    Path("text/c.txt").unlink()
    assert names("text") == ["a.txt", "sub/b.jsonl"]

    # The tests may run as root, who may read everything.
    def denied(path: Path, *_: object) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", denied)
        assert "text/a.txt cannot be read: Permission denied; make it readable, or leave it out" in refused("text")
    with monkeypatch.context() as patch:
        patch.setattr(Path, "iterdir", denied)
        assert "text cannot be read: Permission denied" in refused("text")


def test_the_tokenizer(corpus: Path) -> None:
    write(Path("tok/tokenizer.json"), "{}")
    assert tokenizer_file("tok") == tokenizer_file("tok/tokenizer.json") == Path("tok/tokenizer.json")
    assert tokenizer_sha256("tok").startswith("44136fa355b3678a")
    os.mkfifo("pipe")
    for path, expected in (("none", "does not exist"), ("text", "does not exist"), ("pipe", "does not exist")):
        with pytest.raises(ValueError, match=rf"^paths\.tokenizer: .*{expected}"):
            tokenizer_file(path)
    with pytest.raises(ValueError, match=r"^paths\.tokenizer: .* cannot be read: File name too long"):
        tokenizer_sha256("x" * 300)
