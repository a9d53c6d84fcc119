"""GPUs as their vendor's data sheets describe them."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Gpu:
    """A GPU: the largest dense rate of 16-bit matrix products in FLOP/s, bytes a second, and bytes of its memory."""

    peak_flops: float
    bandwidth: float
    memory: float


# The key is part of the name that the driver gives the device. Peaks are of bfloat16, of the V100 of float16.
GPUS = {
    "H200": Gpu(989e12, 4.8e12, 141e9),
    "H100": Gpu(989e12, 3.35e12, 80e9),  # SXM; the PCIe card has 756e12
    "A100": Gpu(312e12, 2.039e12, 80e9),  # the card of 40 GB has 1.555e12 bytes a second
    "L40S": Gpu(362e12, 0.864e12, 48e9),
    "V100": Gpu(125e12, 0.9e12, 32e9),
}
