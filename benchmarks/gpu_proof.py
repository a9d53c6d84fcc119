"""Proves on a machine with a GPU that what is trained there is right, and records how fast it is.

It needs this repository, PyTorch and the few packages that docs/gpu.md names. Nothing is downloaded
or installed. Each check runs in a process of its own, which is killed at its time limit. Those of
``right`` run side by side, and all others one after the other, in the order of their worth until
the minutes are over; the same command goes on with those that have not passed.

    python benchmarks/gpu_proof.py --minutes 22
    python benchmarks/gpu_proof.py --part fast --only training profile
    python benchmarks/gpu_proof.py --references    # on any machine, beforehand

The folder results/gpu_proof then has PART.json, the table PART.md, and PART.log with all that the
checks print; what ``plan`` reads is in gpu_speed.csv. The first run on a card freezes its speeds in
frozen.json, and later runs must come near. The exit status is 1 if a check has failed or did not
run.
"""

import argparse
import contextlib
import csv
import importlib
import io
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).resolve().parents[1]
COMMAND = [sys.executable, str(Path(__file__).resolve())]
MINUTES = 22.0
"""For which all checks run at the longest."""
# The checks of each part in the order of their worth, with their limits in seconds.
CHECKS: dict[str, dict[str, float]] = {
    "right": {
        "kernels": 90,
        "loss": 90,
        "stopping": 240,
        "scoring": 90,
        "deterministic": 90,
        "optimizers": 300,
    },
    "fast": {
        "training": 100,
        "memory": 120,
        "profile": 60,
        "waits": 40,
        "optimizer": 30,
        "head": 60,
        "reference": 190,
    },
    "large": {"sizes": 300, "evaluation": 90},
}
TOGETHER = ("right",)
"""Parts whose checks run side by side on the one card: none of their numbers is a speed, and all of
them fit its memory."""
OUT = Path("results/gpu_proof")
REFERENCES, FROZEN, SPEEDS = "references.json", "frozen.json", "gpu_speed.csv"
PASSED = ("passed", "rehearsed")
LEAST_TORCH = (2, 9)
_LEAST_SECONDS = 5.0  # in less time no check can start
_POLL_SECONDS = 0.05
_PATIENCE = 3.0  # a rehearsal has so many times the limits: its machine has no GPU, and other work


def run_check(part: str, name: str, out: Path, rehearse: bool) -> None:
    """Run one check in this process, and write its rows as lines of JSON into the file ``out``
    while it goes on."""
    from gpu_checks.common import set_up

    given = json.loads(os.environ.get("GPU_PROOF_GIVEN", "{}"))
    known, frozen = given.get("known", {}), given.get("frozen", {})
    references = Path(given["references"]) if "references" in given else None
    check = getattr(importlib.import_module(f"gpu_checks.{part}"), name)
    with (
        out.open("a", encoding="utf-8") as lines,
        tempfile.TemporaryDirectory(prefix="gpu-proof-") as folder,
        set_up(rehearse, Path(folder), known, references) as at,
    ):
        for row in check(at):
            print(json.dumps(row.beside(frozen).to_json()), file=lines, flush=True)


@dataclass
class Running:
    """A check that runs in a process of its own."""

    name: str
    limit: float
    """The seconds after which it is killed."""
    folder: tempfile.TemporaryDirectory[str]
    """All that it writes, which is deleted after it."""
    process: subprocess.Popen[bytes]
    output: IO[bytes]
    begun: float

    @property
    def rows(self) -> Path:
        """The file of its rows."""
        return Path(self.folder.name) / "rows"

    @property
    def has_ended(self) -> bool:
        """Whether it has ended by itself, or is due to be killed."""
        is_late = time.perf_counter() - self.begun > self.limit
        return is_late or self.process.poll() is not None

    def end(self, log: Path) -> int | None:
        """Kill what still runs of it, add what it has printed to the log, and return its status,
        None if it was killed."""
        status = self.process.poll()
        kill_session_of(self.process.pid)  # also what the check itself has started
        self.process.wait()
        self.output.close()
        printed = Path(self.output.name).read_bytes()
        with log.open("ab") as lines:
            lines.write(f"== {self.name}\n".encode() + printed)
        return status


