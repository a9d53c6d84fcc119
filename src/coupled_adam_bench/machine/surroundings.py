"""The environment variables around a run: which of them the bench sets, clears or heeds, and why.

Libraries read them when they are imported, so each process looks at them first.
``python -m coupled_adam_bench.machine.surroundings [NAME ...]`` prints the table, or what happens
to the variables that are named.
"""

import os
import sys
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal

LAUNCHER = "COUPLED_ADAM_BENCH_LAUNCHER"
"""Marks the processes that our launcher starts; its value is how many seconds they may go on after
its end."""
PAGE = "docs/surroundings.md"


@dataclass(frozen=True)
class Variables:
    """Variables that are treated alike."""

    names: str
    """Separated by spaces; ``*`` stands for any letters."""
    does: Literal["sets", "clears", "heeds"]
    what: str
    """What they decide, and for those that are set or heeded also why."""

    def matches(self, name: str) -> bool:
        """Tell whether the name of a variable is one of these."""
        return any(fnmatchcase(name, pattern) for pattern in self.names.split())


# The first line that matches a name counts, so what is heeded stands before its family, which is
# cleared. A variable that matches no line is left alone.
TABLE = (
    # ---- Python and the system ----
    Variables(
        "PYTHONSAFEPATH PYTHONUTF8",
        "sets", "own files are not taken for Python's modules, and text files are UTF-8",
    ),
    Variables(
        "PYTHONOPTIMIZE PYTHONWARNINGS PYTHONIOENCODING PYTHONINSPECT PYTHONDEVMODE "
        "PYTHONCOERCECLOCALE",
        "clears", "whether Python checks, warns, waits and can print",
    ),
    Variables("PYTHON*", "heeds", "where Python finds modules, such as own optimizers"),
    Variables("LANG LANGUAGE LC_* TZ", "heeds", "how logs show times and the system's messages"),
    Variables(
        "GIT_DIR GIT_WORK_TREE GIT_INDEX_FILE GIT_COMMON_DIR GIT_OBJECT_DIRECTORY GIT_NAMESPACE",
        "clears", "which repository git looks at",
    ),
    # ---- processes and clusters ----
    Variables(
        "RANK LOCAL_RANK NODE_RANK WORLD_SIZE LOCAL_WORLD_SIZE GROUP_RANK GROUP_WORLD_SIZE "
        "ROLE_RANK ROLE_WORLD_SIZE ROLE_NAME MASTER_ADDR MASTER_PORT TORCHELASTIC_* TORCHCOMM_* "
        "PET_* OMPI_COMM_WORLD_* MV2_COMM_WORLD_* PMI_RANK PMI_SIZE MPI_LOCALRANKID "
        f"MPI_LOCALNRANKS ACCELERATE_* FSDP_* PARALLELISM_CONFIG_* DEEPSPEED_* {LAUNCHER}",
        "clears", "which process of another launcher this would be",
    ),
    Variables("SQUEUE_* SACCT_* SCONTROL_* SLURM_TIME_FORMAT", "clears", "how SLURM answers"),
    Variables(
        "SLURM_* SBATCH_* SNAKEMAKE_*",
        "heeds", "the cluster, the account and the profile that you chose",
    ),
    Variables("NCCL_* GLOO_*", "heeds", "the network between processes"),
    # ---- GPUs and processors ----
    Variables("CUDA_VISIBLE_DEVICES", "heeds", "the GPUs that you chose, read as CUDA reads it"),
    Variables("CUBLAS_WORKSPACE_CONFIG", "sets", "`execution.deterministic` needs it"),
    Variables(
        "NVIDIA_TF32_OVERRIDE CUBLAS_* CUBLASLT_*", "clears", "how precisely a GPU multiplies"
    ),
    Variables(
        "ATEN_CPU_CAPABILITY OPENBLAS_CORETYPE MKL_CBWR MKL_ENABLE_INSTRUCTIONS "
        "MKL_DEBUG_CPU_TYPE ONEDNN_MAX_CPU_ISA DNNL_MAX_CPU_ISA NPY_DISABLE_CPU_FEATURES "
        "NPY_ENABLE_CPU_FEATURES",
        "heeds",
        "the instructions of a processor, which some need; sums round as on another one, so the "
        "device in `run.json` names them",
    ),
    Variables("ONEDNN_VERBOSE DNNL_VERBOSE", "heeds", "what is logged"),
    Variables("ONEDNN_* DNNL_*", "clears", "how precisely a processor multiplies"),
    Variables(
        "OMP_NUM_THREADS MKL_NUM_THREADS OPENBLAS_NUM_THREADS GOTO_NUM_THREADS "
        "NUMEXPR_NUM_THREADS VECLIB_MAXIMUM_THREADS",
        "sets", "a job has the study's threads; yours count for a command that you start yourself",
    ),
    Variables(
        "KMP_DUPLICATE_LIB_OK KMP_INIT_AT_FORK MKL_THREADING_LAYER MKL_SERVICE_FORCE_INTEL",
        "heeds", "which libraries are loaded, without which some installations do not work",
    ),
    Variables(
        "OMP_* KMP_* GOMP_* MKL_* OPENBLAS_* GOTO_* BLIS_* VECLIB_* NUMEXPR_*",
        "clears", "how many threads compute and on which processors",
    ),
    Variables(
        "MALLOC_MMAP_THRESHOLD_ MALLOC_TRIM_THRESHOLD_ MALLOC_TOP_PAD_",
        "sets", "jobs keep the memory that they free, which is faster",
    ),
    # ---- libraries ----
    Variables(
        "TORCH_HOME TORCH_EXTENSIONS_DIR TORCH_CUDA_ARCH_LIST TORCH_DEVICE_BACKEND_AUTOLOAD "
        "TORCHINDUCTOR_CACHE_DIR TORCHINDUCTOR_COMPILE_THREADS TORCHINDUCTOR_VEC_ISA_OK "
        "TRITON_CACHE_DIR TRITON_HOME TRITON_*_PATH PYTORCH_ALLOC_CONF PYTORCH_*_ALLOC_CONF "
        "PYTORCH_NVML_BASED_CUDA_CHECK PYTORCH_VERSION PYTORCH_HOME PYTORCH_BUILD_*",
        "heeds", "where torch compiles and keeps files, and its memory",
    ),
    Variables(
        "TORCH_LOGS TORCH_CPP_LOG_LEVEL TORCH_SHOW_CPP_STACKTRACES TORCH_DISTRIBUTED_DEBUG",
        "heeds", "what is logged",
    ),
    Variables(
        "TORCH_ELASTIC_SHUTDOWN_TIMEOUT",
        "sets", "a checkpoint is written before processes that were stopped are killed",
    ),
    Variables(
        "TORCH* PYTORCH_* TRITON_*",
        "clears", "how torch computes and waits, which `execution` decides",
    ),
    Variables(
        "NPY_PROMOTION_STATE PANDAS_* SCIPY_* SKLEARN_*",
        "clears", "how arrays and tables compute",
    ),
    Variables("TQDM_MININTERVAL", "sets", "logs have a line of progress a minute"),
    Variables("TQDM_*", "clears", "how bars of progress look, some of which end a job"),
    Variables("MPLCONFIGDIR", "heeds", "where matplotlib keeps its list of fonts"),
    Variables("MPLBACKEND MATPLOTLIBRC", "clears", "how matplotlib draws"),
    Variables(
        "HF_* HUGGINGFACE_* HUGGING_FACE_* XDG_* TRANSFORMERS_OFFLINE TRANSFORMERS_CACHE "
        "TRANSFORMERS_VERBOSITY DATASETS_VERBOSITY LMEVAL_LOG_LEVEL LM_HARNESS_CACHE_PATH",
        "heeds", "caches, tokens, servers, whether there is a network, and what is logged",
    ),
    Variables(
        "TRANSFORMERS_* USE_TORCH USE_TF USE_JAX USE_FLAX USE_TORCH_XLA USE_HUB_KERNELS "
        "FLASH_ATTENTION_* XLA_*",
        "clears", "with what transformers computes",
    ),
    Variables(
        "TOKENIZERS_PARALLELISM RAYON_NUM_THREADS DISABLE_MULTIPROC",
        "sets", "no library starts threads and processes in addition to the study's",
    ),
    Variables(
        "MLFLOW_RUN_ID MLFLOW_EXPERIMENT_ID MLFLOW_EXPERIMENT_NAME MLFLOW_RUN_CONTEXT "
        "MLFLOW_ACTIVE_MODEL_ID _MLFLOW_ACTIVE_MODEL_ID MLFLOW_NESTED_RUN MLFLOW_TAGS "
        "MLFLOW_TRACKING_DIR MLFLOW_REGISTRY_URI MLFLOW_ENABLE_ASYNC_LOGGING "
        "MLFLOW_TRUNCATE_LONG_VALUES",
        "clears", "which run of MLflow another program writes, and how",
    ),
    Variables("MLFLOW_*", "heeds", "your server, and how it is reached"),
)  # fmt: skip


