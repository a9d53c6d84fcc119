"""The models of each family on disk, and a list of word pairs."""

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # read when huggingface_hub is imported

from small_models import pairs_file as pairs_file
from small_models import saved as saved