def start(
    part: str, name: str, limit: float, given: dict[str, Any], rehearse: bool, compiled: Path
) -> Running:
    """Start one check.

    Checks of a part share what is ``compiled``. ``given`` is what the check is told: numbers of
    earlier ones, frozen speeds, and the file of references.
    """
    folder = tempfile.TemporaryDirectory(prefix="gpu-proof-")
    rows = Path(folder.name) / "rows"
    rows.touch()
    command = [*COMMAND, "--part", part, "--check", name, "--out", str(rows)]
    variables = environment(folder.name, compiled, rehearse)
    variables["GPU_PROOF_GIVEN"] = json.dumps(given)
    output = (Path(folder.name) / "output").open("wb")
    begun = time.perf_counter()
    process = subprocess.Popen(
        command + (["--rehearse"] if rehearse else []),
        env=variables,
        stdout=output,
        stderr=output,
        start_new_session=True,
    )
    return Running(name, limit, folder, process, output, begun)


def outcome(part: str, check: Running, log: Path, rehearse: bool) -> dict[str, Any]:
    """End a check, and return what came of it as a JSON value."""
    seconds = time.perf_counter() - check.begun
    status = check.end(log)
    found = [json.loads(line) for line in check.rows.read_text(encoding="utf-8").splitlines()]
    check.folder.cleanup()
    judged = part == "right" or not rehearse  # of a rehearsal, no time and no memory
    if status is None:
        verdict = f"killed after {check.limit:.0f} s"
    elif status:
        verdict = f"broke with status {status}"
    elif judged and not all(row["passed"] for row in found):
        verdict = "failed"
    else:
        verdict = "passed" if judged else "rehearsed"
    return {
        "verdict": verdict,
        "seconds": round(seconds, 1),
        "limit": check.limit,
        "rows": found,
    }


def kill_session_of(pid: int) -> None:
    """Kill the processes that share the session of a check."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def environment(folder: str, compiled: Path, rehearse: bool) -> dict[str, str]:
    """Return the variables of a check's process: it finds this tree, and writes into ``folder``."""
    variables = os.environ | {"HF_HUB_OFFLINE": "1", "TMPDIR": folder}
    for name in ("TORCHINDUCTOR", "TRITON"):
        variables[f"{name}_CACHE_DIR"] = str(compiled / name)
    if rehearse:
        variables["TRITON_INTERPRET"] = "1"
    packages = [ROOT / "packages" / name / "src" for name in ("coupled-adam", "embedding-geometry")]
    places = [str(place) for place in (ROOT / "src", *packages, ROOT / "benchmarks")]
    given = os.environ.get("PYTHONPATH")
    variables["PYTHONPATH"] = os.pathsep.join([*places, given] if given else places)
    return variables


MACHINE = """
import importlib, json, platform
import torch
for part in ("right", "fast", "large"):
    importlib.import_module(f"gpu_checks.{part}")
gpu = torch.cuda.is_available()
device = torch.cuda.get_device_name(0) if gpu else "no GPU"
about = {"torch": torch.__version__, "cuda": str(torch.version.cuda)}
print(json.dumps(about | {"python": platform.python_version(), "device": device}))
"""


