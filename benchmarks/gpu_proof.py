"""Proves on a machine with a GPU, in three parts of at most nine minutes, that what is trained
there is right and fast.

It needs this repository, PyTorch and the few packages that docs/gpu.md names. Nothing is downloaded
or installed. Each check runs in a process of its own, which is killed at its time limit. After each
check the folder has PART.json, the table PART.md, and PART.log with all that the checks print. The
exit status is 1 if a check has failed or did not run.

    python benchmarks/gpu_proof.py --part right --out FOLDER
    python benchmarks/gpu_proof.py --part fast --out FOLDER --only reference training
"""

import argparse
import contextlib
import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
COMMAND = [sys.executable, str(Path(__file__).resolve())]
SECONDS = 540.0
"""For which a part runs at the longest."""
# The checks of each part in their order, with their limits in seconds, which add up to the part's.
CHECKS: dict[str, dict[str, float]] = {
    "right": {
        "kernels": 60,
        "loss": 70,
        "optimizers": 190,
        "stopping": 110,
        "deterministic": 50,
        "scoring": 60,
    },
    "fast": {
        "reference": 190,
        "training": 100,
        "profile": 60,
        "waits": 40,
        "optimizer": 30,
        "memory": 120,
    },
    "large": {"sizes": 300, "evaluation": 90},
}
NEEDED = ("torch", "numpy", "yaml", "safetensors", "tqdm", "pydantic", "pynvml")
_LEAST_SECONDS = 5.0  # in less time no check can start
_PATIENCE = 3.0  # a rehearsal has so many times the limits: its machine has no GPU, and other work


def run_check(part: str, name: str, out: Path, rehearse: bool) -> None:
    """Run one check in this process, and write its rows as lines of JSON into the file ``out``
    while it goes on."""
    from gpu_checks.common import set_up

    earlier = json.loads(os.environ.get("GPU_PROOF_ROWS", "{}"))
    check = getattr(importlib.import_module(f"gpu_checks.{part}"), name)
    with (
        out.open("a", encoding="utf-8") as lines,
        tempfile.TemporaryDirectory(prefix="gpu-proof-") as folder,
        set_up(rehearse, Path(folder), earlier) as at,
    ):
        for row in check(at):
            print(json.dumps(row.to_json()), file=lines, flush=True)


