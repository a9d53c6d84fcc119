"""Compares our scoring of downstream tasks with lm-eval's own ``hf`` model: documents per second,
memory, and scores.

Both score the same untrained model on the same tasks with the same precision and batch budget, one
after the other, each in a process of its own. Documents are taken at even distances, since a task
may begin with its shortest. Prints a table, and one JSON object with everything.

    python benchmarks/evaluation.py [--data FOLDER] [--model gpt2-4x256] [--limit 20]
    [--keep-memory] [--out FILE]

The folder has ``hub``, a mirror of the paper's tasks as in ``paths.hub_mirror``, and GPT-2's
``tokenizer/hf_gpt2``; by default it is the one in the variable ``CAB_REAL_DATA``. Without one the
tasks are those of the generated language.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from allocator import SETTINGS

from coupled_adam_bench.store import paths
from coupled_adam_bench.study.catalogue.presets import PAPER_TASKS
from coupled_adam_bench.study.plan import cells
from coupled_adam_bench.study.settings import Study, parse_study

NO_TEXT = "benchmark-0123456789"
"""The id of data without a text, of which only the tokenizer is there."""
SIDES = {"hf": "lm-eval's hf", "ours": "ours"}
TOLERANCE = 1e-4
SCRIPT = str(Path(__file__).resolve())


def make_study(arguments: argparse.Namespace) -> Study:
    values: dict[str, Any] = {
        "study": "benchmark",
        "models": [arguments.model],
        "training": {
            "seq_len": arguments.seq_len,
            "batch_sequences": 1,
            "warmup_steps": 0,
            "precision": "fp32",
        },
        "grid": [{"models": [arguments.model], "tokens": [{"steps": 1}], "optimizers": ["adamw"]}],
        "execution": {"evaluation_batch_sequences": arguments.batch_sequences},
    }
    chosen = {"precision": arguments.precision}
    if arguments.data is None:
        source = {"kind": "synthetic", "n_words": 4000, "n_task_items": 400, "n_tokens": 100_000}
        split = {"val_fraction": 0.05, "test_fraction": 0.05}
        values["data"] = {
            "name": "words",
            "source": source,
            "tokenizer": "word",
            "vocab_size": 4096,
            "split": split,
        }
        values["evaluation"] = {
            "word_similarity": "synthetic",
            "downstream": {"tasks": "synthetic"} | chosen,
        }
    else:
        data = arguments.data
        values["paths"] = {
            "text": ".",
            "tokenizer": str(data / "tokenizer/hf_gpt2"),
            "hub_mirror": str(data / "hub"),
        }
        values["data"] = {
            "name": "text",
            "source": {"kind": "files"},
            "tokenizer": "gpt2",
            "vocab_size": 50304,
        }
        values["evaluation"] = {
            "word_similarity": [],
            "downstream": {"tasks": arguments.tasks} | chosen,
        }
    return parse_study(values)


def data_id(study: Study) -> str:
    """Return the id of the data that the tasks read: data that are prepared have that of the
    study."""
    if study.data.tokenizer == "word":
        return cells.data_id(study, cells.data_digest(study))
    return NO_TEXT


def write_model(study: Study, std: float) -> Path:
    """Write an untrained model, and the data that the tasks need, below the working folder."""
    from coupled_adam_bench.data.prepare import prepare
    from coupled_adam_bench.data.tokenizers import save_tokenizer
    from coupled_adam_bench.models.build import build_model
    from coupled_adam_bench.models.export import save_model

    folder = paths.data_dir(data_id(study))
    if study.data.tokenizer == "word":
        prepare(study, data_id(study), folder, workers=1)
    else:
        save_tokenizer(study, None, folder / "tokenizer")
    model = build_model(study.models[0], study.data.vocab_size, study.training.seq_len)
    model.init_weights(0, std)
    save_model(model, Path("model"), folder / "tokenizer", eot_id=0)
    return Path("model")


def open_side(side: str, study: Study, device: str) -> Any:
    """Return the model as one of the two sides sees it."""
    from coupled_adam_bench.evaluation.harness_model import HarnessModel

    if side == "ours":
        return HarnessModel(Path("model"), study, device)
    from lm_eval.models.huggingface import HFLM

    bf16 = study.evaluation.downstream.precision == "bf16" and device.startswith("cuda")
    return HFLM(
        pretrained="model",
        backend="causal",
        dtype="float32",
        mixed_precision_dtype="bfloat16" if bf16 else None,
        device=device,
        batch_size=study.execution.evaluation_batch_sequences,
        max_length=study.training.seq_len,
    )


def peak_mb(device: str) -> float:
    """Return the most memory that this process has had, on the GPU if the model is there."""
    import torch

    if device.startswith("cuda"):
        return torch.cuda.max_memory_allocated() / 1e6
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6


def spread(tasks: dict[str, Any], limit: int) -> None:
    """Keep at most ``limit`` documents of each task, at even distances."""
    for task in tasks["tasks"].values():
        split = task.config.test_split if task.has_test_docs() else task.config.validation_split
        documents = task.dataset[split]
        n = min(limit, len(documents))
        task.dataset[split] = documents.select([index * len(documents) // n for index in range(n)])


def measure(side: str, study: Study, device: str, limit: int) -> dict[str, Any]:
    """Score all tasks; return seconds and documents of each, and the memory before and at the
    peak."""
    from coupled_adam_bench.evaluation.task_loading import load_tasks
    from coupled_adam_bench.evaluation.task_scores import run_tasks

    found: dict[str, Any] = {"tasks": {}, "documents": []}
    with load_tasks(study, data_id(study)) as loaded:
        for tasks in loaded.values() if limit else ():
            spread(tasks, limit)
        model = open_side(side, study, device)
        found["mb_before"] = peak_mb(device)
        for name, tasks in loaded.items():
            wall, cpu = time.perf_counter(), time.process_time()
            scored = run_tasks({name: tasks}, model, limit=None)
            seconds = {"wall_s": time.perf_counter() - wall, "cpu_s": time.process_time() - cpu}
            found["tasks"][name] = {"documents": len(scored.documents), **seconds}
            found["documents"] += [asdict(document) for document in scored.documents]
            print(f"{side}: {name}: {found['tasks'][name]}", file=sys.stderr, flush=True)
    return found | {"mb_peak": peak_mb(device)}


def compare(hf: dict[str, Any], ours: dict[str, Any]) -> dict[str, Any]:
    """Return by task how far apart the two are in speed and scores, and their memory."""
    clock = "cpu_s" if "cuda" not in ours["device"] else "wall_s"
    tasks = {}
    for name in [*ours["tasks"], "all"]:
        rows = {side: found["tasks"] for side, found in (("hf", hf), ("ours", ours))}
        chosen = list(ours["tasks"]) if name == "all" else [name]
        n = sum(rows["ours"][task]["documents"] for task in chosen)
        speed = {side: n / sum(row[task][clock] for task in chosen) for side, row in rows.items()}
        pairs = [
            (a, b)
            for a, b in zip(hf["documents"], ours["documents"], strict=True)
            if a["task"] in chosen
        ]
        scores = [
            (x, y)
            for a, b in pairs
            for x, y in zip(a["loglikelihoods"], b["loglikelihoods"], strict=True)
        ]
        tasks[name] = {
            "documents": n,
            "hf_per_s": speed["hf"],
            "ours_per_s": speed["ours"],
            "ratio": speed["ours"] / speed["hf"],
            "other_acc": sum(
                abs(a["metrics"]["acc"] - b["metrics"]["acc"]) > TOLERANCE for a, b in pairs
            ),
            "largest_difference": max(abs(x - y) for x, y in scores),
            "beyond_tolerance": sum(abs(x - y) > TOLERANCE for x, y in scores),
            "loglikelihoods": len(scores),
            "largest_loglikelihood": max(abs(x) for x, _ in scores),
        }
    memory = {
        f"{side}_{key}": found[key]
        for side, found in (("hf", hf), ("ours", ours))
        for key in _MEMORY
    }
    return {"clock": clock, "tasks": tasks, **memory}


_MEMORY = ("mb_before", "mb_peak")


def show(found: dict[str, Any]) -> None:
    print(
        f"| task | documents | lm-eval's hf, documents/{found['clock']} | ours | ratio | largest"
        " difference |"
    )
    print("|---|---|---|---|---|---|")
    for name, row in found["tasks"].items():
        speeds = f"{row['hf_per_s']:.3g} | {row['ours_per_s']:.3g} | {row['ratio']:.2f}"
        print(f"| {name} | {row['documents']} | {speeds} | {row['largest_difference']:.1e} |")
    for side, label in SIDES.items():
        before, peak = (found[f"{side}_{key}"] for key in _MEMORY)
        print(f"{label}: {before:.0f} MB before the first task, {peak:.0f} MB at the peak")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    given = os.environ.get("CAB_REAL_DATA")
    parser.add_argument("--data", type=Path, default=Path(given) if given else None)
    parser.add_argument("--tasks", nargs="+", default=PAPER_TASKS)
    parser.add_argument("--model", default="gpt2-4x256")
    parser.add_argument("--std", type=float, default=0.02, help="of the initial weights")
    parser.add_argument("--seq-len", type=int, default=1024)
    parser.add_argument("--batch-sequences", type=int, default=16)
    parser.add_argument("--limit", type=int, default=20, help="most documents of a task; 0: all")
    parser.add_argument("--precision", default="fp32", choices=("fp32", "bf16"))
    parser.add_argument("--device", default="cpu")
    parser.add_argument(
        "--keep-memory", action="store_true", help="set MALLOC_* as the jobs of a study do"
    )
    parser.add_argument("--out", type=Path, help="where to write the JSON, with all documents")
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.data is not None:
        arguments.data = arguments.data.resolve()
    study = make_study(arguments)
    if arguments.side:
        arguments.out.write_text(
            json.dumps(measure(arguments.side, study, arguments.device, arguments.limit))
        )
        return
    out = arguments.out and arguments.out.resolve()
    sides = {}
    environment = {name: value for name, value in os.environ.items() if name not in SETTINGS}
    environment |= SETTINGS if arguments.keep_memory else {}
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        write_model(study, arguments.std)
        for side in SIDES:
            command = [
                sys.executable,
                SCRIPT,
                *sys.argv[1:],
                "--side",
                side,
                "--out",
                f"{side}.json",
            ]
            command += ["--data", str(arguments.data)] if arguments.data else []
            subprocess.run(command, check=True, env=environment)
            sides[side] = json.loads(Path(f"{side}.json").read_text()) | {
                "device": arguments.device
            }
        found = compare(sides["hf"], sides["ours"])
        os.chdir("/")
    show(found)
    print(json.dumps(found))
    if out:
        out.write_text(
            json.dumps(found | {"documents": {side: sides[side]["documents"] for side in SIDES}})
        )


if __name__ == "__main__":
    main()
