"""`ReplayedInput`: standard input that several processes, one after another, read from its start."""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
from collections.abc import Iterator

_CHUNK = 1 << 16


class ReplayedInput:
    """Keeps what comes in on a file descriptor, for each process from its start.

    A file is read again from where it stood; of a pipe everything that came is kept.
    A terminal is left alone: nobody types for the second process what the first one read.
    """

    def __init__(self, descriptor: int = 0):
        self._descriptor = descriptor
        self._start = _position(descriptor)
        self._chunks: list[bytes] = []
        self._ended = False
        self._changed = threading.Condition()
        self._pipe = self._start is None and not os.isatty(descriptor)
        if self._pipe:
            threading.Thread(target=self._read, daemon=True).start()

    @property
    def stdin(self) -> int:
        """For the next process, as `subprocess.Popen` takes it."""
        if self._start is not None:
            os.lseek(self._descriptor, self._start, os.SEEK_SET)
        return subprocess.PIPE if self._pipe else self._descriptor

    @contextlib.contextmanager
    def feeding(self, process: subprocess.Popen) -> Iterator[None]:
        """Gives a process that was started with `stdin` its input until the block ends."""
        over = threading.Event()
        if self._pipe:
            threading.Thread(target=self._feed, args=(process, over), daemon=True).start()
        try:
            yield
        finally:
            over.set()
            with self._changed:
                self._changed.notify_all()

    def _read(self) -> None:
        while not self._ended:
            try:
                chunk = os.read(self._descriptor, _CHUNK)
            except OSError:
                chunk = b""
            with self._changed:
                self._chunks += [chunk] if chunk else []
                self._ended = not chunk
                self._changed.notify_all()

    def _feed(self, process: subprocess.Popen, over: threading.Event) -> None:
        assert process.stdin is not None
        given = 0
        with contextlib.suppress(OSError), process.stdin:  # a script need not read it all
            while chunks := self._after(given, over):
                given += len(chunks)
                process.stdin.write(b"".join(chunks))
                process.stdin.flush()

    def _after(self, given: int, over: threading.Event) -> list[bytes]:
        """What came after that many chunks, waiting for it; nothing at the end, or when over."""
        with self._changed:
            self._changed.wait_for(
                lambda: given < len(self._chunks) or self._ended or over.is_set()
            )
            return [] if over.is_set() else self._chunks[given:]


def _position(descriptor: int) -> int | None:
    """Where a file that can be read again stands; None for anything else."""
    try:
        return os.lseek(descriptor, 0, os.SEEK_CUR)
    except OSError:
        return None
