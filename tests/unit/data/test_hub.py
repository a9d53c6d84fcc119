"""Datasets of the hub, read by the hub's own libraries from a server on this machine that speaks its protocol."""

import gzip
import hashlib
import io
import json
import os
import re
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from forks import python
from hub_server import Fault, HubServer

from coupled_adam_bench.store.files import sha256_file, write_sealed
from coupled_adam_bench.study.config import parse_study
from coupled_adam_bench.study.plan import make_plan
from coupled_adam_bench.study.presets import HUB_PLACES

TEXTS = [f"the {i} worst\nof {i * i} times, the best" * (1 + i % 7) for i in range(400)]
CARD = b"""---
configs:
- config_name: en
  data_files: en/*.json.gz
- config_name: de
  data_files: de/*.json.gz
---
"""


def parquet(texts: list[str]) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table({"text": texts}), sink, row_group_size=20, compression="none")
    return sink.getvalue()


def jsonl(texts: list[str]) -> bytes:
    return "".join(json.dumps({"text": text}) + "\n" for text in texts).encode()


def four_files(folder: str = "data") -> dict[str, bytes]:
    """The texts in four files of parquet."""
    return {f"{folder}/train-{i:05d}-of-00004.parquet": parquet(TEXTS[100 * i : 100 * i + 100]) for i in range(4)}


@pytest.fixture
def hub() -> Iterator[HubServer]:
    server = HubServer()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@dataclass
class Here:
    """A folder in which studies are planned and prepared by processes of their own."""

    folder: Path
    url: str
    tokenizer: Path

    def study(self, max_tokens: int | None = None, hub_minutes: float = 0.5, workers: int = 1, **source: Any) -> None:
        values = {
            "study": "s",
            "paths": {"tokenizer": str(self.tokenizer)},
            "data": {
                "name": "text",
                "source": {"kind": "hub", **source},
                "tokenizer": "file",
                "vocab_size": 512,
                "split": {"val_fraction": 0.1, "test_fraction": 0.1},
                "max_tokens": max_tokens,
            },
            "models": ["gpt2-2x32"],
            "training": {"seq_len": 8, "batch_sequences": 2, "warmup_steps": 5},
            "grid": [{"models": ["gpt2-2x32"], "tokens": [{"steps": 10}], "optimizers": ["adamw"]}],
            "execution": {"hub_minutes": hub_minutes},
        }
        write_sealed(self.folder / "plan.json", make_plan(parse_study(values)).to_json())

    @property
    def environment(self) -> dict[str, str]:
        names = ("HF_HUB_OFFLINE", "HF_TOKEN", "HF_DATASETS_OFFLINE")
        kept = {name: value for name, value in os.environ.items() if name not in names}
        return kept | {"HF_ENDPOINT": self.url, "HF_HOME": str(self.folder / "hf"), "HF_HUB_DISABLE_TELEMETRY": "1"}

    def start(self, *arguments: str, small_parts: bool = False, **environment: str) -> Any:
        # Several parts in a small corpus, and several chunks in a small file.
        parts = (
            "from coupled_adam_bench.data import prepare; prepare.SHARD_CHARACTERS = 2000;"
            "from huggingface_hub import constants; constants.DOWNLOAD_CHUNK_SIZE = 1000;"
        ) * small_parts
        code = f"import sys; {parts} from coupled_adam_bench.cli import main; sys.exit(main(sys.argv[1:]))"
        command = ["-c", code, *arguments]
        return python("pipeline without a hub", command, self.folder, self.environment | environment)

    def run(self, *arguments: str, small_parts: bool = False, **environment: str) -> subprocess.CompletedProcess[str]:
        process = self.start(*arguments, small_parts=small_parts, **environment)
        out, err = process.communicate(timeout=120)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def prepare(self, **environment: str) -> subprocess.CompletedProcess[str]:
        return self.run("prepare", "--plan", "plan.json", small_parts=True, **environment)

    @property
    def data(self) -> Path:
        (folder,) = (self.folder / "results" / "data").iterdir()
        return folder

    def bins(self) -> dict[str, str]:
        return {path.name: sha256_file(path) for path in sorted(self.data.glob("*.bin"))}

    def meta(self) -> dict[str, Any]:
        meta: dict[str, Any] = json.loads((self.data / "meta.json").read_text())
        return meta


