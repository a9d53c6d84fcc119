"""The GPUs that a process may use, as ``CUDA_VISIBLE_DEVICES`` or the driver names them; torch is
not loaded."""

import os
import re
import subprocess

VISIBLE = "CUDA_VISIBLE_DEVICES"


def named_gpus(value: str) -> list[str]:
    """Return the GPUs that a value of ``CUDA_VISIBLE_DEVICES`` names, as CUDA reads it.

    They are numbers, or ``GPU-...``, or ``MIG-...``. The list ends before the first entry of
    another kind, such as ``-1`` or ``NoDevFiles``. If it names a GPU twice, CUDA takes none of it.
    Source: CUDA C++ Programming Guide, "Environment Variables";
    ``torch.cuda._parse_visible_devices`` does the same.
    """
    entries = [entry.strip() for entry in value.split(",")]
    kind = next((kind for kind in ("GPU-", "MIG-") if entries[0].startswith(kind)), None)
    names = []
    for entry in entries:
        number = re.match(r"\+?(\d+)", entry)  # "1gpu" is GPU 1 too
        if kind is None and number is not None:
            names.append(str(int(number[1])))
        elif kind is not None and entry.startswith(kind):
            names.append(entry)
        else:
            break
    return names if len({*names}) == len(names) else []


def visible_gpus() -> list[str]:
    """Return the GPUs that this process may use, as ``CUDA_VISIBLE_DEVICES`` names them; torch is
    not loaded."""
    if VISIBLE in os.environ:
        return named_gpus(os.environ[VISIBLE])
    try:
        listed = subprocess.run(
            ["nvidia-smi", "-L"], capture_output=True, text=True, timeout=60, check=True
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    gpus = [line for line in listed.splitlines() if line.startswith("GPU ")]
    return [str(index) for index in range(len(gpus))]
