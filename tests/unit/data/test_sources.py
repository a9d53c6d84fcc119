import gzip
import json
import lzma
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from coupled_adam_bench.data.sources import Corpus, Position
from coupled_adam_bench.study.settings import Study, parse_study

DATA = "coupled_adam_bench.data"
MakeStudy = Callable[..., Study]
DOCUMENTS = ["Grüße,\nWelt", "  two\tthree ", '{"a": "\\n漢字"}'] + [
    f"document {i} " + "x" * i for i in range(100)
]
PACK: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".xz": lzma.compress,
    ".zst": zstandard.ZstdCompressor(write_checksum=True).compress,
}
packings = pytest.mark.parametrize("packing", PACK)
packed_only = pytest.mark.parametrize("packing", [packing for packing in PACK if packing])


def jsonl(rows: list[Any]) -> bytes:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()


def parquet(table: dict[str, Any]) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table(table), sink, row_group_size=30)
    return sink.getvalue().to_pybytes()


@pytest.fixture
def open_corpus(files_study: MakeStudy, tmp_path: Path) -> Callable[..., Corpus]:
    """The function that opens the text in the folder of a test."""
    return lambda **data: Corpus(files_study(tmp_path, **data))


@packings
@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("x.jsonl", jsonl([{"id": 1, "text": text} for text in DOCUMENTS])),
        ("x.parquet", parquet({"id": list(range(len(DOCUMENTS))), "text": DOCUMENTS})),
    ],
)
def test_rows_of_all_formats(name, content, packing, open_corpus, tmp_path):
    (tmp_path / (name + packing)).write_bytes(PACK[packing](content))
    corpus = open_corpus()
    assert list(corpus) == DOCUMENTS
    assert corpus.position == (1, 0, 0, 0, 0)


@packings
@pytest.mark.parametrize(
    ("document", "expected", "n_empty"),
    [
        ("file", ["a b\r\nc\n\n  \n\nd é\ne"], 0),
        ("line", ["a b", "c", "d é", "e"], 3),
        ("paragraph", ["a b\r\nc", "d é\ne"], 0),
        ("end_of_text", ["a b\r\nc\n\n  \n\nd é\ne"], 0),
    ],
)
def test_documents_of_txt_files(document, expected, n_empty, packing, open_corpus, tmp_path):
    (tmp_path / f"x.txt{packing}").write_bytes(
        PACK[packing]("\ufeffa b\r\nc\n\n  \n\nd é\ne".encode())
    )
    corpus = open_corpus(source={"kind": "files", "txt_document": document})
    assert list(corpus) == expected
    assert corpus.position.n_empty == n_empty


@packings
def test_marks_of_end_of_text_between_documents(packing, open_corpus, tmp_path):
    """The mark stands in a line of its own, or in front of a document."""
    mark = "<|endoftext|>"
    text = f"\ufeffone\ntwo\n{mark}\nthree {mark}four\r\n\r\n{mark}{mark}\nfive\n{mark}\n"
    (tmp_path / f"x.txt{packing}").write_bytes(PACK[packing](text.encode()))
    corpus = open_corpus(source={"kind": "files", "txt_document": "end_of_text"})
    assert list(corpus) == ["one\ntwo", "three ", "four", "five"]
    assert list(open_corpus(source={"kind": "files"})) == [text.lstrip("\ufeff")]


@pytest.mark.parametrize("document", ["file", "paragraph", "line"])
def test_long_txt_documents_are_cut_at_line_ends(document, open_corpus, tmp_path, monkeypatch):
    monkeypatch.setattr(f"{DATA}.documents.MAX_DOCUMENT_BYTES", 20)
    # A line of more than 20 bytes is cut, too; 20 bytes end within the seventh three-byte
    # character.
    lines = ["0123456789\n", "0123\n", "0123456789\n", "漢" * 10 + "\n", "end\n"]
    (tmp_path / "x.txt").write_text("".join(lines), encoding="utf-8")
    documents = list(open_corpus(source={"kind": "files", "txt_document": document}))
    if document == "line":
        assert documents == ["0123456789", "0123", "0123456789", "漢" * 6, "漢" * 4, "end"]
    else:
        line_end = "" if document == "file" else "\n"
        expected = ["0123456789\n0123\n", "0123456789\n", "漢" * 6, "漢" * 4 + "\nend\n"]
        assert documents == [text.rstrip(line_end) for text in expected]
        assert max(len(text.encode()) for text in documents) <= 20


