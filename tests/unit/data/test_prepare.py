import json
import multiprocessing
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from hashlib import blake2b, sha256
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from planned import only, study_and_data
from prepared import contents, prepared
from tokenizers import Tokenizer, pre_tokenizers
from waits import wait_until

from coupled_adam_bench.cli.status import notes_of_data
from coupled_adam_bench.data import prepare as prepare_module
from coupled_adam_bench.data.bins import SPLITS, document_ends, load_meta, open_tokens
from coupled_adam_bench.data.notes import notes
from coupled_adam_bench.data.prepare import prepare
from coupled_adam_bench.data.shards import ShardJob, make_shards, split_of
from coupled_adam_bench.data.synthetic import Language
from coupled_adam_bench.store.files import write_sealed
from coupled_adam_bench.store.paths import data_dir
from coupled_adam_bench.study.plan import Plan, make_plan
from coupled_adam_bench.study.settings import Split, Study, parse_study

MakeStudy = Callable[..., Study]


def write_texts(path: Path, n_texts: int) -> list[str]:
    texts = [f"the {i} worst\nof {i * i} times, the best" * (1 + i % 7) for i in range(n_texts)]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return texts


@pytest.fixture
def files_plan(
    files_study: MakeStudy, small_gpt2: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Plan:
    write_texts(tmp_path / "text" / "x.jsonl", 300)
    monkeypatch.setattr(prepare_module, "SHARD_CHARACTERS", 2000)
    return make_plan(files_study(tmp_path / "text", small_gpt2, vocab_size=512))


@pytest.fixture
def synthetic_plan(tiny_study: Callable[..., dict[str, Any]]) -> Plan:
    """Three shards of generated text."""
    values = tiny_study()
    values["data"]["source"]["n_tokens"] = 780_000
    return make_plan(parse_study(values))


def u(text: str, seed: int) -> float:
    digest = blake2b(text.encode(), digest_size=8, key=seed.to_bytes(8, "little")).digest()
    return int.from_bytes(digest, "little") / 2**64


def expected_bins(
    texts: list[str], tokenizer: Tokenizer, eot_id: int, split: Split
) -> dict[str, list[int]]:
    bins: dict[str, list[int]] = {name: [] for name in SPLITS}
    for text in texts:
        place = u(text, split.seed)
        name = (
            "val"
            if place < split.val_fraction
            else "test"
            if place >= 1 - split.test_fraction
            else "train"
        )
        bins[name] += [*tokenizer.encode(text).ids, eot_id]
    return bins


def test_bins_hold_the_tokens_of_the_documents(files_plan, small_gpt2, tmp_path):
    out = tmp_path / "out"
    prepared(files_plan, out)
    lines = (tmp_path / "text" / "x.jsonl").read_text().splitlines()
    texts = [json.loads(line)["text"] for line in lines]
    tokenizer = Tokenizer.from_file(str(small_gpt2 / "tokenizer.json"))
    eot_id = tokenizer.token_to_id("<|endoftext|>")
    split_settings = only(files_plan).study.data.split
    expected = expected_bins(texts, tokenizer, eot_id, split_settings)
    meta = load_meta(out)
    for split in SPLITS:
        tokens = open_tokens(out, split)
        assert tokens.tolist() == expected[split]
        part = meta.splits[split]
        assert (part.n_tokens, part.n_documents) == (
            len(expected[split]),
            expected[split].count(eot_id),
        )
        texts_of_split = [
            text for text in texts if SPLITS[split_of(text.encode(), split_settings)] == split
        ]
        assert part.n_bytes == sum(len(text.encode()) for text in texts_of_split)
        assert part.sha256 == sha256((out / f"{split}.bin").read_bytes()).hexdigest()
    unigram = np.load(out / "unigram.npy")
    assert unigram.dtype == np.int64
    assert unigram.tolist() == [expected["train"].count(token) for token in range(512)]
    assert (meta.data_id, meta.vocab_size, meta.eot_id, meta.dtype) == (
        only(files_plan).data_id,
        512,
        eot_id,
        "<u2",
    )
    assert meta.n_vocab == tokenizer.get_vocab_size()
    assert meta.source["n_files"] == 1
    assert sorted(path.name for path in out.glob("[!.]*")) == [
        "meta.json",
        "test.bin",
        "tokenizer",
        "train.bin",
        "unigram.npy",
        "val.bin",
    ]


def test_neither_workers_nor_shards_change_a_byte(files_plan, tmp_path, monkeypatch):
    prepared(files_plan, tmp_path / "one")
    prepared(files_plan, tmp_path / "two", workers=2)
    monkeypatch.setattr(prepare_module, "SHARD_CHARACTERS", 10**6)
    prepared(files_plan, tmp_path / "large")
    assert contents(tmp_path / "one") == contents(tmp_path / "two") == contents(tmp_path / "large")


def test_generated_text_is_the_same_as_files_of_it(synthetic_plan, files_study, tmp_path):
    out = tmp_path / "generated"
    prepared(synthetic_plan, out)
    prepared(synthetic_plan, tmp_path / "two", workers=2)
    assert contents(out) == contents(tmp_path / "two")
    language = Language(only(synthetic_plan).study.data.source)  # type: ignore[arg-type]
    (tmp_path / "text").mkdir()
    for k in range(3):
        rows = (json.dumps({"text": language.text(words)}) + "\n" for words in language.shard(k))
        (tmp_path / "text" / f"{k}.jsonl").write_text("".join(rows))
    split = only(synthetic_plan).study.data.split.model_dump()
    # The generated language has no unknown words; a tokenizer of files must say what it does with
    # them.
    shutil.copytree(out / "tokenizer", tmp_path / "tokenizer")
    tokenizer = json.loads((out / "tokenizer" / "tokenizer.json").read_text())
    tokenizer["model"]["unk_token"] = "<|endoftext|>"
    (tmp_path / "tokenizer" / "tokenizer.json").write_text(json.dumps(tokenizer))
    study = files_study(tmp_path / "text", tmp_path / "tokenizer", vocab_size=64, split=split)
    prepared(make_plan(study), tmp_path / "files")
    for file in ("train.bin", "val.bin", "test.bin", "unigram.npy"):
        assert (out / file).read_bytes() == (tmp_path / "files" / file).read_bytes()
    meta = load_meta(out)
    assert sum(part.n_tokens - part.n_documents for part in meta.splits.values()) == 780_000
    assert (meta.n_vocab, meta.eot_id) == (61, 60)
    assert {path.parent.name for path in out.rglob("*.*")} >= {
        "tasks",
        "word_similarity",
        "tokenizer",
    }


@pytest.mark.fault(
    "text and data",
    "text or tokenizer are replaced between the start of a study and its preparation, or while they"
    " are read",
    "preparation says so and writes no data under the name of what was there before",
)
@pytest.mark.parametrize("when", ["before", "while"])
def test_text_that_is_replaced(when, files_plan, tmp_path, monkeypatch):
    make_shards = prepare_module.make_shards

    def replace_text(*_: Any) -> None:
        write_texts(tmp_path / "text" / "x.jsonl", 299)

    def and_replace(jobs: Any, workers: int) -> Iterator[Any]:
        yield from make_shards(jobs, workers)
        replace_text()

    if when == "before":
        replace_text()
    else:
        monkeypatch.setattr(prepare_module, "make_shards", and_replace)
    with pytest.raises(
        ValueError, match="data files: the files of the text or of the tokenizer have changed since"
    ):
        prepared(files_plan, tmp_path / "out")
    assert not (tmp_path / "out" / "meta.json").exists()


def test_what_is_left_out_is_said(files_study, small_gpt2, tmp_path, capsys):
    write_texts(tmp_path / "text" / "x.jsonl", 100)
    (tmp_path / "text" / "y.txt").write_text("")
    (tmp_path / "text" / "z.csv").write_text("a,b")
    write_texts(tmp_path / "text" / ".ipynb_checkpoints" / "x-checkpoint.jsonl", 100)
    plan = make_plan(files_study(tmp_path / "text", small_gpt2))
    meta = load_meta(prepared(plan, tmp_path / "out"))
    expected = {
        "n_files": 2,
        "n_empty_documents": 0,
        "n_invalid_documents": 0,
        "n_files_without_text": 1,
        "n_hidden_files": 1,
        "other_files": {".csv": 1},
    }
    assert meta.source.items() >= expected.items()
    assert sum(part.n_documents for part in meta.splits.values()) == 100
    said = capsys.readouterr().err
    assert "data files: files with other endings are not read (.csv: 1)" in said
    hidden = tmp_path / "text" / ".ipynb_checkpoints"
    assert f"data files: hidden files and folders are not read ({hidden}); to read one" in said
    assert "data files: left out: files without text: 1 (data.skip: empty)" in said


def test_what_may_not_be_meant_is_said(files_study, small_gpt2, tmp_path):
    text = tmp_path / "text"
    write_texts(text / "train.jsonl", 100)
    write_texts(text / "sub" / "test-00000.jsonl", 50)
    write_texts(text / "sub" / "copy of it.jsonl", 50)
    (text / "LICENSE.txt").write_text("MIT")
    (text / "trains.txt").write_text("on <|endoftext|> rails")
    study = files_study(text, small_gpt2)
    said = list(notes(study, asdict(load_meta(prepared(make_plan(study), tmp_path / "out")))))
    (about,) = [note for note in said if note.startswith("read as text, too")]
    assert f"({text / 'LICENSE.txt'})" not in about and f": {text / 'LICENSE.txt'};" in about
    (split,) = [note for note in said if "splits that somebody has made" in note]
    assert f"({text / 'sub' / 'test-00000.jsonl'}, {text / 'train.jsonl'})" in split
    (copies,) = [note for note in said if "same contents" in note]
    assert f"{text / 'sub' / 'copy of it.jsonl'} and {text / 'sub' / 'test-00000.jsonl'}" in copies
    (end,) = [note for note in said if "<|endoftext|> stands in 1 documents" in note]
    assert "set data.source.txt_document: end_of_text" in end
    # What the notes say ends them.
    for name in ("LICENSE.txt", "trains.txt", "sub/copy of it.jsonl", "sub/test-00000.jsonl"):
        (text / name).unlink()
    meta = load_meta(prepared(make_plan(study), tmp_path / "again"))
    assert not [note for note in notes(study, asdict(meta)) if "few" not in note]


@pytest.mark.parametrize("interrupted", [False, True])
def test_a_tokenizer_that_changes_the_text_is_shown(
    interrupted, files_study, small_gpt2, tmp_path, monkeypatch
):
    """The white space between words is gone, with a pre-tokenizer that removes it."""
    write_texts(tmp_path / "text" / "x.jsonl", 300)
    monkeypatch.setattr(prepare_module, "SHARD_CHARACTERS", 2000)
    tokenizer = Tokenizer.from_file(str(small_gpt2 / "tokenizer.json"))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    (tmp_path / "tokenizer").mkdir()
    tokenizer.save(str(tmp_path / "tokenizer" / "tokenizer.json"))
    study = files_study(tmp_path / "text", tmp_path / "tokenizer")
    plan, out = make_plan(study), tmp_path / "out"
    if interrupted:
        with monkeypatch.context() as patch:
            patch.setattr(prepare_module, "write_meta", Mock(side_effect=KeyboardInterrupt))
            with pytest.raises(KeyboardInterrupt):
                prepared(plan, out)
    meta = load_meta(prepared(plan, out))
    assert meta.source["read_back"] == (
        "'the 0 worst\\nof 0 ti' comes back as 'the0worstof0times,t'"
    )
    (note,) = [note for note in notes(study, asdict(meta)) if "changes the text" in note]
    assert meta.source["read_back"] in note
    unchanged = load_meta(
        prepared(make_plan(files_study(tmp_path / "text", small_gpt2)), out / "2")
    )
    assert "read_back" not in unchanged.source


def test_the_end_of_a_run_tells_once_what_it_left_out_of_the_text(
    files_study, small_gpt2, tmp_path, monkeypatch
):
    write_texts(tmp_path / "text" / "x.jsonl", 100)
    (tmp_path / "text" / "y.txt").write_text("")
    (tmp_path / "text" / "z.csv").write_text("a,b")
    monkeypatch.chdir(tmp_path)
    plan = make_plan(files_study(tmp_path / "text", small_gpt2))
    study, data_id = study_and_data(only(plan))
    prepare(study, data_id, data_dir(data_id), workers=1)
    first, second, third, *_ = told = list(notes_of_data(plan, [data_id]))
    assert first == "Data:    files: left out: files without text: 1 (data.skip: empty)"
    assert second == "Data:    files: files with other endings are not read (.csv: 1)"
    assert "documents, which are few" in third and len(told) == len(set(told))
    # A run that found the data prepared has said so before.
    assert not list(notes_of_data(plan, []))


def test_split_by_hash():
    texts = [str(i).encode() for i in range(20_000)]
    split = Split(val_fraction=0.1, test_fraction=0.3, seed=1)
    places = np.array([split_of(text, split) for text in texts])
    for name, fraction in (("train", 0.6), ("val", 0.1), ("test", 0.3)):
        assert (places == SPLITS.index(name)).mean() == pytest.approx(fraction, abs=0.01)
    other = np.array([split_of(text, split.model_copy(update={"seed": 2})) for text in texts])
    assert (other == places).mean() == pytest.approx(0.6**2 + 0.1**2 + 0.3**2, abs=0.02)
    # More validation text takes from train and leaves test alone.
    more = np.array(
        [split_of(text, split.model_copy(update={"val_fraction": 0.2})) for text in texts]
    )
    assert (more[places == SPLITS.index("test")] == SPLITS.index("test")).all()
    assert (more[places == SPLITS.index("val")] == SPLITS.index("val")).all()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"split": {"val_fraction": 1e-9, "test_fraction": 0.2}},
            r"val has 0 tokens in 0 of 300 .*raise data\.split\.val_fraction",
        ),
        (
            {"split": {"val_fraction": 0.2, "test_fraction": 1e-9}},
            r"test has 0 tokens .*raise data\.split\.test_fraction",
        ),
        (
            {"seq_len": 10**6},
            r"train has \d+ tokens .*training\.seq_len \+ 1 = 1000001; give more text",
        ),
    ],
)
def test_a_split_too_small_to_train_on(changes, message, files_study, small_gpt2, tmp_path):
    write_texts(tmp_path / "text" / "x.jsonl", 300)
    study = files_study(tmp_path / "text", small_gpt2, **changes)
    with pytest.raises(ValueError, match=message):
        prepared(make_plan(study), tmp_path / "out")
    assert not (tmp_path / "out" / "meta.json").exists()


