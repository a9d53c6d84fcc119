"""What is read as a document, what cannot be read, and what the trial says of a text."""

import gzip
import lzma
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from coupled_adam_bench.data.documents import documents_of, split_of, try_text
from coupled_adam_bench.data.prepare import prepare
from coupled_adam_bench.store.runs import data_dir
from coupled_adam_bench.study.data import Split
from coupled_adam_bench.study.plan import make_plan
from coupled_adam_bench.study.study import Study

Files = Callable[..., Study]
PACKINGS = {"": bytes, ".gz": gzip.compress, ".xz": lzma.compress, ".zst": zstandard.compress}


def read(study: Study) -> list[str]:
    return [row["text"] for row in documents_of(study)]


@pytest.mark.parametrize("packing", PACKINGS)
def test_rows_are_read_plain_and_packed(
    packing: str, jsonl: Path, texts: list[str], files_study: Files
) -> None:
    for file in sorted(jsonl.iterdir()):
        content = file.read_bytes()
        file.unlink()
        file.with_name(file.name + packing).write_bytes(PACKINGS[packing](content))
    expected = [text for number in range(3) for text in texts[number::3]]
    assert read(files_study(jsonl)) == expected


def test_parquet_and_another_field(tmp_path: Path, texts: list[str], files_study: Files) -> None:
    table = pa.table({"n": range(len(texts)), "story": texts})
    pq.write_table(table, tmp_path / "a[1].parquet", row_group_size=100)
    assert read(files_study(tmp_path, {"text_field": "story"})) == texts


@pytest.mark.parametrize("packing", PACKINGS)
@pytest.mark.parametrize(
    ("unit", "expected"),
    [
        ("document", ["one\ntwo\n\n  three\n\n\nfour\n", "five"]),
        ("paragraph", ["one\ntwo", "  three", "four", "five"]),
        ("line", ["one", "two", "  three", "four", "five"]),
    ],
)
def test_units_of_a_txt(
    packing: str, unit: str, expected: list[str], tmp_path: Path, files_study: Files
) -> None:
    for name, text in (
        ("a", "\ufeffone\r\ntwo\n\n  three\n\n\nfour\n"),
        ("b", "five"),
        ("c", " \n"),
    ):
        (tmp_path / f"{name}.txt{packing}").write_bytes(PACKINGS[packing](text.encode()))
    assert read(files_study(tmp_path, {"txt_document": unit})) == expected


@pytest.mark.parametrize(
    ("name", "content", "source"),
    [
        ("b.jsonl", b'{"text": "x\n', {}),
        ("b.jsonl", b'{"title": "x"}\n', {}),
        ("b.jsonl", b'{"text": null}\n', {}),
        ("b.jsonl", b"[]", {}),
        ("b.jsonl", b'{"text": "a\\ud800b"}\n', {}),
        ("b.jsonl.xz", lzma.compress(b'{"text": "x"}\n' * 999)[:60], {}),
        ("b.txt", "café".encode("latin1"), {"txt_document": "line"}),
        ("b.parquet", b"PAR1 and no more", {}),
    ],
)
def test_what_cannot_be_read_names_setting_and_file(
    name: str, content: bytes, source: dict[str, str], tmp_path: Path, files_study: Files
) -> None:
    first = {"b.txt": b"good\n", "b.jsonl": b'{"text": "good"}\n'}.get(name)
    if first is not None:
        (tmp_path / name.replace("b", "a")).write_bytes(first)
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=r"^paths\.text: ") as caught:
        read(files_study(tmp_path, source))
    assert "\n" not in str(caught.value)
    assert str(tmp_path / name) in str(caught.value)


def test_one_long_text_is_refused_with_the_setting_that_cures_it(
    tmp_path: Path, files_study: Files
) -> None:
    lines = [f"line {n} of a play, in which one person speaks to another." for n in range(900)]
    (tmp_path / "input.txt").write_text("\n\n".join(lines))
    for data in ({}, {"tokenizer": "bpe", "vocab_size": 300}):
        with pytest.raises(ValueError, match=r"^data\.source\.txt_document: "):
            make_plan(files_study(tmp_path, **data))
        plan = make_plan(files_study(tmp_path, {"txt_document": "paragraph"}, **data))
        prepare(plan.study, plan.data_id, tmp_path / f"out-{len(data)}")


def test_the_split_is_by_hash_and_a_fraction_moves_only_its_own() -> None:
    texts = [str(n) for n in range(20_000)]
    places = [split_of(text, Split(val_fraction=0.1, test_fraction=0.3)) for text in texts]
    for name, fraction in (("train", 0.6), ("val", 0.1), ("test", 0.3)):
        assert places.count(name) / 20_000 == pytest.approx(fraction, abs=0.01)
    more = [split_of(text, Split(val_fraction=0.2, test_fraction=0.3)) for text in texts]
    moved = {(old, new) for old, new in zip(places, more, strict=True) if old != new}
    assert moved == {("train", "val")}


def test_the_trial_shows_the_text_and_tells_how_often_it_is_read(
    jsonl: Path, texts: list[str], files_study: Files, home: Path
) -> None:
    plan = make_plan(files_study(jsonl))
    prepare(plan.study, plan.data_id, data_dir(plan.data_id))
    shown = try_text(plan)
    assert shown["first_document"] == texts[0][:300]
    assert "".join(shown["first_tokens"]) == texts[0][:300]
    n_train = (data_dir(plan.data_id) / "train.bin").stat().st_size // 2
    longest = max(cell.n_tokens for cell in plan.cells.values())
    assert shown["passes"] == longest / n_train
    assert (shown["warning"] is None) == (shown["passes"] <= 4)