def test_files_come_in_the_order_of_their_names(open_corpus, tmp_path):
    for name in ("b/2.txt", "b/10.txt", "a.txt.gz", "c.jsonl"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        content = jsonl([{"text": name}]) if name.endswith("jsonl") else name.encode()
        path.write_bytes(gzip.compress(content) if name.endswith("gz") else content)
    (tmp_path / "README.md").write_text("not text of the corpus")
    corpus = open_corpus()
    assert list(corpus) == ["a.txt.gz", "b/10.txt", "b/2.txt", "c.jsonl"]
    assert corpus.position.file == 4


def test_empty_documents_are_skipped_and_counted(open_corpus, tmp_path):
    (tmp_path / "x.jsonl").write_bytes(
        jsonl([{"text": t} for t in ("a", "", " \n\t", "b")]) + b"\n  \n"
    )
    corpus = open_corpus()
    assert list(corpus) == ["a", "b"]
    assert corpus.position.n_empty == 2


@packings
def test_lines_that_are_longer_than_memory(packing, open_corpus, tmp_path, monkeypatch):
    monkeypatch.setattr(f"{DATA}.documents.MAX_LINE_BYTES", 1000)
    rows = jsonl([{"text": "a"}, {"text": "é" * 490}])
    (tmp_path / f"x.jsonl{packing}").write_bytes(PACK[packing](rows))
    assert list(open_corpus()) == ["a", "é" * 490]
    (tmp_path / f"x.jsonl{packing}").write_bytes(
        PACK[packing](rows + jsonl([{"text": "a" * 1000}]))
    )
    with pytest.raises(
        ValueError, match=rf"x\.jsonl{packing}, line 3: not valid JSON .* of at most 1,000 bytes"
    ):
        list(open_corpus())


def test_several_frames_in_one_packed_file(open_corpus, tmp_path):
    for packing in (".gz", ".xz", ".zst"):
        (tmp_path / f"x.txt{packing}").write_bytes(
            PACK[packing](b"one ") + PACK[packing](b"two" * 100_000)
        )
    assert list(open_corpus()) == ["one " + "two" * 100_000] * 3


@packings
@pytest.mark.parametrize("name", ["x.txt", "x.jsonl", "x.parquet"])
def test_no_documents(name, packing, open_corpus, tmp_path):
    content = parquet({"text": pa.array([], pa.string())}) if name == "x.parquet" else b" \n\n"
    for empty in (PACK[packing](content), PACK[packing](b""), b""):
        (tmp_path / (name + packing)).write_bytes(empty)
        # An .xz file is never of zero bytes.
        problem = "truncated or damaged" if packing == ".xz" and not empty else "no documents in it"
        with pytest.raises(ValueError, match=rf"{name}{packing}: {problem}"):
            list(open_corpus())


@packed_only
@pytest.mark.parametrize("name", ["x.txt", "x.jsonl", "x.parquet"])
def test_truncated_and_damaged_packings(name, packing, open_corpus, tmp_path):
    # Hexadecimal digests do not shrink to nothing: the file has a middle.
    texts = [f"{i * 2654435761 % 2**32:08x}" * 3 for i in range(3000)]
    content = (
        parquet({"text": texts})
        if name == "x.parquet"
        else jsonl([{"text": text} for text in texts])
    )
    whole = PACK[packing](content)
    middle = len(whole) // 2
    problem = rf"{name}{packing}: truncated or damaged {packing} file \(.*fetch it again"
    for broken in (whole[:-1], whole[:middle], whole[:5]):
        (tmp_path / (name + packing)).write_bytes(broken)
        with pytest.raises(ValueError, match=problem):
            list(open_corpus())
    # The checksum comes last, so damage can first be seen in the text.
    (tmp_path / (name + packing)).write_bytes(
        whole[:middle] + b"\xff" * 100 + whole[middle + 100 :]
    )
    with pytest.raises(ValueError, match=name + packing):
        list(open_corpus())
    (tmp_path / (name + packing)).write_bytes(content)  # not packed at all
    with pytest.raises(ValueError, match=problem):
        list(open_corpus())


def test_truncated_and_damaged_parquet(open_corpus, tmp_path):
    whole = parquet({"text": DOCUMENTS * 10})
    for broken in (whole[:-1], whole[:100], b"PAR1", whole[:50] + bytes(100) + whole[150:]):
        (tmp_path / "x.parquet").write_bytes(broken)
        with pytest.raises(ValueError, match=r"x\.parquet: truncated or damaged \.parquet file"):
            list(open_corpus())


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("x.txt", b"ab\ncd\n\xc3(", r"x\.txt: not UTF-8: byte 0xc3 in line 3"),
        ("x.txt", b"ab\ncd\xc3", r"x\.txt: not UTF-8: byte 0xc3 in line 2"),
        (
            "x.txt",
            "text".encode("utf-16"),
            r"x\.txt: not UTF-8: byte 0xff in line 1; convert the file",
        ),
        (
            "x.jsonl",
            b'{"text": "a"}\n{"text": "\xe9"}\n',
            r"x\.jsonl: not UTF-8: byte 0xe9 in line 2",
        ),
        ("x.jsonl", b'{"text": "a"}\n\n{"text": "b"\n', r"x\.jsonl, line 3: not valid JSON"),
        ("x.jsonl", b"[" * 100_000, r"x\.jsonl, line 1: not valid JSON"),
        (
            "x.jsonl",
            b'{"text": "a"}\n["text"]\n',
            r"x\.jsonl, line 2: a JSON list, but each line must be an object",
        ),
        (
            "x.jsonl",
            b'{"id": 1, "content": "a"}\n',
            r"line 1: no field 'text'; fields there: 'id', 'content'; set",
        ),
        ("x.jsonl", b"{}\n", r"line 1: no field 'text'; fields there: none"),
        (
            "x.jsonl",
            b'{"text": 5}\n',
            r"line 1: field 'text' is int, not text; .*; data\.skip: invalid leaves such rows",
        ),
        (
            "x.jsonl",
            b'{"text": "a\\ud83d"}\n',
            r"line 1: field 'text' is not valid Unicode .* at character 1",
        ),
        (
            "x.parquet",
            parquet({"id": [1], "body": ["a"]}),
            r"x\.parquet: no field 'text'; fields there: 'id', 'body'",
        ),
        (
            "x.parquet",
            parquet({"text": [1, 2]}),
            r"x\.parquet, row 1: field 'text' is int, not text",
        ),
    ],
)
def test_wrong_content(name, content, message, open_corpus, tmp_path):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=message):
        list(open_corpus())