@pytest.mark.parametrize("document", ["line", "paragraph", "file"])
def test_what_a_document_is_and_that_few_are_held_out(
    document, files_study, small_gpt2, tmp_path, capsys
):
    """Every document of a text file ends with the end-of-text token, also where it has that token's
    name in it."""
    (tmp_path / "text").mkdir()
    for index in range(150):
        text = f"one {index} <|endoftext|> of times\n\nthe worst of {index * index}\n"
        (tmp_path / "text" / f"{index}.txt").write_text(text)
    source = {"kind": "files", "txt_document": document}
    split = {"val_fraction": 0.05, "test_fraction": 0.45}
    study = files_study(tmp_path / "text", small_gpt2, vocab_size=512, source=source, split=split)
    prepared(make_plan(study), tmp_path / "out")
    meta = load_meta(tmp_path / "out")
    assert sum(part.n_documents for part in meta.splits.values()) == (
        150 if document == "file" else 300
    )
    for name, part in meta.splits.items():
        tokens = open_tokens(tmp_path / "out", name)
        ends = document_ends(tokens, meta.eot_id)
        assert (len(ends), ends[-1]) == (part.n_documents, part.n_tokens - 1)
    test = meta.splits["test"]
    said = f"measured on {test.n_tokens:,} tokens of {test.n_documents} documents, which are few"
    assert (said in capsys.readouterr().err) == (test.n_documents < 100) == (document == "file")


