"""What a user means by a folder, and files that only stand for others."""

import os

import pytest

from embedding_geometry.user_files import check_no_pointer, list_folder


def test_hidden_files_and_folders_are_not_meant(tmp_path):
    for name in ("b/c.txt", "a.txt", ".x/y/z.txt", "b/._c.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "link").symlink_to(tmp_path / "b")
    found = list_folder(tmp_path)
    assert found.files == [tmp_path / name for name in ("a.txt", "b/c.txt", "link/c.txt")]
    assert found.hidden == [tmp_path / name for name in (".x", "b/._c.txt", "link/._c.txt")]
    # The folder itself may be hidden: whoever names it means it.
    assert list_folder(tmp_path / ".x").files == [tmp_path / ".x/y/z.txt"]
    with pytest.raises(FileNotFoundError):
        list_folder(tmp_path / "nowhere")


def test_a_pointer_of_git_lfs_is_known_by_its_first_line(tmp_path):
    file = tmp_path / "text.txt"
    file.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n")
    with pytest.raises(ValueError, match=r"text\.txt: a pointer of Git LFS .* `git lfs pull`"):
        check_no_pointer(file)
    file.write_text("It was version 1.\n")
    check_no_pointer(file)
    # What stands in a pipe can be read only once, by whoever opens it then.
    os.mkfifo(tmp_path / "pipe")
    check_no_pointer(tmp_path / "pipe")
