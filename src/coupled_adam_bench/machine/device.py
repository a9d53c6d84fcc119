"""The device of a stage and the processors that it may use; torch is imported only where a GPU is looked for."""

import os
import platform
import re
from pathlib import Path

from coupled_adam_bench.machine.progress import say

MAX_THREADS_PER_PROCESSOR = 4
# Tokens whose logits are held at once. On a CPU, the products reach full speed and the logits stay in the cache (see
# docs/performance.md); on a GPU, the products occupy all multiprocessors.
LOGITS_CHUNK = {"cpu": 256, "cuda": 4096}


# The first version of NVIDIA's driver that runs programs of a major version of CUDA.
_LEAST_DRIVER = {12: 525, 13: 580}
_BUILDS_FOR_CUDA_12 = "https://download.pytorch.org/whl/cu126"  # up to PyTorch 2.14; the last that runs on a V100
_DRIVER = Path("/proc/driver/nvidia/version")
_PROCESSOR = Path("/proc/cpuinfo")
_VECTORS = {"avx512f": "AVX-512", "avx2": "AVX2", "sve": "SVE", "asimd": "NEON"}
"""The vectors of processors by the flag in ``/proc/cpuinfo``, the widest first."""


def pick_device(device: str) -> str:
    """Resolve ``auto`` to ``cuda`` or ``cpu``; raise ``ValueError`` for ``cuda`` if torch cannot use a GPU."""
    import torch

    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda":
        check_gpus(1)
    return device


def check_gpus(count: int) -> None:
    """Raise ``ValueError`` if torch cannot use ``count`` GPUs here; it says what is there, and what to do."""
    import torch

    driver = re.search(r"\b(\d+)\.[\d.]+", _DRIVER.read_text()) if _DRIVER.is_file() else None
    seen = torch.cuda.device_count() if torch.cuda.is_available() else 0
    older_build = f"or install a build for CUDA 12: pip install torch=={torch.__version__.partition('+')[0]} "
    older_build += f"--index-url {_BUILDS_FOR_CUDA_12}"
    if torch.version.cuda is None:
        cure = (
            "this torch is a build for CPUs, so install the default build for Linux (with conda, on a machine without "
            "a GPU: set CONDA_OVERRIDE_CUDA=13.0 before `conda env create`)"
        )
    elif driver is None:
        cure = "no driver of NVIDIA runs here, so start on a machine with GPUs"
    elif (needed := _LEAST_DRIVER.get(int(torch.version.cuda.partition(".")[0]), 0)) > int(driver[1]):
        cure = f"CUDA {torch.version.cuda} needs driver {needed} or newer, so update it, {older_build}"
    elif seen == 0 and os.environ.keys() & {"APPTAINER_CONTAINER", "SINGULARITY_CONTAINER"}:
        cure = "start the container with --nv"
    elif seen < count:
        cure = "ask for no more GPUs than there are; a container and CUDA_VISIBLE_DEVICES can hide some"
    elif old := [name for name in map(_too_old, range(seen)) if name]:
        cure = f"this build has no kernels for {old[0]}, so use another GPU, {older_build}"
    else:
        return
    found = f"torch {torch.__version__}, CUDA {torch.version.cuda}, driver {driver and driver[0]}"
    if (visible := os.environ.get("CUDA_VISIBLE_DEVICES")) is not None:
        found += f", CUDA_VISIBLE_DEVICES={visible!r}"
    usable = seen if 0 < seen < count else "none"
    raise ValueError(
        f"execution.gpus: {count}, but torch can use {usable} here ({found}): {cure}. With execution.gpus: 0 the study "
        "runs on the CPU"
    )


def _too_old(index: int) -> str | None:
    """Return the name of a GPU that is older than all for which this torch has kernels."""
    import torch

    major, minor = torch.cuda.get_device_capability(index)
    built_for = [int(arch.partition("_")[2].rstrip("af")) for arch in torch.cuda.get_arch_list()]
    return torch.cuda.get_device_name(index) if built_for and 10 * major + minor < min(built_for) else None


def processor() -> str:
    """Return the name of the processor and its vectors, which decide the order of sums and so how results round."""
    lines = re.findall(r"(.*\S)\s*: (.*)", _PROCESSOR.read_text() if _PROCESSOR.is_file() else "")
    known: dict[str, str] = dict(reversed(lines))  # of the first of all processors
    flags = set(known.get("flags", known.get("Features", "")).split())
    vectors = [text for flag, text in _VECTORS.items() if flag in flags][:1]
    bf16 = " with bf16" if flags & {"avx512_bf16", "amx_bf16", "bf16"} else ""
    return ", ".join([known.get("model name", platform.machine()), *vectors]) + bf16


def n_processors() -> int:
    """Return the number of processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def check_threads(setting: str, threads: int) -> None:
    """Compare a setting's number of threads with the processors that this process may use.

    More threads than processors are slower, so a line on stderr says so. Far more would overload the machine and raise
    ``ValueError``.
    """
    processors = n_processors()
    most = MAX_THREADS_PER_PROCESSOR * processors
    if threads > most:
        raise ValueError(
            f"{setting}: {threads}, but this process may use {processors} processors; at most {most} threads are "
            f"allowed, {processors} are the fastest; lower it, or start on a machine with more"
        )
    if threads > processors:
        say(f"{setting}: {threads} threads on {processors} processors are slower than {processors}")
