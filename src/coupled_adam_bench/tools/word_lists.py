"""Published lists of word pairs, taken from their public homes."""

import io
import tarfile
import zipfile
from hashlib import sha256
from pathlib import Path

from coupled_adam_bench.store.files import write_bytes
from coupled_adam_bench.study.catalogue.presets import Home, WordList
from embedding_geometry.transport import read_url

WORD_LIST_BYTES = 10**6
_ARCHIVE_BYTES = 2**24
_WORD_LIST_MINUTES = 2.0


def fetch_word_list(known: WordList, target: Path) -> None:
    """Take a word list from the first of its homes that has it; ``ValueError`` with all of them if
    none has."""
    problems = []
    for home in known.homes:
        try:
            content = _content(home)
            if (found := sha256(content).hexdigest()) != known.sha256:
                raise ValueError(f"the SHA-256 is {found}")
        except (
            Exception
        ) as error:  # many types: of servers, of the client that asks them, of archives
            problems.append(f"{home.url} ({type(error).__name__}: {error})")
        else:
            write_bytes(target, content)
            return
    raise ValueError(
        f"paths.word_similarity: {target.name} with the SHA-256 {known.sha256}: put it at {target}"
        " yourself; tried " + ", ".join(problems)
    )


def _content(home: Home) -> bytes:
    """Return the file of a home, without its header; ``ValueError`` for one that is larger than any
    list."""
    content = read_url(home.url, _WORD_LIST_MINUTES, _ARCHIVE_BYTES)
    if home.member is not None and home.url.endswith(".zip"):
        with zipfile.ZipFile(io.BytesIO(content)) as archive, archive.open(home.member) as stream:
            content = stream.read(WORD_LIST_BYTES + 1)
    elif home.member is not None:
        with tarfile.open(fileobj=io.BytesIO(content)) as files:
            member = files.extractfile(home.member)
            assert member is not None
            content = member.read(WORD_LIST_BYTES + 1)
    if len(content) > WORD_LIST_BYTES:
        raise ValueError(f"more than {WORD_LIST_BYTES:,} bytes")
    return content.partition(b"\n")[2] if home.has_header else content