@pytest.fixture
def here(hub: HubServer, small_gpt2: Path, tmp_path: Path) -> Here:
    return Here(tmp_path, hub.url, small_gpt2)


def test_parquet_on_the_main_branch(hub: HubServer, here: Here) -> None:
    commit = hub.add("datasets/org/set", four_files())
    here.study(dataset="org/set")
    done = here.prepare()
    assert done.returncode == 0, done.stderr
    source = here.meta()["source"]
    assert (source["n_files"], source["place"]["commit"], source["place"]["n_files"]) == (4, commit, 4)
    assert sum(split["n_documents"] for split in here.meta()["splits"].values()) == 400
    assert not (here.data / "shards").exists()


def test_files_of_json_lines_in_a_configuration(hub: HubServer, here: Here) -> None:
    files = {f"{name}/c4-train.0000{i}.json.gz": gzip.compress(jsonl(TEXTS[200 * i : 200 * i + 200])) for i in (0, 1)
             for name in ("en", "de")}  # fmt: skip
    hub.add("datasets/allenai/c4", files | {"README.md": CARD})
    here.study(dataset="allenai/c4", config_name="en")
    done = here.prepare()
    assert done.returncode == 0, done.stderr
    assert here.meta()["source"]["place"]["n_files"] == 2
    assert not hub.sent("store|de/")[2:]
    here.study(dataset="allenai/c4", config_name="fr")
    assert re.search(r"(?s)'fr' not found.*'en'.*set data\.source\.config_name", here.prepare().stderr)


def test_a_preset_is_served_by_the_first_place_that_can(hub: HubServer, here: Here) -> None:
    script = {"openwebtext.py": b"import datasets", "README.md": b""}
    hub.add("datasets/Skylion007/openwebtext", script)
    hub.add("datasets/Skylion007/openwebtext", four_files("plain_text/train"), "refs/convert/parquet")
    here.study(preset="openwebtext")
    done = here.prepare()
    assert done.returncode == 0, done.stderr
    place = here.meta()["source"]["place"]
    assert (place["revision"], place["license"]) == ("refs/convert/parquet", "cc0-1.0")
    assert "revision '79d93d786212f7344586290adb811d4ae6a1762c': there is no such revision" in done.stderr
    whole = here.bins()
    # The hub's own conversion can be a part only, and then says so.
    hub.add("datasets/Skylion007/openwebtext", four_files("plain_text/partial-train"), "refs/convert/parquet")
    hub.add("datasets/reedie01/openwebtext", four_files())
    (here.data / "meta.json").unlink()
    done = here.prepare()
    assert done.returncode == 0, done.stderr
    assert "has only a part of the text (plain_text/partial-train/" in done.stderr
    assert here.meta()["source"]["place"]["dataset"] == "reedie01/openwebtext"
    assert here.bins() == whole


def test_a_preset_whose_first_home_is_gone(hub: HubServer, here: Here) -> None:
    pinned = HUB_PLACES["slimpajama"][1].revision
    assert pinned is not None
    hub.add("datasets/gmongaras/SlimPajama-627B_Reupload", four_files(), pinned)
    here.study(preset="slimpajama")
    done = here.prepare()
    assert done.returncode == 0, done.stderr
    assert "dataset 'cerebras/SlimPajama-627B' does not exist, was renamed or removed" in done.stderr
    assert here.meta()["source"]["place"]["dataset"] == "gmongaras/SlimPajama-627B_Reupload"