def test_another_text_field(open_corpus, tmp_path):
    (tmp_path / "x.jsonl").write_bytes(jsonl([{"text": 1, "body": "a"}]))
    (tmp_path / "y.parquet").write_bytes(parquet({"text": [1], "body": ["b"]}))
    assert list(open_corpus(source={"kind": "files", "text_field": "body"})) == [
        "a",
        "b",
    ]


WITHOUT_TEXT = {
    "a.txt": b"",
    "b.txt": b" \n\t",
    "c.jsonl": jsonl([{"text": "one"}, {"text": None}, {"text": ""}, {"text": "two"}]),
    "d.jsonl": b"",
    "e.parquet": parquet({"text": ["three", None]}),
    "f.TXT": b"four",
}
BAD_ROWS = b"".join(
    (
        b'{"text": "five"}\n',
        b'{"text": 5}\n',
        b'{"body": "x"}\n',
        b'["text"]\n',
        b'{"text": "\n',
        b'{"text": "\xe9"}\n',
        b'{"text": "\\ud83d"}\n',
        b'{"text": "six"}\n',
    )
)


def write_all(folder: Path, files: dict[str, bytes]) -> None:
    for name, content in files.items():
        (folder / name).write_bytes(content)


@pytest.mark.fault(
    "text and data",
    "files, documents and rows of the text are empty or null",
    "they are left out and counted, or under the setting `data.skip: nothing` all named at once",
)
def test_what_has_no_text_is_left_out_and_counted(open_corpus, tmp_path):
    write_all(tmp_path, WITHOUT_TEXT)
    corpus = open_corpus()
    assert list(corpus) == ["one", "two", "three", "four"]
    assert corpus.position == Position(
        file=6, document=0, n_empty=4, n_invalid=0, n_files_without_text=3
    )
    said = corpus.left_out(corpus.position)
    assert said is not None
    assert said.startswith(
        "left out: documents without text: 4, files without text: 3 (data.skip: empty)\n"
    )
    assert f"{tmp_path}/d.jsonl: no documents in it: it is empty or has only empty texts" in said
    with pytest.raises(ValueError) as error:
        list(open_corpus(skip="nothing"))
    lines = str(error.value).splitlines()
    assert lines[0] == "paths.text: 6 problems in the text"
    assert [line.strip().split("/")[-1] for line in lines[1:]] == [
        "a.txt: no documents in it: it is empty or has only empty texts; remove or replace it",
        "b.txt: document 1 has no text; remove it",
        "c.jsonl: document 2 has no text; remove it",
        "c.jsonl: document 3 has no text; remove it",
        "d.jsonl: no documents in it: it is empty or has only empty texts; remove or replace it",
        "e.parquet: document 2 has no text; remove it",
    ]


