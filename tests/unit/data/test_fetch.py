"""`fetch` with the hub's own libraries and a server on this machine; then the jobs, with the hub switched off."""

import io
import json
import os
import re
import signal
import subprocess
import sys
import tarfile
import threading
import time
import zipfile
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from forks import python
from hub_server import Fault, HubServer
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from coupled_adam_bench.data.tokenizers import GPT2_REPOSITORY, GPT2_REVISION
from coupled_adam_bench.data.transport import FileAtMost, check_address
from coupled_adam_bench.evaluation.task_files import find_tasks, hub_data
from coupled_adam_bench.store.files import sha256_file, write_json, write_sealed
from coupled_adam_bench.study.config import parse_study
from coupled_adam_bench.study.plan import make_plan
from coupled_adam_bench.study.presets import PAPER_TASKS, TASK_REVISIONS, WORD_LISTS

ROOT = Path(__file__).parents[3]
TEXTS = [f"the {i} worst\nof {i * i} times, the best" * (1 + i % 7) for i in range(400)]
ARC = [
    {
        "id": f"q{i}", "question": f"What is {i}?", "answerKey": "B",
        "choices": {"text": ["one", "two", "three"], "label": ["A", "B", "C"]},
    }
    for i in range(5)
]  # fmt: skip
PAIRS = b"sun\tmoon\t3.5\r\ncar\troad\t7\r\n"


def parquet(rows: list[dict[str, Any]]) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), sink, row_group_size=20, compression="none")
    return sink.getvalue()


def zipped(name: str, content: bytes) -> bytes:
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w") as archive:
        archive.writestr(name, content)
    return sink.getvalue()


def tarred(name: str, content: bytes) -> bytes:
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w:gz") as archive:
        member = tarfile.TarInfo(name)
        member.size = len(content)
        archive.addfile(member, io.BytesIO(content))
    return sink.getvalue()


@pytest.fixture
def hub() -> Iterator[HubServer]:
    server = HubServer()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    files = {
        f"data/train-{i:05d}-of-00004.parquet": parquet([{"text": text} for text in TEXTS[100 * i : 100 * i + 100]])
        for i in range(4)
    }
    server.add("datasets/org/set", files)
    card = b"---\nconfigs:\n- config_name: ARC-Easy\n  data_files:\n  - {split: test, path: ARC-Easy/test*}\n---\n"
    server.add(
        "datasets/allenai/ai2_arc",
        {"ARC-Easy/test-00000-of-00001.parquet": parquet(ARC), "README.md": card},
        TASK_REVISIONS["allenai/ai2_arc"],
    )
    server.files["/pairs.zip"] = zipped("sets/pairs.txt", b"word1\tword2\trating\r\n" + PAIRS)
    server.files["/more.tar.gz"] = tarred("sets/more.txt", PAIRS * 2)
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trained.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trained.train_from_iterator(
        TEXTS[:20], trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet, show_progress=False)
    )
    trained.add_special_tokens([AddedToken("<|endoftext|>", special=True, normalized=False)])
    trained.save(str(tmp_path / "tokenizer.json"))
    return tmp_path / "tokenizer.json"