def test_no_place_of_a_preset_can_serve(hub: HubServer, here: Here) -> None:
    here.study(preset="slimpajama")
    done = here.prepare()
    assert done.returncode == 2
    assert re.search(
        r"(?s)error: data\.source: dataset 'cerebras.*dataset 'gmongaras.*data\.source\.preset", done.stderr
    )


SETTINGS = {
    "script": ({"dataset": "org/set"}, r"has a loading script, set\.py, .*set data\.source\.revision to 'refs/convert"),
    "vanished": ({"dataset": "org/gone"}, r"'org/gone' does not exist, .*\(HTTP 404\); set data\.source\.dataset"),
    "private": ({"dataset": "org/private"}, r"or is private \(HTTP 401\); .*HF_TOKEN"),
    "gated": ({"dataset": "org/gated"}, r"is gated \(HTTP 401\): its terms must be accepted .*set HF_TOKEN"),
    "forbidden": ({"dataset": "org/forbidden"}, r"is gated \(HTTP 403\): its terms must be accepted .*set HF_TOKEN"),
    "no revision": (
        {"dataset": "org/fine", "revision": "v2"},
        r"'org/fine' at revision 'v2': there is no such revision; set data\.source\.revision",
    ),
    "no split": ({"dataset": "org/fine", "split": "dev"}, r"has no split 'dev', only train; set data\.source\.split"),
    "no column": (
        {"dataset": "org/fine", "text_field": "body"},
        r"org/fine, data/train-0.*no field 'body'; fields there: 'text'; set data\.source\.text_field",
    ),
    "no text": ({"dataset": "org/images"}, r"a\.png is none of \.parquet, .*set data\.source\.dataset"),
    "nothing": ({"dataset": "org/empty"}, r"'org/empty' has no files of text"),
}


@pytest.mark.fault(
    "text and data",
    "a dataset of the hub has a script, is gated, removed or private, or lacks a revision, a split or a column",
    "preparation stops before it downloads, and says what to set",
)
def test_what_cannot_be_read_says_what_to_set(hub: HubServer, here: Here) -> None:
    hub.add("datasets/org/set", {"set.py": b"import datasets", "README.md": b"A card."})
    hub.add("datasets/org/gated", four_files(), gated=401)
    hub.add("datasets/org/forbidden", four_files(), gated=403)
    hub.add("datasets/org/fine", four_files())
    hub.add("datasets/org/images", {"train/a.png": b"png" * 100})
    hub.add("datasets/org/empty", {"README.md": b"A card."})
    hub.faults.append(Fault("org/private", times=10, status=401, headers={"X-Error-Message": "Invalid username"}))
    for case, (settings, _) in SETTINGS.items():
        here.study(**settings)
        (here.folder / "plan.json").rename(here.folder / f"{case}.json")
    # One process for all of them, because the libraries take seconds to import.
    code = """import sys
from coupled_adam_bench.cli import main
for case in sys.argv[1:]:
    print("case", case, main(["prepare", "--plan", f"{case}.json"]), file=sys.stderr)
"""
    _, errors = python("pipeline without a hub", ["-c", code, *SETTINGS], here.folder, here.environment).communicate()
    assert "Traceback" not in errors
    said = dict(zip(SETTINGS, re.split(r"case .* 2\n", errors), strict=False))
    assert said.keys() == SETTINGS.keys()
    for case, (_, message) in SETTINGS.items():
        assert re.search(message, said[case]), said[case]
    assert len(hub.sent("store")) == 1  # the file that has no such column


def test_a_renamed_dataset_is_read_under_its_new_name(hub: HubServer, here: Here) -> None:
    hub.add("datasets/org/new", four_files())
    hub.moved["datasets/org/old"] = "datasets/org/new"
    here.study(dataset="org/old")
    done = here.prepare()
    assert done.returncode == 0, done.stderr
    assert "'org/old' is now 'org/new': set data.source.dataset to that" in done.stderr
    assert here.meta()["source"]["place"]["dataset"] == "org/new"


