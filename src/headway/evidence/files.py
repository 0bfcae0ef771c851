"""Files that anybody may have given: read in bounded pieces, and refused with the reason where they cannot be."""

from __future__ import annotations

import codecs
import contextlib
import gzip
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO

from headway.errors import InputError

CHUNK_BYTES = 1 << 20
MAX_LINE_BYTES = 1 << 18
"""Of a longer line only the beginning is kept."""
MAX_TEXT_BYTES = 64 << 20
_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


def read_text(path: Path, limit: int = MAX_TEXT_BYTES) -> str:
    """A whole file as text; bytes that are no UTF-8 are replaced.

    Raises:
        InputError: it cannot be read, is binary, or longer than `limit` bytes.
    """
    parts: list[bytes] = []
    size = 0
    for chunk in line_chunks(path):
        size += len(chunk)
        if size > limit:
            raise InputError(f"{path} is larger than {limit >> 20} MiB.", hint="Cut it to the part that matters.")
        parts.append(chunk)
    return b"".join(parts).decode("utf-8", errors="replace")


def line_chunks(path: Path) -> Iterator[bytes]:
    """A file's UTF-8 bytes in pieces that end where lines end; gzip and UTF-16 (with its mark) are decoded.

    Raises:
        InputError: it does not exist, cannot be read, or is binary.
    """
    with _opened(path) as file:
        yield from whole_lines(_pieces(path, file))


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[IO[bytes]]:
    try:
        if path.exists() and not path.is_file():
            raise InputError(f"{path} is not a file.")
        with path.open("rb") as file:
            magic = file.read(2)
            file.seek(0)
            if magic == b"\x1f\x8b":
                with gzip.open(file) as unpacked:
                    yield unpacked  # type: ignore[misc]
            else:
                yield file
    except (OSError, EOFError, zlib.error, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise InputError(f"Cannot read {path}: {reason}.") from None


def _pieces(path: Path, file: IO[bytes]) -> Iterator[bytes]:
    head = file.read(CHUNK_BYTES)
    if head[:2] in _UTF16:
        decoder = codecs.getincrementaldecoder("utf-16")(errors="replace")
        while head:
            yield decoder.decode(head).encode("utf-8", errors="replace")
            head = file.read(CHUNK_BYTES)
        return
    if b"\0" in head[:8192]:
        raise InputError(f"{path} is not text: it contains a NUL byte at position {head.index(bytes(1))}.")
    yield head.removeprefix(codecs.BOM_UTF8)
    while piece := file.read(CHUNK_BYTES):
        yield piece


def whole_lines(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """The same bytes, cut where lines end; lines longer than `MAX_LINE_BYTES` lose their end."""
    rest = b""
    for piece in pieces:
        end = piece.rfind(b"\n") + 1
        if end:
            yield rest + piece[:end]
            rest = piece[end : end + MAX_LINE_BYTES]
        elif len(rest) < MAX_LINE_BYTES:
            rest = (rest + piece)[:MAX_LINE_BYTES]
    if rest:
        yield rest


def text_lines(chunks: Iterable[bytes]) -> Iterator[str]:
    """Lines with their ends; bytes that are no UTF-8 are replaced."""
    for chunk in chunks:
        parts = chunk.decode("utf-8", errors="replace").split("\n")
        for part in parts[:-1]:
            yield part + "\n"
        if parts[-1]:
            yield parts[-1]
