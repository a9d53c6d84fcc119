"""The device of a stage and the processors that it may use; torch is imported only where a GPU is
looked for."""

import os
import platform
import re
from pathlib import Path

from coupled_adam_bench.machine.progress import say
from coupled_adam_bench.machine.surroundings import instructions
from coupled_adam_bench.machine.visible_gpus import VISIBLE, named_gpus

MAX_THREADS_PER_PROCESSOR = 4
# Tokens whose logits are held at once. On a CPU, the products reach full speed and the logits stay
# in the cache (see docs/gpu.md); on a GPU, the products occupy all multiprocessors.
LOGITS_CHUNK = {"cpu": 256, "cuda": 4096}


# The first version of NVIDIA's driver that runs programs of a major version of CUDA.
_LEAST_DRIVER = {"12": 525, "13": 580}
_BUILDS_FOR_CUDA_12 = (  # up to PyTorch 2.14; the last that runs on a V100
    "https://download.pytorch.org/whl/cu126"
)
_DRIVER = Path("/proc/driver/nvidia/version")
_PROCESSOR = Path("/proc/cpuinfo")
_VECTORS = {"avx512f": "AVX-512", "avx2": "AVX2", "sve": "SVE", "asimd": "NEON"}
"""The vectors of processors by the flag in ``/proc/cpuinfo``, the widest first."""
_BF16 = {"avx512_bf16", "amx_bf16", "bf16"}
"""The flags of processors with products in bfloat16."""


def pick_device(device: str) -> str:
    """Resolve ``auto`` to ``cuda`` or ``cpu``; raise ``ValueError`` for ``cuda`` if torch cannot
    use a GPU."""
    import torch

    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda":
        check_gpus(1)
    return device


def check_gpus(count: int) -> None:
    """Raise ``ValueError`` if torch cannot use ``count`` GPUs here; it says what is there, and what
    to do.

    What the driver's files say explains a failure of torch and never decides: they are not there
    under WSL2 or gVisor, and with CUDA's forward compatibility an older driver is good enough.
    """
    import torch

    seen = torch.cuda.device_count() if torch.cuda.is_available() else 0
    old = next(filter(None, map(_too_old, range(seen))), None)
    if seen >= count and old is None:
        return
    driver = _driver()
    found = f"torch {torch.__version__}, CUDA {torch.version.cuda}, driver {driver}"
    visible = os.environ.get(VISIBLE)
    if visible is not None:
        found += f", {VISIBLE}={visible!r}"
    usable = seen if 0 < seen < count else "none"
    raise ValueError(
        f"execution.gpus: {count}, but torch can use {usable} here ({found}):"
        f" {_cure(seen, old, driver)}. With execution.gpus: 0 the study runs on the CPU"
    )


def _driver() -> str | None:
    """Return the version of NVIDIA's driver, ``None`` where no file has it."""
    found = re.search(r"\b\d+\.[\d.]+", _DRIVER.read_text()) if _DRIVER.is_file() else None
    return found[0] if found else None


def _cure(seen: int, old: str | None, driver: str | None) -> str:
    """Return why torch sees too few GPUs or one that is too ``old``, and what to do."""
    import torch

    visible = os.environ.get(VISIBLE, "")
    older_build = (
        f"or install a build for CUDA 12: pip install torch=={torch.__version__.partition('+')[0]} "
    )
    older_build += f"--index-url {_BUILDS_FOR_CUDA_12}"
    # The first reason that holds is the answer, so each may rely on those above it not holding.
    if old is not None:
        return f"this build has no kernels for {old}, so use another GPU, {older_build}"
    if torch.version.cuda is None and seen == 0:
        return (
            "this torch is a build for CPUs, so install the default build for Linux (with conda, on"
            " a machine without a GPU: set CONDA_OVERRIDE_CUDA=13.0 before `conda env create`)"
        )
    if visible and not named_gpus(visible):
        return (
            f"{VISIBLE} names no GPU that CUDA accepts, or one twice; name each GPU once, or"
            " unset it"
        )
    if seen == 0 and driver is None:
        return "no driver of NVIDIA is to be seen here, so start on a machine with GPUs"
    # A version of CUDA that is newer than those listed has no least driver here, so none is blamed.
    major = (torch.version.cuda or "").partition(".")[0]
    needed = _LEAST_DRIVER.get(major, 0)
    if seen == 0 and needed > int((driver or "0").partition(".")[0]):
        return (
            f"CUDA {torch.version.cuda} needs driver {needed} or newer, so update it, {older_build}"
        )
    if seen == 0 and os.environ.keys() & {"APPTAINER_CONTAINER", "SINGULARITY_CONTAINER"}:
        return "start the container with --nv"
    return f"ask for no more GPUs than there are; a container and {VISIBLE} can hide some"


def _too_old(index: int) -> str | None:
    """Return the name of a GPU that is older than all for which this torch has kernels."""
    import torch

    major, minor = torch.cuda.get_device_capability(index)
    built_for = [int(arch.partition("_")[2].rstrip("af")) for arch in torch.cuda.get_arch_list()]
    return (
        torch.cuda.get_device_name(index)
        if built_for and 10 * major + minor < min(built_for)
        else None
    )


def _properties() -> tuple[dict[str, str], set[str]]:
    """Return what the system says of the first of all processors, and its flags; nothing where it
    is not Linux."""
    lines = re.findall(r"(.*\S)\s*: (.*)", _PROCESSOR.read_text() if _PROCESSOR.is_file() else "")
    known: dict[str, str] = dict(reversed(lines))
    return known, set(known.get("flags", known.get("Features", "")).split())


def lacks_bf16() -> bool:
    """Tell whether torch is many times as slow in bfloat16 as in float32 on this processor.

    So it is where it is known to have neither such products nor AVX-512, with which oneDNN replaces
    them.
    """
    flags = _properties()[1]
    return bool(flags) and not flags & {*_BF16, "avx512f"}


def processor() -> str:
    """Return the name of the processor and its vectors, which decide the order of sums and so how
    results round.

    Variables of the environment that choose among its instructions do so too, so they follow the
    name.
    """
    known, flags = _properties()
    vectors = [text for flag, text in _VECTORS.items() if flag in flags][:1]
    bf16 = " with bf16" if flags & _BF16 else ""
    name = ", ".join([known.get("model name", platform.machine()), *vectors]) + bf16
    return ", ".join([name, *instructions()])


def n_processors() -> int:
    """Return the number of processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def check_threads(setting: str, threads: int) -> None:
    """Compare a setting's number of threads with the processors that this process may use.

    More threads than processors are slower, so a line on stderr says so. Far more would overload
    the machine and raise ``ValueError``.
    """
    processors = n_processors()
    most = MAX_THREADS_PER_PROCESSOR * processors
    if threads > most:
        raise ValueError(
            f"{setting}: {threads}, but this process may use {processors} processors; at most"
            f" {most} threads are allowed, {processors} are the fastest; lower it, or start on a"
            " machine with more"
        )
    if threads > processors:
        say(f"{setting}: {threads} threads on {processors} processors are slower than {processors}")
