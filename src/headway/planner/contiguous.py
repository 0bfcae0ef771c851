"""The buddy allocator: one contiguous stretch for each request, as engines before PagedAttention had it."""

from __future__ import annotations

from bisect import insort


class Buddy:
    """Stretches of powers of two, split from and joined to twins of the same size.

    The pool is cut into the largest powers of two that fit into it.
    """

    def __init__(self, size: int) -> None:
        self._free: dict[int, list[int]] = {}
        self._base: list[tuple[int, int]] = []
        start = 0
        while size:
            part = 1 << (size.bit_length() - 1)
            self._free.setdefault(part, []).append(start)
            self._base.append((start, part))
            start, size = start + part, size - part

    def allocate(self, size: int) -> int | None:
        """Start of a stretch of `size` (a power of two), or None if nothing large enough is whole."""
        found = min((part for part, starts in self._free.items() if part >= size and starts), default=None)
        if found is None:
            return None
        start = self._free[found].pop(0)
        while found > size:
            found //= 2
            insort(self._free.setdefault(found, []), start + found)
        return start

    def free(self, start: int, size: int) -> None:
        """Give a stretch back and join it with its twin as often as possible."""
        base, largest = next((begin, part) for begin, part in self._base if begin <= start < begin + part)
        while size < largest:
            twin = base + ((start - base) ^ size)
            starts = self._free.setdefault(size, [])
            if twin not in starts:
                break
            starts.remove(twin)
            start, size = min(start, twin), size * 2
        insort(self._free.setdefault(size, []), start)