def outcome(
    part: str,
    name: str,
    limit: float,
    log: Path,
    known: dict[str, float],
    rehearse: bool,
    compiled: Path,
) -> dict[str, Any]:
    """Run one check in a process of its own, and return what came of it as a JSON value.

    Checks of a part share what is ``compiled``, and everything else that they write is deleted
    after them.
    """
    with tempfile.TemporaryDirectory(prefix="gpu-proof-") as folder:
        rows = Path(folder) / "rows"
        rows.touch()
        command = [*COMMAND, "--part", part, "--check", name, "--out", str(rows)]
        variables = os.environ | {
            "GPU_PROOF_ROWS": json.dumps(known),
            "HF_HUB_OFFLINE": "1",
            "TMPDIR": folder,
        }
        variables |= {
            f"{name}_CACHE_DIR": str(compiled / name) for name in ("TORCHINDUCTOR", "TRITON")
        }
        if rehearse:
            variables["TRITON_INTERPRET"] = "1"
        places = [
            str(ROOT / "src"),
            str(ROOT / "packages/coupled-adam/src"),
            os.environ.get("PYTHONPATH"),
        ]
        variables["PYTHONPATH"] = os.pathsep.join(filter(None, places))
        start = time.perf_counter()
        with log.open("a", encoding="utf-8") as output:
            print(f"== {part} {name}", file=output, flush=True)
            process = subprocess.Popen(
                command + (["--rehearse"] if rehearse else []),
                env=variables,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
            try:
                status: int | None = process.wait(limit)
            except subprocess.TimeoutExpired:
                status = None
            finally:  # also what the check itself has started
                kill_session_of(process.pid)
                process.wait()
        found = [json.loads(line) for line in rows.read_text(encoding="utf-8").splitlines()]
    judged = part == "right" or not rehearse  # of a rehearsal, no time and no memory
    if status is None:
        verdict = f"killed after {limit:.0f} s"
    elif status:
        verdict = f"broke with status {status}"
    elif judged and not all(row["passed"] for row in found):
        verdict = "failed"
    else:
        verdict = "passed" if judged else "rehearsed"
    return {
        "verdict": verdict,
        "seconds": round(time.perf_counter() - start, 1),
        "limit": limit,
        "rows": found,
    }


def kill_session_of(pid: int) -> None:
    """Kill the processes that share the session of a check."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def machine() -> dict[str, str]:
    """Return what runs the checks, asked of a process of its own, so that this one holds nothing of
    the GPU."""
    code = (
        "import json, platform, torch; gpu = torch.cuda.is_available();print(json.dumps({'torch':"
        " torch.__version__, 'cuda': str(torch.version.cuda), 'python': platform.python_version(),"
        " 'device': torch.cuda.get_device_name(0) if gpu else 'no GPU'}))"
    )
    answer = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    )
    return dict(json.loads(answer.stdout))


def table(part: str, report: dict[str, Any]) -> str:
    """Return the results as Markdown."""
    about = ", ".join(f"{name} {value}" for name, value in report["machine"].items())
    lines = [
        f"# gpu_proof, part {part}",
        "",
        f"{about}.",
        "",
        "| check | what | found | allowed | |",
        "|---|---|---|---|---|",
    ]
    for name, check in report["checks"].items():
        for row in check["rows"]:
            bounds = [
                f"{word} {row[key]:.4g}"
                for key, word in (("at_least", "≥"), ("at_most", "≤"))
                if row[key] is not None
            ]
            value = "-" if row["value"] is None else f"{row['value']:.4g}"
            mark = "" if not bounds else "yes" if row["passed"] else "**no**"
            lines.append(f"| {name} | {row['what']} | {value} | {' and '.join(bounds)} | {mark} |")
        lines.append(
            f"| {name} | | {check['seconds']} s | {check['limit']:.0f} s | {check['verdict']} |"
        )
    return "\n".join(lines) + "\n"


def write(path: Path, text: str) -> None:
    """Write a file whole: a run that is killed leaves the one before."""
    temporary = path.with_suffix(path.suffix + ".tmp")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)


def run_part(
    part: str, out: Path, chosen: list[str], rehearse: bool, seconds: float = SECONDS
) -> bool:
    """Run the checks of a part, write what is known after each, and tell whether all have
    passed."""
    with tempfile.TemporaryDirectory(prefix="gpu-proof-") as compiled:
        return _run_part(part, out, chosen, rehearse, seconds, Path(compiled))


def _run_part(
    part: str, out: Path, chosen: list[str], rehearse: bool, seconds: float, compiled: Path
) -> bool:
    begun = time.perf_counter()
    out.mkdir(parents=True, exist_ok=True)
    log = out / f"{part}.log"
    log.write_text("", encoding="utf-8")
    checks: dict[str, Any] = {}
    report = {"part": part, "machine": machine(), "rehearsal": rehearse, "checks": checks}
    for name in chosen:
        known = {
            row["what"]: row["value"]
            for check in checks.values()
            for row in check["rows"]
            if row["value"] is not None
        }
        limit = min(
            CHECKS[part][name] * (_PATIENCE if rehearse else 1),
            seconds - (time.perf_counter() - begun),
        )
        if limit < _LEAST_SECONDS:
            checks[name] = {
                "verdict": "not run: no time is left",
                "seconds": 0.0,
                "limit": CHECKS[part][name],
                "rows": [],
            }
        else:
            checks[name] = outcome(part, name, limit, log, known, rehearse, compiled)
        write(out / f"{part}.json", json.dumps(report, indent=1) + "\n")
        write(out / f"{part}.md", table(part, report))
        print(f"{part} {name}: {checks[name]['verdict']}, {checks[name]['seconds']} s", flush=True)
    print(table(part, report))
    return all(check["verdict"] in ("passed", "rehearsed") for check in checks.values())


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--part", choices=CHECKS, required=True)
    parser.add_argument("--out", type=Path, required=True, help="the folder of the results")
    parser.add_argument("--only", nargs="+", metavar="CHECK", help="only these checks of the part")
    parser.add_argument("--check", help=argparse.SUPPRESS)
    parser.add_argument("--rehearse", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    part = arguments.part
    if arguments.check:
        run_check(part, arguments.check, arguments.out, arguments.rehearse)
        return 0
    if missing := [name for name in NEEDED if find_spec(name) is None]:
        parser.error(f"missing packages: {', '.join(missing)}; docs/gpu.md says what to bring")
    if unknown := set(arguments.only or ()) - CHECKS[part].keys():
        parser.error(f"--only: {', '.join(unknown)}; part {part} has {', '.join(CHECKS[part])}")
    chosen = [name for name in CHECKS[part] if name in (arguments.only or CHECKS[part])]
    signal.signal(
        signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM)
    )  # the check that runs is killed then
    seconds = SECONDS * (_PATIENCE if arguments.rehearse else 1)
    return 0 if run_part(part, arguments.out, chosen, arguments.rehearse, seconds) else 1


if __name__ == "__main__":
    sys.exit(main())