def test_complete_data_is_left_as_it_is(files_plan, tmp_path):
    out = tmp_path / "out"
    prepared(files_plan, out)
    before = contents(out)
    times = {path: path.stat().st_mtime_ns for path in out.rglob("[!.]*")}
    prepared(files_plan, out)
    assert {path: path.stat().st_mtime_ns for path in out.rglob("[!.]*")} == times
    # A bin that is missing is made again.
    (out / "val.bin").unlink()
    prepared(files_plan, out)
    assert contents(out) == before


@pytest.mark.parametrize("workers", [1, 2])
def test_few_parts_are_in_memory_and_a_dead_worker_is_noticed(workers, synthetic_plan, tmp_path):
    n_drawn = 0

    def jobs() -> Iterator[ShardJob]:
        nonlocal n_drawn
        for _ in range(20):
            n_drawn += 1
            yield ShardJob("x-0", only(synthetic_plan).study.data, tmp_path, 2)

    shards = make_shards(jobs(), workers)
    next(shards)
    assert n_drawn <= 2 * workers + 1
    if workers == 1:
        return
    for worker in multiprocessing.active_children():  # as the kernel does when memory runs out
        worker.kill()
    with pytest.raises(
        ValueError, match=r"execution\.data_threads: a worker process died.*lower it \(now 2\)"
    ) as raised:
        list(shards)
    assert raised.value.status == 137  # so that a retry of the job has more memory