def line_of(name: str) -> Variables | None:
    """Return the line of the table that decides about a variable; ``None`` if it is left alone."""
    return next((line for line in TABLE if line.matches(name)), None)


def clear(variables: MutableMapping[str, str] = os.environ) -> dict[str, str]:
    """Remove the variables that the table clears; return what each of them would have decided."""
    cleared = {}
    for name in sorted(variables):
        line = line_of(name)
        if line is not None and line.does == "clears":
            cleared[name] = line.what
            del variables[name]
    return cleared


def describe(cleared: Mapping[str, str]) -> str:
    """Return the sentence that tells the user what :func:`clear` has removed."""
    names: dict[str, list[str]] = {}
    for name, what in cleared.items():
        names.setdefault(what, []).append(name)
    parts = [f"{', '.join(alike)} ({what})" for what, alike in names.items()]
    return f"cleared from the environment of this run: {'; '.join(parts)}. See {PAGE}"


def explain(names: Sequence[str]) -> str:
    """Return what the bench does with each of these variables and what they decide, a line each;
    without names, the whole table."""
    if not names:
        return "\n".join(f"{line.names}: {line.does}: {line.what}" for line in TABLE)
    lines = []
    for name in names:
        line = line_of(name)
        lines.append(f"{name}: " + ("left alone" if line is None else f"{line.does}: {line.what}"))
    return "\n".join(lines)


def instructions(variables: Mapping[str, str] = os.environ) -> list[str]:
    """Return the variables, as ``NAME=value``, that choose a processor's instructions."""
    chosen = line_of("ATEN_CPU_CAPABILITY")
    return [
        f"{name}={value}" for name, value in sorted(variables.items()) if line_of(name) is chosen
    ]


def is_launched() -> bool:
    """Tell whether our launcher started this process, as one of several that train a cell."""
    return LAUNCHER in os.environ


if __name__ == "__main__":
    print(explain(sys.argv[1:]))