@pytest.mark.fault(
    "text and data",
    "rows of a text have no valid text: a number, no field, broken JSON, bytes that are not UTF-8,"
    " half a character",
    "under the setting `data.skip: invalid` they are left out and counted, and refused without it",
)
def test_rows_without_valid_text_are_left_out_if_the_study_says_so(open_corpus, tmp_path):
    write_all(tmp_path, {"x.jsonl": BAD_ROWS, "y.parquet": parquet({"text": pa.array([1, 2])})})
    corpus = open_corpus(skip="invalid")
    assert list(corpus) == ["five", "six"]
    assert corpus.position == Position(
        file=2, document=0, n_empty=0, n_invalid=8, n_files_without_text=1
    )
    assert "left out: rows without valid text: 8, files without text: 1" in str(
        corpus.left_out(corpus.position)
    )
    assert f"{tmp_path}/x.jsonl, line 2: field 'text' is int, not text" in corpus.skipped
    with pytest.raises(ValueError, match=r"paths\.text: 8 problems in the text"):
        list(open_corpus())
    (tmp_path / "x.jsonl").unlink()
    with pytest.raises(
        ValueError, match=r"no document in it has text\n.*y\.parquet, row 1: field 'text' is int"
    ):
        list(open_corpus(skip="invalid"))


@pytest.mark.fault(
    "text and data",
    "a hundred files of the text are damaged",
    "one start names the first ten and how many more there are",
)
def test_all_bad_files_are_named_at_once(open_corpus, tmp_path, capsys):
    for number in range(100):
        (tmp_path / f"{number:03}.txt").write_bytes(b"\xff" if number else b"text")
    (tmp_path / "x.jsonl").write_bytes(jsonl([{"text": 1}] * 20))
    corpus = open_corpus()
    given = []
    with pytest.raises(ValueError) as error:
        given.extend(corpus)
    lines = str(error.value).splitlines()
    assert (lines[0], lines[-1]) == ("paths.text: 119 problems in the text", "  and 109 more")
    assert len(lines) == 12 and "001.txt: not UTF-8: byte 0xff in line 1" in lines[1]
    assert capsys.readouterr().err.count("it is looked through for others") == 1


def test_a_line_that_is_too_long_is_one_row(open_corpus, tmp_path, monkeypatch):
    monkeypatch.setattr(f"{DATA}.documents.MAX_LINE_BYTES", 1000)
    rows = jsonl([{"text": "a"}, {"text": "b" * 5000}, {"text": "c"}])
    (tmp_path / "x.jsonl").write_bytes(rows)
    corpus = open_corpus(skip="invalid")
    assert list(corpus) == ["a", "c"]
    assert corpus.position.n_invalid == 1


def test_a_restart_counts_nothing_twice(files_study, tmp_path):
    write_all(tmp_path, WITHOUT_TEXT | {"c.jsonl": BAD_ROWS})
    study = files_study(tmp_path, skip="invalid")
    whole = Corpus(study)
    positions = [(text, whole.position) for text in whole]
    for number, (_, position) in enumerate([*positions, ("", whole.position)], 1):
        rest = Corpus(study)
        rest.start_at(position)
        assert list(rest) == [text for text, _ in positions[number:]]
        assert rest.position == whole.position


def test_rows_are_skipped_in_text_alone(tiny_study):
    values = tiny_study()
    values["data"]["skip"] = "invalid"
    with pytest.raises(
        ValueError, match=r"skip: 'invalid', but the source 'synthetic' has no rows; leave it out"
    ):
        parse_study(values)