# Below: whole processes that are killed, or have no space.

RUN = """
import os, signal, sys
from pathlib import Path
from coupled_adam_bench.data import prepare as module
from coupled_adam_bench.study.plan import load_plan

if __name__ == "__main__":
    plan, out, workers, shard_characters, kill_at = sys.argv[1:]
    module.SHARD_CHARACTERS = int(shard_characters)
    assemble = module._assemble
    def assemble_or_die(split, *arguments):
        if split == kill_at:
            (Path(out) / f".{split}.bin.0123abcd.tmp").write_text("half a bin")
            os.kill(os.getpid(), signal.SIGKILL)
        return assemble(split, *arguments)
    module._assemble = assemble_or_die
    plan = load_plan(Path(plan))
    (data,) = plan.data_ids
    module.prepare(plan.study_with_data(data), data, Path(out), int(workers))
"""


@pytest.fixture
def command(tmp_path: Path) -> Callable[..., list[str]]:
    (tmp_path / "run.py").write_text(RUN)

    def make(
        plan: Plan,
        out: Path,
        workers: int = 1,
        shard_characters: int = 2000,
        kill_at: str = "never",
    ) -> list[str]:
        write_sealed(tmp_path / "plan.json", plan.to_json())
        arguments = [
            tmp_path / "run.py",
            tmp_path / "plan.json",
            out,
            workers,
            shard_characters,
            kill_at,
        ]
        return [sys.executable, *map(str, arguments)]

    return make


