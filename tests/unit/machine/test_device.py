"""The driver and the GPUs are stand-ins; the sentences for machines without any are those that are
printed here."""

import platform

import pytest
import torch

from coupled_adam_bench.machine import device
from coupled_adam_bench.machine.device import check_gpus, pick_device

DRIVER = (
    "NVRM version: NVIDIA UNIX {}  {}.104.05  Sat Aug 19 01:15:15 UTC 2023\nGCC version:  gcc"
    " version 12.2.0\n"
)


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """Return a function that makes a machine of a driver, a build of torch and GPUs of one
    generation."""

    def make(
        driver: int | None,
        cuda: str | None = "13.0",
        gpus: int = 0,
        capability: tuple[int, int] = (9, 0),
    ) -> None:
        file = tmp_path / "version"
        if driver is not None:
            file.write_text(
                DRIVER.format(
                    "Open Kernel Module for x86_64" if driver > 600 else "x86_64 Kernel Module",
                    driver,
                )
            )
        monkeypatch.setattr(device, "_DRIVER", file)
        monkeypatch.setattr(torch.version, "cuda", cuda)
        monkeypatch.setattr(torch, "__version__", "2.13.0+cu130")
        monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
        monkeypatch.setattr(
            torch.cuda, "get_arch_list", lambda: ["sm_75", "sm_80", "sm_90a", "sm_120"]
        )
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "Tesla V100-SXM2-32GB")

    for name in ("CUDA_VISIBLE_DEVICES", "APPTAINER_CONTAINER", "SINGULARITY_CONTAINER"):
        monkeypatch.delenv(name, raising=False)
    return make


def test_gpus_that_can_be_used(machine):
    machine(580, gpus=8)
    check_gpus(8)
    assert pick_device("cuda") == pick_device("auto") == "cuda"
    machine(535, cuda="12.6", gpus=1, capability=(8, 0))
    check_gpus(1)


@pytest.mark.fault(
    "cluster",
    "torch can use a GPU, but no file names its driver (WSL2, gVisor), or an old one (NGC's forward"
    " compatibility)",
    "the GPU is used: the driver's files only explain why torch finds none",
)
@pytest.mark.parametrize("driver", [None, 535])
def test_torch_s_own_answer_counts_and_not_the_driver_s_file(driver, machine):
    machine(driver, cuda="13.0", gpus=2)
    check_gpus(2)
    assert pick_device("cuda") == pick_device("auto") == "cuda"
    with pytest.raises(
        ValueError, match=r"torch can use 2 here .*: ask for no more GPUs than there are"
    ):
        check_gpus(3)


@pytest.mark.parametrize(
    ("settings", "variable", "count", "expected"),
    [
        ({"driver": 580, "cuda": None}, None, 1, "a build for CPUs"),
        (
            {"driver": None},
            None,
            2,
            r"none here \(torch 2.13.0\+cu130, CUDA 13.0, driver None\): no driver",
        ),
        (
            {"driver": 535},
            None,
            1,
            r"driver 535.104.05\): CUDA 13.0 needs driver 580 .* torch==2.13.0 --index-url",
        ),
        ({"driver": 610}, ("APPTAINER_CONTAINER", "x"), 1, "start the container with --nv"),
        (
            {"driver": 580, "gpus": 2},
            ("CUDA_VISIBLE_DEVICES", "0,1"),
            8,
            "2 here .*='0,1'.*: ask for no more",
        ),
        (
            {"driver": 580},
            ("CUDA_VISIBLE_DEVICES", "0,0"),
            1,
            r"='0,0'\): CUDA_VISIBLE_DEVICES .* each GPU once",
        ),
        (
            {"driver": 580},
            ("CUDA_VISIBLE_DEVICES", "-1"),
            1,
            r"='-1'\): CUDA_VISIBLE_DEVICES names no GPU",
        ),
        (
            {"driver": 580, "gpus": 1, "capability": (7, 0)},
            None,
            1,
            "no kernels for Tesla V100-SXM2-32GB, so",
        ),
    ],
)
def test_what_is_wrong_with_gpus_is_said(settings, variable, count, expected, machine, monkeypatch):
    machine(**settings)
    if variable is not None:
        monkeypatch.setenv(*variable)
    with pytest.raises(
        ValueError, match=rf"^execution\.gpus: {count}, but torch can use .*{expected}"
    ) as raised:
        check_gpus(count)
    assert str(raised.value).endswith("With execution.gpus: 0 the study runs on the CPU")


def test_a_gpu_is_asked_for_where_there_is_none(machine):
    machine(None)
    assert pick_device("auto") == "cpu"
    with pytest.raises(ValueError, match=r"no driver"):
        pick_device("cuda")


@pytest.mark.parametrize(
    ("described", "name"),
    [
        (
            "flags\t\t: avx2 avx512f avx512_bf16\nmodel name\t: AMD EPYC\nmodel name\t: x",
            "AMD EPYC, AVX-512 with bf16",
        ),
        (
            "model name\t: Intel(R) Xeon(R) CPU @ 2.20GHz\nflags\t\t: fma avx2",
            "Intel(R) Xeon(R) CPU @ 2.20GHz, AVX2",
        ),
        ("processor\t: 0\nFeatures\t: asimd sve bf16", f"{platform.machine()}, SVE with bf16"),
        (None, platform.machine()),
    ],
)
def test_a_processor_is_named_with_its_vectors(described, name, tmp_path, monkeypatch):
    monkeypatch.setattr(device, "_PROCESSOR", tmp_path / "cpuinfo")
    if described is not None:
        device._PROCESSOR.write_text(described)
    assert device.processor() == name