class Here:
    """A folder with the plan of a study that needs a corpus, a task and two word lists."""

    def __init__(self, folder: Path, url: str, tokenizer: Path | None) -> None:
        self.folder, self.url, self.tokenizer = folder, url, tokenizer

    def study(self, mirror: str | None = "mirror", **data: Any) -> dict[str, Any]:
        values = {
            "study": "s",
            "paths": {
                "tokenizer": self.tokenizer and str(self.tokenizer),
                "hub_mirror": mirror,
                "word_similarity": "sets",
            },
            "data": {
                "name": "text",
                "source": {"kind": "hub", "dataset": "org/set"},
                "tokenizer": "file",
                "vocab_size": 512,
                "split": {"val_fraction": 0.1, "test_fraction": 0.1},
            }
            | data,
            "models": ["gpt2-2x32"],
            "training": {"seq_len": 64, "batch_sequences": 2, "warmup_steps": 5},
            "grid": [{"models": ["gpt2-2x32"], "tokens": [{"steps": 10}], "optimizers": ["adamw"]}],
            "evaluation": {
                "downstream": {"tasks": ["arc_easy"]},
                "word_similarity": [{"name": "p", "file": "pairs.txt"}, {"name": "m", "file": "more.txt"}],
            },
            "execution": {"hub_minutes": 0.5},
        }
        write_sealed(self.folder / "plan.json", make_plan(parse_study(values)).to_json())
        return values

    @property
    def environment(self) -> dict[str, str]:
        names = ("HF_HUB_OFFLINE", "HF_TOKEN", "HF_DATASETS_OFFLINE")
        kept = {name: value for name, value in os.environ.items() if name not in names}
        return kept | {"HF_ENDPOINT": self.url, "HF_HOME": str(self.folder / "hf"), "HF_HUB_DISABLE_TELEMETRY": "1"}

    def start(self, *arguments: str, first: str = "", **environment: str) -> Any:
        code = f"""import sys
from coupled_adam_bench.study import presets
from coupled_adam_bench.study.presets import Home, WordList
presets.WORD_LISTS.update({{
    "pairs.txt": WordList("{sha256(PAIRS).hexdigest()}", (
        Home("{self.url}/pairs.zip", "sets/pairs.txt", has_header=True),
        Home("{self.url}/pairs.txt"),
    )),
    "more.txt": WordList("{sha256(PAIRS * 2).hexdigest()}", (Home("{self.url}/more.tar.gz", "sets/more.txt"),)),
}})
from huggingface_hub import constants
constants.DOWNLOAD_CHUNK_SIZE = 1000
from coupled_adam_bench.cli import main
{first}
sys.exit(main(sys.argv[1:]))"""
        command = ["-c", code, *arguments, "--plan", "plan.json"]
        return python("pipeline without a hub", command, self.folder, self.environment | environment)

    def run(self, *arguments: str, first: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
        process = self.start(*arguments, first=first, **environment)
        out, err = process.communicate(timeout=120)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def mirrored(self) -> dict[str, str]:
        files = [
            path
            for path in self.folder.glob("mirror/**/*")
            if path.is_file() and not path.relative_to(self.folder).parts[-1].startswith(".")
        ]
        return {str(path.relative_to(self.folder)): sha256_file(path) for path in sorted(files)}


@pytest.fixture
def here(hub: HubServer, tokenizer: Path, tmp_path: Path) -> Here:
    return Here(tmp_path, hub.url, tokenizer)


OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_ENDPOINT": "http://127.0.0.1:9"}


def test_all_that_a_study_needs_and_the_jobs_without_a_network(hub: HubServer, here: Here) -> None:
    here.study()
    said = here.run("fetch", "--dry-run")
    assert said.returncode == 0, said.stderr
    assert re.search(
        r"org/set \(none stated\), commit [0-9a-f]{40}: at most 0\.000 GB to fetch into mirror", said.stdout
    )
    assert re.search(r"GB at most, and [0-9.]+ GB are free at", said.stdout)
    assert not hub.sent("store")
    done = here.run("fetch")
    assert done.returncode == 0, done.stderr
    assert (here.folder / "sets" / "pairs.txt").read_bytes() == PAIRS
    assert (here.folder / "sets" / "more.txt").read_bytes() == PAIRS * 2
    task = here.folder / "mirror" / "allenai" / "ai2_arc" / "ARC-Easy" / "test.jsonl"
    assert [json.loads(line) for line in task.read_text().splitlines()] == ARC
    sent = len(hub.log)
    for stage in (["prepare"], ["try-tasks", "--out", "tasks.json"]):
        done = here.run(*stage, **OFFLINE)
        assert done.returncode == 0, done.stderr
    assert len(hub.log) == sent
    assert [*json.loads((here.folder / "tasks.json").read_text()).values()] == [{"arc_easy": 5}]
    before = here.mirrored()
    done = here.run("fetch")
    assert done.returncode == 0, done.stderr
    assert not hub.sent("store")[sent:]
    assert here.mirrored() == before


def test_a_mirror_and_the_hub_give_the_same_data(hub: HubServer, here: Here) -> None:
    found = []
    for mirror, environment in (("mirror", OFFLINE), ("elsewhere", {})):
        here.study(mirror=mirror)
        if environment:
            assert here.run("fetch").returncode == 0
        done = here.run("prepare", **environment)
        assert done.returncode == 0, done.stderr
        (data,) = (here.folder / "results" / "data").iterdir()
        found.append({path.name: sha256_file(path) for path in data.glob("[!.]*") if path.is_file()})
        (here.folder / "results").rename(here.folder / f"results of {mirror}")
    assert found[0] == found[1]
    assert {"meta.json", "train.bin"} <= found[0].keys()


@pytest.mark.fault(
    "text and data",
    "`fetch` is killed in the middle of a file",
    "the next one goes on at that byte, and leaves the same files as one that was not killed",
)
def test_killed_and_resumed(hub: HubServer, here: Here, tmp_path: Path) -> None:
    here.study()
    assert here.run("fetch").returncode == 0
    whole = here.mirrored()
    (here.folder / "mirror").rename(tmp_path / "whole")
    # The second file of the corpus stops in its middle, and then answers no more.
    content = hub.repos["datasets/org/set"].branches["main"]["data/train-00001-of-00004.parquet"]
    path = f"/store/{sha256(content).hexdigest()}"
    hub.faults += [
        Fault(path, cut_after=6500),
        Fault(path, times=100, status=503, headers={"Retry-After": "60"}),
    ]
    process = here.start("fetch")
    deadline = time.monotonic() + 60
    while not any(entry[1:3] == (path, 503) for entry in hub.log):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    hub.faults.clear()
    hub.log.clear()
    done = here.run("fetch")
    assert done.returncode == 0, done.stderr
    assert here.mirrored() == whole
    # What a broken connection leaves unread is lost, so of the 6500 bytes one or two thousand may be sent again.
    (begun,) = (entry[3] for entry in hub.sent(path))
    assert begun in {"bytes=4000-", "bytes=5000-", "bytes=6000-"}
    first = hub.repos["datasets/org/set"].branches["main"]["data/train-00000-of-00004.parquet"]
    assert not hub.sent(sha256(first).hexdigest())


def test_a_cap_fetches_the_first_files_only(hub: HubServer, here: Here) -> None:
    here.study(max_tokens=8000)
    assert here.run("fetch", "--bytes-per-token", "0.1").returncode == 0
    corpus = next((here.folder / "mirror" / "corpora").iterdir())
    assert len(list(corpus.glob("data/*.parquet"))) == 1
    done = here.run("prepare", **OFFLINE)
    assert done.returncode == 2
    assert re.search(r"Of 4 files the first 1 are in .*give `fetch` a larger --bytes-per-token", done.stderr)
    per_token = 1.5 * len("".join(TEXTS[:100])) / 8000
    assert here.run("fetch", "--bytes-per-token", str(per_token)).returncode == 0
    assert len(list(corpus.glob("data/*.parquet"))) == 2
    done = here.run("prepare", **OFFLINE)
    assert done.returncode == 0, done.stderr


@pytest.mark.fault(
    "text and data",
    "what a job needs is not in the mirror, or damaged there, and the hub is switched off",
    "the job names it and the command that fetches it",
)
def test_what_is_not_there_is_named(hub: HubServer, here: Here) -> None:
    here.study()
    done = here.run("prepare", **OFFLINE)
    assert done.returncode == 2
    assert re.search(r"dataset 'org/set' is not on this machine, .*target `fetch`, with paths\.hub_mirror", done.stderr)
    assert here.run("fetch").returncode == 0
    corpus = next((here.folder / "mirror" / "corpora").iterdir())
    last = corpus / "data" / "train-00003-of-00004.parquet"
    content = bytearray(last.read_bytes())
    content[100] ^= 1
    last.write_bytes(content)
    done = here.run("prepare", **OFFLINE)
    assert re.search(r"paths\.hub_mirror: .*train-00003.*SHA-256 .*delete it and run the target `fetch`", done.stderr)
    last.unlink()
    done = here.run("prepare", **OFFLINE)
    assert re.search(r"train-00003.*is not on this machine, .*target `fetch`", done.stderr)
    (here.folder / "mirror" / "allenai" / "ai2_arc" / "ARC-Easy" / "test.jsonl").unlink()
    done = here.run("try-tasks", "--out", "tasks.json", **OFFLINE)
    assert re.search(r"arc_easy needs .*test\.jsonl; the target `fetch` downloads it", done.stderr)


@pytest.mark.fault(
    "text and data",
    "`fetch` has no folder to fetch into, too little space on the disk, or gets another word list than the published",
    "it stops before it downloads, or before it keeps the file, and names the setting",
)
def test_what_fetch_refuses(hub: HubServer, here: Here) -> None:
    here.study(mirror=None)
    done = here.run("fetch")
    assert done.returncode == 2
    assert re.search(r"paths\.hub_mirror: not set .*--config 'paths=\{hub_mirror: data/hub\}'", done.stderr)
    here.study()
    hub.repos["datasets/allenai/ai2_arc"].branches[TASK_REVISIONS["allenai/ai2_arc"]] |= {
        "ai2_arc.py": b"import datasets"
    }
    done = here.run("fetch")
    assert re.search(
        r"arc_easy: .*has a loading script, ai2_arc\.py, .*put its rows .*/ARC-Easy/test\.jsonl", done.stderr
    )
    del hub.repos["datasets/allenai/ai2_arc"].branches[TASK_REVISIONS["allenai/ai2_arc"]]["ai2_arc.py"]
    (here.folder / "sets" / "pairs.txt").unlink()  # was had all the same
    (here.folder / "sets" / "more.txt").unlink()
    hub.files["/pairs.zip"] = zipped("sets/pairs.txt", b"header\nsun moon 4\n")
    done = here.run("fetch")
    assert done.returncode == 2
    assert re.search(
        r"pairs\.txt with the SHA-256 [0-9a-f]{64}: put it at sets/pairs\.txt yourself; tried .*pairs\.zip "
        r"\(ValueError: the SHA-256 is .*pairs\.txt \(HTTPError: HTTP Error 404",
        done.stderr,
    ), done.stderr
    assert "`fetch`" not in done.stderr
    assert (here.folder / "sets" / "more.txt").read_bytes() == PAIRS * 2
    hub.files["/pairs.txt"] = PAIRS  # the second home
    assert here.run("fetch").returncode == 0
    assert (here.folder / "sets" / "pairs.txt").read_bytes() == PAIRS
    (here.folder / "sets" / "pairs.txt").unlink()
    del hub.files["/pairs.txt"]
    assert not (here.folder / "sets" / "pairs.txt").exists()


@pytest.mark.fault(
    "text and data",
    "the names of the servers do not resolve while `fetch` runs",
    "it fails at once, after it has tried everything, and lists what is missing",
)
def test_names_that_do_not_resolve(here: Here) -> None:
    here.study()
    here.url = "https://hub.example.invalid"
    start = time.monotonic()
    done = here.run("fetch")
    assert time.monotonic() - start < 25
    assert done.returncode == 2
    said, _, listed = done.stderr.partition("could not be had")
    assert said.endswith("4 things "), done.stderr
    for part in ("arc_easy|ai2_arc", "org/set", "pairs.txt", "more.txt"):
        assert re.search(part, listed)
    assert "`fetch`" not in done.stderr


@pytest.mark.fault(
    "text and data",
    "the corpus has no column of the name that the study says, or numbers in it",
    "`fetch` names it after the first file, and preparation need not find it later",
)
@pytest.mark.parametrize("max_tokens", [None, 2000])
def test_a_text_column_that_is_missing(hub: HubServer, here: Here, max_tokens: int | None) -> None:
    source = {"kind": "hub", "dataset": "org/set", "text_field": "body"}
    here.study(source=source, max_tokens=max_tokens)
    done = here.run("fetch")
    assert done.returncode == 2
    message = r"train-00000.* of 'org/set': no field 'body'; fields there: 'text'; set data\.source\.text_field"
    assert re.search(message, done.stderr), done.stderr
    assert not hub.sent("train-00001")


@pytest.mark.fault(
    "text and data",
    "a server sends more than it lists, or JSON, pages or a word list without end",
    "`fetch` stops with a sentence once a bound is reached",
)
@pytest.mark.parametrize(
    ("path", "bound", "message"),
    [
        ("/api/datasets/org/set/tree", "transport.MOST_BYTES = 5000", "more than 5,000 bytes in one answer"),
        ("/api/datasets/org/set$", "transport.MOST_BYTES = 5000", "more than 5,000 bytes in one answer"),
        (None, "transport.MOST_REQUESTS = 3", "more than 3 requests, as for a list without end"),
        ("/pairs.zip", "fetch._MOST_WORD_LIST_BYTES = 5000", "pairs.zip: more than 5,000 bytes"),
    ],
)
def test_answers_without_end(hub: HubServer, here: Here, path: str | None, bound: str, message: str) -> None:
    if path is not None:
        hub.faults.append(Fault(path, times=9, content=b"[" + 9999 * b" "))
    here.study()
    modules = "from coupled_adam_bench.data import transport; import coupled_adam_bench.data.fetch as fetch"
    done = here.run("fetch", first=f"{modules}; {bound}")
    assert done.returncode == 2
    assert message in done.stderr, done.stderr
    assert "Traceback" not in done.stderr


def test_a_file_that_is_longer_than_it_is_listed(tmp_path: Path) -> None:
    with FileAtMost(tmp_path / "file", 5) as file:
        file.write(b"abc")
        with pytest.raises(ValueError, match="the server sends more than the 5 bytes that it lists"):
            file.write(b"def")
    with FileAtMost(tmp_path / "file", 5) as file:
        assert file.tell() == 3
        file.write(b"de")
    assert (tmp_path / "file").read_bytes() == b"abcde"


@pytest.mark.fault(
    "text and data",
    "the hub's address is plain http, or a server leads from https to it",
    "`fetch` refuses it; a server on this machine may be asked by http",
)
def test_plain_http(hub: HubServer, here: Here) -> None:
    here.study()
    done = here.run("fetch", HF_ENDPOINT="http://hub.example.org")
    assert done.returncode == 2
    assert "http://hub.example.org: not https" in done.stderr
    check_address("https://hub.example.org/a", "https://huggingface.co")
    check_address("http://localhost:80/a", "http://127.0.0.1:80")
    for url, asked in (
        ("http://hub.example.org/a?token=1", "https://hub.example.org"),
        ("http://127.0.0.1/a", "https://hub.example.org"),
        ("http://hub.example.org/a", "http://127.0.0.1"),
        ("ftp://hub.example.org/a", "https://hub.example.org"),
    ):
        with pytest.raises(ValueError, match=r"^[^?]*: not https"):
            check_address(url, asked)
    assert all(home.url.startswith("https://") for known in WORD_LISTS.values() for home in known.homes)


def test_too_little_space(hub: HubServer, here: Here) -> None:
    disk = here.folder / "mirror"
    disk.mkdir()
    if (
        os.geteuid() != 0
        or subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=60k", "tmpfs", str(disk)], check=False, capture_output=True
        ).returncode
    ):
        pytest.skip("only root may mount a small file system")
    try:
        here.study()
        done = here.run("fetch")
        assert done.returncode == 2
        assert re.search(r"paths\.hub_mirror: 0\.000 GB to fetch, but 0\.000 GB are free at .*mirror", done.stderr)
        assert not hub.sent("store")
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_the_target_of_the_workflow(hub: HubServer, here: Here) -> None:
    study = here.study()
    study["evaluation"]["word_similarity"] = []
    write_json(here.folder / "study.json", study)
    environment = here.environment | {"PYTHONPATH": os.environ.get("PYTHONPATH", "")}
    command = [sys.executable, "-m", "snakemake", "fetch", "--cores", "1", "--snakefile", str(ROOT / "Snakefile")]
    done = subprocess.run(
        [*command, "--configfile", "study.json"], cwd=here.folder, env=environment, text=True, capture_output=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "GB are free at" in done.stdout
    assert here.run("prepare", **OFFLINE).returncode == 0


def test_a_tokenizer_that_is_not_gpt2s(hub: HubServer, here: Here) -> None:
    hub.add(GPT2_REPOSITORY, {"tokenizer.json": here.tokenizer.read_bytes()}, GPT2_REVISION)
    here.tokenizer = None
    here.study(tokenizer="gpt2", vocab_size=50304)
    done = here.run("fetch")
    assert done.returncode == 2
    assert "mirror/openai-community/gpt2/tokenizer.json: not GPT-2's tokenizer" in done.stderr
    assert not (here.folder / "mirror" / "openai-community" / "gpt2" / "tokenizer.json").exists()


@pytest.mark.skipif("CAB_REAL_DATA" not in os.environ, reason="CAB_REAL_DATA is not set")
def test_gpt2s_tokenizer(hub: HubServer, here: Here) -> None:
    real = Path(os.environ["CAB_REAL_DATA"]) / "tokenizer" / "hf_gpt2" / "tokenizer.json"
    hub.add(GPT2_REPOSITORY, {"tokenizer.json": real.read_bytes()}, GPT2_REVISION)
    here.tokenizer = None
    here.study(tokenizer="gpt2", vocab_size=50304)
    assert here.run("fetch").returncode == 0
    done = here.run("prepare", **OFFLINE)
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif("CAB_REAL_DATA" not in os.environ, reason="CAB_REAL_DATA is not set")
@pytest.mark.parametrize("name", WORD_LISTS)
def test_the_pinned_word_lists_are_the_authors(name: str) -> None:
    assert sha256_file(Path(os.environ["CAB_REAL_DATA"]) / "wordsim" / name) == WORD_LISTS[name].sha256


@pytest.mark.skipif("CAB_REAL_DATA" not in os.environ, reason="CAB_REAL_DATA is not set")
def test_the_papers_tasks_with_their_real_rows(hub: HubServer, here: Here) -> None:
    """From parquet, in the configurations that lm-eval's task files name, to lines of JSON."""
    real = Path(os.environ["CAB_REAL_DATA"]) / "hub"
    expected = {}
    for task in find_tasks(PAPER_TASKS, None):
        data = hub_data(task, 0)
        assert data is not None
        (split,) = data.needed
        rows = [json.loads(line) for line in data.file(real, split).read_text().splitlines()]
        config = data.config_name or "default"
        branch = TASK_REVISIONS.get(data.dataset, "main")
        repo = hub.repos.get(f"datasets/{data.dataset}")
        files = dict(repo.branches[branch]) if repo is not None else {}
        files[f"{config}/{split}-00000-of-00001.parquet"] = parquet(rows)
        entry = f"- config_name: {config}\n  data_files:\n  - {{split: {split}, path: {config}/{split}-*}}\n"
        card = files.get("README.md", b"---\nconfigs:\n---\n")
        files["README.md"] = card.replace(b"\n---\n", f"\n{entry}---\n".encode())
        hub.add(f"datasets/{data.dataset}", files, branch)
        expected[data.file(here.folder / "mirror", split)] = rows
    study = here.study()
    study["evaluation"] |= {"downstream": {}, "word_similarity": []}
    write_sealed(here.folder / "plan.json", make_plan(parse_study(study)).to_json())
    done = here.run("fetch")
    assert done.returncode == 0, done.stderr
    for file, rows in expected.items():
        assert [json.loads(line) for line in file.read_text().splitlines()] == rows
