import json
import math
import random
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from coupled_adam_bench.training.state import State

from coupled_adam_bench.training import monitor
from coupled_adam_bench.training.monitor import (
    EnergyMeter,
    SpikeMonitor,
    peak_flops,
    peak_memory_bytes,
)

CPU = torch.device("cpu")


def falling(steps, seed=0):
    noise = random.Random(seed)
    return [3 + 4 * math.exp(-step / 60) + noise.gauss(0, 0.05) for step in range(steps)]


@pytest.mark.parametrize("seed", range(5))
def test_a_falling_noisy_loss_has_no_spike(seed):
    assert SpikeMonitor().update(falling(2000, seed)) == []


def test_a_spike_does_not_hide_the_next_one():
    losses = falling(500)
    for step in (399, 400, 409):
        losses[step] += 1.0
    spikes = SpikeMonitor().update(losses)
    assert [spike["step"] for spike in spikes] == [400, 401, 410]
    assert (spikes[0]["loss"], spikes[0]["expected"]) == (losses[399], pytest.approx(3.0, abs=0.1))


def test_the_first_steps_and_non_finite_losses_are_no_spikes():
    assert SpikeMonitor().update([1.0, 50.0, 1.0]) == []
    assert SpikeMonitor().update([*falling(200), math.nan, math.inf]) == []


def test_it_goes_on_from_a_checkpoint_as_if_never_stopped():
    losses = falling(400)
    losses[350] += 3
    whole, first = SpikeMonitor(), SpikeMonitor()
    whole.update(losses)
    first.update(losses[:217])
    second = SpikeMonitor()
    second.restore(json.loads(json.dumps(first.to_json())))
    second.update(losses[217:])
    assert vars(second) == vars(whole)


def test_the_peak_of_a_cpu_is_unknown_and_that_of_a_gpu_goes_by_its_name(monkeypatch):
    assert peak_flops(CPU) is None
    peaks = {
        "NVIDIA H200": 989e12,
        "NVIDIA H200 NVL": 835e12,
        "NVIDIA GH200 480GB": 989e12,
        "NVIDIA B200": 2250e12,
        "NVIDIA H100 80GB HBM3": 989e12,
        "NVIDIA H100 PCIe": 756e12,
        "NVIDIA H100 NVL": 835e12,
        "NVIDIA GB200": 2500e12,
        "NVIDIA A100-SXM4-80GB": 312e12,
        "NVIDIA Unheard-of 1": None,
    }
    for name, peak in peaks.items():
        monkeypatch.setattr(monitor.torch.cuda, "get_device_name", lambda _device, name=name: name)
        assert peak_flops(torch.device("cuda")) == peak


def test_the_peak_memory_of_a_process_is_the_kernels():
    kilobytes = int(re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[1])
    assert peak_memory_bytes(CPU) == pytest.approx(kilobytes * 1024, rel=0.01)


def test_energy_is_known_where_a_driver_counts_it(monkeypatch):
    """The driver is a stand-in: no machine with a GPU has run this."""
    import pynvml

    assert math.isnan(EnergyMeter(CPU).joules())
    gpu = torch.device("cuda", 1)
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid=f"uuid-{device}")
    )
    counted = iter([5_000, 7_500, 7_500, 10_000])
    handles = []
    monkeypatch.setattr(pynvml, "nvmlInit", lambda: None)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByUUID", handles.append)
    monkeypatch.setattr(
        pynvml, "nvmlDeviceGetTotalEnergyConsumption", lambda _handle: next(counted)
    )
    meter = EnergyMeter(gpu)
    assert [meter.joules() for _ in range(3)] == [2.5, 0.0, 2.5]
    assert set(handles) == {"GPU-uuid-cuda:1"}


def test_energy_that_is_not_known_in_one_interval_is_not_known_of_the_run():
    state = State()
    state.add_energy(2.0)
    state.add_energy(3.5)
    assert state.joules == 5.5
    state.add_energy(math.nan)
    state.add_energy(1.0)
    assert state.joules is None
