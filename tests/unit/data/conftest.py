import pytest
from hub_fixtures import SAMPLE, files_study, here, hub, small_gpt2  # noqa: F401 (fixtures)


@pytest.fixture(scope="session")
def sample() -> str:
    """Text with what tokenizers treat in different ways."""
    return SAMPLE
