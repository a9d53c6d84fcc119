"""The device that a stage runs on."""


def pick_device(device: str) -> str:
    """Return ``cpu`` or ``cuda`` for ``auto``, ``cpu`` or ``cuda``; ``ValueError`` for a GPU where torch sees none."""
    import torch

    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("device: 'cuda' was asked for, but torch sees no GPU; use 'cpu' or 'auto'")
    return device