def n_kept(stderr: str) -> int:
    found = re.search(r"parts_kept=(\d+)", stderr)
    assert found, stderr
    return int(found[1])


def test_killed_while_making_shards(files_plan, command, tmp_path):
    out = tmp_path / "out"
    killed = subprocess.Popen(command(files_plan, out, workers=2, shard_characters=500))
    finished: list[Path] = []
    while killed.poll() is None and len(finished) < 4:
        time.sleep(0.002)
        finished = list((out / "shards").glob("0*.json"))
    assert killed.poll() is None
    children = Path(f"/proc/{killed.pid}/task/{killed.pid}/children")
    workers = children.read_text().split() if children.exists() else []
    killed.kill()
    assert killed.wait() == -signal.SIGKILL
    finished = sorted((out / "shards").glob("0*.json"))
    assert not (out / "meta.json").exists()
    # They do not outlive the process.
    wait_until(lambda: not any(Path(f"/proc/{pid}/stat").exists() for pid in workers), 10)
    # A damaged shard and one of other text are not taken over.
    damaged = finished[0].with_suffix(".bin")
    damaged.write_bytes(b"\0" + damaged.read_bytes()[1:])
    record = json.loads(finished[1].read_text())
    finished[1].write_text(json.dumps(record | {"key": "0"}))
    (out / ".train.bin.0123abcd.tmp").write_text("half a bin")
    again = subprocess.run(
        command(files_plan, out, workers=2, shard_characters=500),
        check=True,
        capture_output=True,
        text=True,
    )
    assert not (out / "shards").exists()
    assert n_kept(again.stderr) >= len(finished) - 2
    prepared(files_plan, tmp_path / "whole")
    assert contents(out) == contents(tmp_path / "whole")