def machine() -> dict[str, str]:
    """Return what runs the checks, asked of a process of its own, so that this one holds nothing of
    the GPU.

    That process imports what the checks import. Raises a ``ValueError`` that says what it lacks.
    """
    with tempfile.TemporaryDirectory(prefix="gpu-proof-") as folder:
        answer = subprocess.run(
            [sys.executable, "-c", MACHINE],
            env=environment(folder, Path(folder), False),
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
    if answer.returncode:
        last = answer.stderr.strip().splitlines()[-1:] or ["no word"]
        raise ValueError(
            f"the checks cannot be imported: {last[0]}; docs/gpu.md says what to bring"
        )
    about = dict(json.loads(answer.stdout.splitlines()[-1]))
    version = tuple(int(number) for number in about["torch"].split("+")[0].split(".")[:2])
    if version < LEAST_TORCH:
        least = ".".join(map(str, LEAST_TORCH))
        raise ValueError(f"PyTorch is {about['torch']}; bring {least} or newer (docs/gpu.md)")
    return about


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
    part: str,
    out: Path,
    chosen: list[str],
    rehearse: bool,
    seconds: float,
    again: bool = False,
) -> bool:
    """Run the checks of a part, write what is known after each, and tell whether all have passed.

    Those that passed on this machine before are kept, unless they shall run ``again``.
    """
    begun = time.perf_counter()
    out.mkdir(parents=True, exist_ok=True)
    log = out / f"{part}.log"
    about = machine()
    report: dict[str, Any] = {"part": part, "machine": about, "rehearsal": rehearse}
    checks = {} if again else kept_checks(out / f"{part}.json", report)
    waiting = [name for name in chosen if name not in checks]
    for name in chosen:
        if name in checks:
            print(f"{part} {name}: passed before", flush=True)
    n_together = max(1, len(waiting)) if part in TOGETHER else 1
    running: list[Running] = []
    with tempfile.TemporaryDirectory(prefix="gpu-proof-") as compiled:
        try:
            while waiting or running:
                ended: str | None = None
                left = seconds - (time.perf_counter() - begun)
                can_start = bool(waiting) and len(running) < n_together
                done = [check for check in running if check.has_ended]
                if can_start and left < _LEAST_SECONDS:
                    ended = waiting.pop(0)
                    not_run = {"verdict": "not run: no time is left", "seconds": 0.0, "rows": []}
                    checks[ended] = not_run | {"limit": CHECKS[part][ended]}
                elif can_start:
                    name = waiting.pop(0)
                    given = {
                        "known": known_values(checks),
                        "frozen": frozen_values(out, about["device"]).get(name, {}),
                        "references": str((out / REFERENCES).resolve()),
                    }
                    limit = CHECKS[part][name] * (_PATIENCE if rehearse else 1)
                    allowed = min(limit, left)
                    running.append(start(part, name, allowed, given, rehearse, Path(compiled)))
                elif done:
                    running.remove(done[0])
                    ended = done[0].name
                    checks[ended] = outcome(part, done[0], log, rehearse)
                else:
                    time.sleep(_POLL_SECONDS)
                if ended is not None:
                    in_order = [name for name in CHECKS[part] if name in checks]
                    report["checks"] = {name: checks[name] for name in in_order}
                    _keep(part, ended, report, out)
        finally:
            for check in running:
                check.end(log)
    report["checks"] = {name: checks[name] for name in CHECKS[part] if name in checks}
    print(table(part, report))
    return all(checks[name]["verdict"] in PASSED for name in chosen)


def _keep(part: str, name: str, report: dict[str, Any], out: Path) -> None:
    """Write what is known after a check, since the next one may end the machine, and say what came
    of it."""
    write(out / f"{part}.json", json.dumps(report, indent=1) + "\n")
    write(out / f"{part}.md", table(part, report))
    check = report["checks"][name]
    if not report["rehearsal"]:
        freeze(out, report["machine"]["device"], name, check)
    print(f"{part} {name}: {check['verdict']}, {check['seconds']} s", flush=True)


def kept_checks(path: Path, report: dict[str, Any]) -> dict[str, Any]:
    """Return the checks that passed in an earlier run on the same machine, from its file."""
    if not path.exists():
        return {}
    earlier = json.loads(path.read_text(encoding="utf-8"))
    if any(earlier[key] != value for key, value in report.items()):
        return {}
    return {name: each for name, each in earlier["checks"].items() if each["verdict"] in PASSED}


