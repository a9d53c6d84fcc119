"""What fetch brings, from a cache of the hub that is laid out as its library does; there is no hub."""

import json
import shutil
from hashlib import sha256
from pathlib import Path
from typing import Any

import huggingface_hub.constants
import pytest
from own_text import make_texts, write_jsonl
from tiny import changed, tiny_study

from coupled_adam_bench.data.documents import documents_of
from coupled_adam_bench.study.study import Study, parse_study
from coupled_adam_bench.tools import fetch

COMMIT = "0123456789abcdef0123456789abcdef01234567"
FILES = ("data/train-0.jsonl", "data/train-1.jsonl", "data/test.jsonl", "README.md")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache of the hub's library with one dataset, of which the hub would list ``FILES``."""
    folder = tmp_path / "hub"
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(folder))
    dataset = folder / "datasets--owner--corpus"
    sizes = {}
    for number, name in enumerate(FILES):
        blob = write_jsonl(dataset / f"blobs/{number}", make_texts(number, 20))
        link = dataset / "snapshots" / COMMIT / name
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(blob)
        sizes[name] = {"size": blob.stat().st_size, "blob_id": str(number)}
    for name, content in (
        ("refs/main", COMMIT),
        (f"trees/{COMMIT}.json", json.dumps({"format_version": 1, "files": sizes})),
    ):
        (dataset / name).parent.mkdir(exist_ok=True)
        (dataset / name).write_text(content)
    return dataset


def hub_study(**source: Any) -> Study:
    data = {
        "name": "hub",
        "source": {"kind": "hub", "dataset": "owner/corpus", **source},
        "tokenizer": "bpe",
        "vocab_size": 300,
    }
    return parse_study(tiny_study(data=data))


@pytest.mark.parametrize("pattern", ["data/train-*.jsonl", "**/train-*.jsonl"])
def test_the_files_in_the_cache_are_read_without_a_network(pattern: str, cache: Path) -> None:
    for revision in ("main", COMMIT):
        study = hub_study(files=pattern, revision=revision)
        assert fetch.missing(study) == []
        found = [row["text"] for row in documents_of(study)]
        assert found == make_texts(0, 20) + make_texts(1, 20)


def test_a_corpus_that_is_there_in_part_is_not_there(cache: Path) -> None:
    study = hub_study(files="data/train-*.jsonl")
    (cache / "snapshots" / COMMIT / "data/train-1.jsonl").unlink()
    assert fetch.missing(study) == ["dataset owner/corpus"]
    with pytest.raises(ValueError, match=r"^data\.source: "):
        documents_of(study)
    shutil.rmtree(cache)
    assert fetch.missing(study) == ["dataset owner/corpus"]
    assert fetch.fetch(study) == 1


def test_lists_and_tasks(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study = changed(tiny_study(), "evaluation", {"downstream": {"tasks": ["arc_easy", "piqa"]}})
    study["paths"] = {"word_similarity": "lists", "hub_mirror": "mirror"}
    lists = [f"word list lists/{name}" for name in fetch.WORD_LISTS]
    assert {*fetch.missing(parse_study(study))} == {*lists, "task arc_easy"}
    rows = home / "mirror/allenai/ai2_arc/ARC-Easy/test.jsonl"
    rows.parent.mkdir(parents=True)
    rows.touch()
    # The published file has a header, and the authors' has none.
    content = b"tiger\tcat\t7.35\nbook\tpaper\t7.46\n"
    (home / "published").write_bytes(b"word1\tword2\tSimLex999\n" + content)
    name = "SimLex-999.txt"
    for address, known in (
        ("nowhere", ""),
        ("published", "0" * 64),
        ("published", sha256(content).hexdigest()),
    ):
        monkeypatch.setitem(fetch.WORD_LISTS, name, ((home / address).as_uri(), known))
        others = [file for file in fetch.WORD_LISTS if file != name]
        for file in others:
            (home / "lists").mkdir(exist_ok=True)
            (home / "lists" / file).touch()
        is_right = fetch.fetch(parse_study(study)) == 0
        assert is_right == (known not in ("", "0" * 64)) == (home / "lists" / name).exists()
    assert (home / "lists" / name).read_bytes() == content
    assert fetch.missing(parse_study(study)) == []
