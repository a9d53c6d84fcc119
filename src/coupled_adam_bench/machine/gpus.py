"""GPUs as their vendor's data sheets describe them."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Gpu:
    """A GPU: the largest dense rate of 16-bit matrix products in FLOP/s, bytes a second, and bytes
    of its memory."""

    peak_flops: float
    bandwidth: float
    memory: float


# By part of the name that the driver gives the device, of which the first that fits is taken. Peaks
# are of bfloat16, of the V100 of float16. The NVL and PCIe cards of a family are slower than those
# on an SXM board.
GPUS = {
    "GB200": Gpu(2500e12, 8e12, 186e9),
    "B200": Gpu(2250e12, 8e12, 180e9),
    "H200 NVL": Gpu(835e12, 4.8e12, 141e9),
    "GH200": Gpu(989e12, 4e12, 96e9),  # the card of 144 GB has 4.9e12 bytes a second
    "H200": Gpu(989e12, 4.8e12, 141e9),
    "H100 NVL": Gpu(835e12, 3.9e12, 94e9),
    "H100 PCIe": Gpu(756e12, 2e12, 80e9),
    "H100": Gpu(989e12, 3.35e12, 80e9),
    "A100-SXM4-40GB": Gpu(312e12, 1.555e12, 40e9),
    "A100-PCIE-40GB": Gpu(312e12, 1.555e12, 40e9),
    "A100": Gpu(312e12, 2.039e12, 80e9),
    "L40S": Gpu(362e12, 0.864e12, 48e9),
    "V100": Gpu(125e12, 0.9e12, 32e9),
}


def find_gpu(device_name: str) -> Gpu | None:
    """Return the GPU that a driver calls ``device_name``, such as ``NVIDIA H100 80GB HBM3``;
    ``None`` if unknown."""
    return next((gpu for key, gpu in GPUS.items() if key in device_name), None)