def known_values(checks: dict[str, Any]) -> dict[str, float]:
    """Return the numbers that the checks have found, by what they are of."""
    rows = [row for check in checks.values() for row in check["rows"]]
    return {row["what"]: row["value"] for row in rows if row["value"] is not None}


def frozen_values(out: Path, device: str) -> dict[str, dict[str, float]]:
    """Return by check the speeds that the first run on a kind of card has recorded."""
    path = out / FROZEN
    if not path.exists():
        return {}
    return dict(json.loads(path.read_text(encoding="utf-8")).get(device, {}))


def freeze(out: Path, device: str, name: str, check: dict[str, Any]) -> None:
    """Write what a check has recorded: as the bounds of later runs, and its steps for ``plan``."""
    if check["verdict"] not in PASSED:
        return
    recorded = [row for row in check["rows"] if row.get("is_recorded")]
    path = out / FROZEN
    everything = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    of_device = everything.setdefault(device, {})
    if recorded and name not in of_device:
        of_device[name] = {row["what"]: row["value"] for row in recorded}
        write(path, json.dumps(everything, indent=1) + "\n")
    lines = [row["log"] for row in check["rows"] if row.get("log")]
    if lines:
        write_speeds(out / SPEEDS, lines)


def write_speeds(path: Path, lines: list[dict[str, Any]]) -> None:
    """Add lines to the file that ``plan`` reads; each takes the place of that of the same card and
    model."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    if path.exists():
        with path.open(newline="", encoding="utf-8") as file:
            found = {(line["card"], line["about"]): line for line in csv.DictReader(file)}
    found |= {(line["card"], line["about"]): line for line in lines}
    text = io.StringIO()
    writer = csv.DictWriter(text, list(lines[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(found.values())
    write(path, text.getvalue())


REFERENCE = """
import sys
from pathlib import Path
import torch
from gpu_checks import common, right
place, folder = map(Path, sys.argv[1:])
right.make_references(common.At(torch.device("cpu"), folder, references=place))
"""


def make_references(out: Path) -> None:
    """Compute on this machine's CPU what ``optimizers`` compares with."""
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="gpu-proof-") as folder:
        words = [sys.executable, "-c", REFERENCE, str((out / REFERENCES).resolve()), folder]
        subprocess.run(words, env=environment(folder, Path(folder), False), check=True)


def longest(part: str) -> float:
    """Return the seconds that a part takes at the longest."""
    limits = CHECKS[part].values()
    return max(limits) if part in TOGETHER else sum(limits)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--part", choices=CHECKS, nargs="+", default=list(CHECKS))
    parser.add_argument("--out", type=Path, default=OUT, help="the folder of the results")
    parser.add_argument("--minutes", type=float, default=MINUTES, help="for all checks together")
    parser.add_argument("--only", nargs="+", metavar="CHECK", help="only these checks")
    parser.add_argument("--again", action="store_true", help="also what has passed before")
    parser.add_argument("--references", action="store_true", help="what a CPU can do beforehand")
    parser.add_argument("--check", help=argparse.SUPPRESS)
    parser.add_argument("--rehearse", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.check:
        run_check(arguments.part[0], arguments.check, arguments.out, arguments.rehearse)
        return 0
    if arguments.references:
        make_references(arguments.out)
        return 0
    every = [name for part in arguments.part for name in CHECKS[part]]
    unknown = set(arguments.only or ()) - set(every)
    if unknown:
        parser.error(f"--only: {', '.join(sorted(unknown))}; there are {', '.join(every)}")
    # The check that runs is killed then.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    minutes = arguments.minutes * (_PATIENCE if arguments.rehearse else 1)
    end = time.perf_counter() + 60 * minutes
    passed = True
    for part in arguments.part:
        chosen = [name for name in CHECKS[part] if name in (arguments.only or every)]
        left = end - time.perf_counter()
        try:
            passed &= run_part(
                part, arguments.out, chosen, arguments.rehearse, left, arguments.again
            )
        except ValueError as error:
            parser.error(str(error))
    if not passed:
        print("Start the same command again: it goes on with what has not passed.")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
