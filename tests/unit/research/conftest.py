from hub_fixtures import files_study, small_gpt2  # noqa: F401 (fixtures)