@pytest.mark.fault(
    "text and data",
    "the hub answers 429 with Retry-After, 5xx, or breaks the connection in the middle of a file",
    "preparation waits, says so, goes on where it was, and makes the same bins",
)
def test_what_passes_is_waited_out(hub: HubServer, here: Here) -> None:
    hub.add("datasets/org/set", four_files())
    here.study(dataset="org/set")
    assert here.prepare().returncode == 0
    whole = here.bins()
    (here.data / "meta.json").unlink()
    (here.data / "train.bin").unlink()
    size = len(four_files()["data/train-00001-of-00004.parquet"])
    broken = hub.repos["datasets/org/set"].branches["main"]["data/train-00001-of-00004.parquet"]
    store = f"/store/{hashlib.sha256(broken).hexdigest()}"
    hub.faults += [
        Fault("/api/datasets/org/set", status=503),
        Fault("/api/datasets/org/set", status=429, headers={"Retry-After": "2"}),
        Fault(store, cut_after=size // 3),
        Fault("train-00002", times=2, method="HEAD", status=502),
        Fault("/store/", times=1, status=500),
    ]
    hub.log.clear()
    done = here.prepare()
    assert done.returncode == 0, done.stderr
    assert here.bins() == whole
    assert re.search(r"dataset 'org/set': HTTP 503; trying again in 1 s", done.stderr)
    assert re.search(r"dataset 'org/set': HTTP 429; trying again in 2 s", done.stderr)
    assert f"bytes={size // 3 // 1000 * 1000}-" in [asked for _, path, _, asked in hub.sent("store") if path == store]


@pytest.mark.fault(
    "text and data",
    "a file of the hub arrives with other bytes than the hub lists",
    "it is downloaded once more; a second time the stage stops and names the file",
)
def test_a_wrong_checksum(hub: HubServer, here: Here) -> None:
    files = four_files()
    hub.add("datasets/org/set", files)
    here.study(dataset="org/set")
    wrong = bytearray(files["data/train-00000-of-00004.parquet"])
    wrong[len(wrong) // 2] ^= 1
    hub.faults.append(Fault("/store/", content=bytes(wrong)))
    done = here.prepare()
    assert done.returncode == 0, done.stderr
    assert "but the hub lists" in done.stderr
    assert "downloading it again" in done.stderr
    (here.data / "meta.json").unlink()
    (here.data / "train.bin").unlink()
    hub.faults.append(Fault("/store/", times=2, content=bytes(wrong)))
    done = here.prepare()
    assert done.returncode == 2
    assert re.search(
        r"train-00000-of-00004\.parquet of .*SHA-256 is .*, twice: .*set data\.source\.dataset", done.stderr
    )


@pytest.mark.fault(
    "text and data",
    "there is no network at all, or HF_HUB_OFFLINE forbids to use it",
    "preparation gives up after execution.hub_minutes, or at once, and says what to do",
)
def test_no_network(hub: HubServer, here: Here) -> None:
    here.study(dataset="org/set", hub_minutes=0.02)
    done = here.prepare(HF_ENDPOINT="http://127.0.0.1:9")
    assert done.returncode == 2
    assert re.search(
        r"dataset 'org/set': connection broken or refused \(.*gave up after 0\.02 minutes .*"
        r"execution\.hub_minutes.*run again, connect this machine, or download all .*`fetch`",
        done.stderr,
    ), done.stderr
    done = here.prepare(HF_HUB_OFFLINE="1")
    assert done.returncode == 2
    assert re.search(r"HF_HUB_OFFLINE forbids .*`fetch`, with paths\.hub_mirror", done.stderr)
    assert not hub.log


@pytest.mark.fault(
    "text and data",
    "preparation of a dataset of the hub is killed",
    "it goes on after the last finished part: files before it are not downloaded again, and the bins are the same",
)
@pytest.mark.parametrize("workers", ["1", "2"])
def test_killed_and_resumed(workers: str, hub: HubServer, here: Here) -> None:
    hub.add("datasets/org/set", four_files())
    here.study(dataset="org/set")
    assert here.prepare().returncode == 0
    whole, described = here.bins(), here.meta()
    (here.data / "meta.json").unlink()
    (here.data / "train.bin").unlink()
    # The third file hangs.
    hub.faults.append(Fault("train-00002", times=100, method="HEAD", status=503, headers={"Retry-After": "60"}))
    process = here.start("prepare", "--plan", "plan.json", "--workers", workers, small_parts=True)
    shards = here.data / "shards"
    deadline = time.monotonic() + 60
    while not (list(shards.glob("*.json")) and any("train-00002" in entry[1] for entry in hub.log[-3:])):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    time.sleep(0.5)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    hub.faults.clear()
    hub.log.clear()
    assert len(list(shards.glob("*.json"))) > 5
    done = here.run("prepare", "--plan", "plan.json", "--workers", workers, small_parts=True)
    assert done.returncode == 0, done.stderr
    assert (here.bins(), here.meta()) == (whole, described)
    assert len(hub.sent("/store/")) <= 3  # the file in which the last part ends, and those after it
    first = hashlib.sha256(four_files()["data/train-00000-of-00004.parquet"]).hexdigest()
    assert not hub.sent(first)


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_cap_reads_the_first_documents_only(workers: str, hub: HubServer, here: Here) -> None:
    hub.add("datasets/org/set", four_files())
    here.study(dataset="org/set")
    assert here.prepare().returncode == 0
    whole = {name: (here.data / f"{name}.bin").read_bytes() for name in ("train", "val", "test")}
    cap = sum(split["n_tokens"] for split in here.meta()["splits"].values()) // 3
    shutil.rmtree(here.data)
    hub.log.clear()
    here.study(dataset="org/set", max_tokens=cap)
    done = here.run("prepare", "--plan", "plan.json", "--workers", workers, small_parts=True)
    assert done.returncode == 0, done.stderr
    total = sum(split["n_tokens"] for split in here.meta()["splits"].values())
    assert cap <= total < cap + 400  # less than one document more
    for name, tokens in whole.items():
        assert tokens.startswith((here.data / f"{name}.bin").read_bytes())
    assert here.meta()["source"]["n_files"] == 2
    assert len(hub.sent("/store/")) <= 1 + int(workers)  # several workers are given parts in advance


@pytest.fixture
def small_disk(here: Here) -> Iterator[Path]:
    """A file system of 100 KiB in the place of ``results``."""
    results = here.folder / "results"
    results.mkdir()
    if (
        os.geteuid() != 0
        or subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=100k", "tmpfs", str(results)], check=False, capture_output=True
        ).returncode
    ):
        pytest.skip("only root may mount a small file system")
    yield results
    subprocess.run(["umount", str(results)], check=True)


@pytest.mark.fault(
    "text and data",
    "the disk is full while a file of the hub is downloaded",
    "the stage stops at once and says where; when there is space, it goes on and makes the same bins",
)
def test_a_full_disk(hub: HubServer, here: Here, small_disk: Path) -> None:
    hub.add("datasets/org/set", four_files())
    here.study(dataset="org/set")
    (small_disk / "filler").write_bytes(bytes(60 * 1024))
    done = here.prepare()
    assert done.returncode == 2
    assert re.search(r"error: .*no space left for results/data/.*finished parts are kept", done.stderr), done.stderr
    assert "trying again" not in done.stderr
    (small_disk / "filler").unlink()
    subprocess.run(["mount", "-o", "remount,size=10m", str(small_disk)], check=True)
    assert here.prepare().returncode == 0
    assert sum(split["n_documents"] for split in here.meta()["splits"].values()) == 400
