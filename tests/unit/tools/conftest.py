from hub_fixtures import here, hub, small_gpt2  # noqa: F401 (fixtures)