@pytest.mark.parametrize("kill_at", ["train", "test"])
def test_killed_while_putting_bins_together(kill_at, files_plan, command, tmp_path):
    out = tmp_path / "out"
    killed = subprocess.run(command(files_plan, out, kill_at=kill_at), capture_output=True)
    assert killed.returncode == -signal.SIGKILL
    n_shards = len(list((out / "shards").glob("*.bin")))
    assert n_shards > 10
    times = {path: path.stat().st_mtime_ns for path in (out / "shards").iterdir()}
    killed = subprocess.run(
        command(files_plan, out, kill_at=kill_at), capture_output=True, text=True
    )
    assert n_kept(killed.stderr) == n_shards
    assert {path: path.stat().st_mtime_ns for path in (out / "shards").iterdir()} == times
    subprocess.run(command(files_plan, out), check=True, capture_output=True)
    prepared(files_plan, tmp_path / "whole")
    assert contents(out) == contents(tmp_path / "whole")


IN_ITS_OWN_SPACE = ["unshare", "--user", "--map-root-user", "--mount"]


def can_mount() -> bool:
    if shutil.which("unshare") is None:
        return False
    probe = [*IN_ITS_OWN_SPACE, "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
    return subprocess.run(probe, capture_output=True).returncode == 0


@pytest.mark.skipif(sys.platform != "linux" or not can_mount(), reason="needs a small file system")
@pytest.mark.parametrize("workers", [1, 2])
def test_full_disk(workers, synthetic_plan, command, tmp_path):
    """Two of three shards fit; after the disk has grown, what was finished is kept."""
    disk = tmp_path / "disk"
    disk.mkdir()
    out = disk / "out"
    run = shlex.join(command(synthetic_plan, out, workers))
    script = f"""
        mount -t tmpfs -o size=1300k tmpfs {disk} || exit 3
        {run} 2> {tmp_path}/full.txt && exit 4
        ls {out}/shards > {tmp_path}/shards.txt
        mount -o remount,size=9m {disk} || exit 5
        {run} 2> {tmp_path}/again.txt || exit 6
        cp -r {out} {tmp_path}/copy
    """
    assert subprocess.run([*IN_ITS_OWN_SPACE, "sh", "-c", script]).returncode == 0
    error = (tmp_path / "full.txt").read_text().splitlines()[-1]
    assert re.search(
        r"OSError: \[Errno 28\] no space left for .*/out .*run again: finished parts are kept",
        error,
    )
    kept = (tmp_path / "shards.txt").read_text().split()
    finished = [name for name in kept if name.endswith(".json")]
    assert kept == [f"{Path(name).stem}.{kind}" for name in finished for kind in ("bin", "json")]
    # Two workers write at once: the one that meets the end of the disk may be that of the second or
    # the third shard.
    assert len(finished) == 2 if workers == 1 else 1 <= len(finished) <= 2
    assert n_kept((tmp_path / "again.txt").read_text()) == len(finished)
    prepared(synthetic_plan, tmp_path / "whole")
    assert contents(tmp_path / "copy") == contents(tmp_path / "whole")


@pytest.mark.skipif("CAB_REAL_DATA" not in os.environ, reason="CAB_REAL_DATA is not set")
def test_token_counts_of_real_text(files_study, tmp_path):
    data = Path(os.environ["CAB_REAL_DATA"])
    study = files_study(
        data / "text" / "openstax_ccby", data / "tokenizer" / "hf_gpt2", tokenizer="gpt2"
    )
    prepared(make_plan(study), tmp_path / "out", workers=2)
    parts = load_meta(tmp_path / "out").splits.values()
    # Counted by others, with one end-of-text per document: train.jsonl.xz and val.jsonl.xz.
    assert sum(part.n_tokens for part in parts) == 1_610_045 + 6_249
    assert sum(part.n_documents for part in parts) == 755 + 4
