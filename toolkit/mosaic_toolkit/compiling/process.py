"""`WorkerProcess`: the compile worker as its user sees it, with limits of time and memory."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from ..child import ending, importing_as_here

_POLL_SECONDS = 0.05


@dataclasses.dataclass(frozen=True)
class Ending:
    """How a worker came to answer no more, or that it answered.

    Attributes:
      kind: ``answered``, ``died``, ``timeout`` or ``memory``.
      said: what it and its compilers wrote to standard error meanwhile.
      status: how it died: a signal's name or ``exit N``.
      peak_bytes: the most memory that it was seen to use.
    """

    kind: str
    said: str
    status: str = ""
    peak_bytes: int = 0


class WorkerProcess:
    """A process that compiles one request at a time; a context manager that ends it."""

    def __init__(self, environment: Mapping[str, str]):
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 (closed by __exit__)
        self._process = subprocess.Popen(
            [sys.executable, "-m", f"{__package__}.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=importing_as_here(environment),
            start_new_session=True,  # what it starts ends with it, and Ctrl-C is ours alone
        )

    def __enter__(self) -> WorkerProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        for stream in (self._process.stdin, self._process.stdout, self._log):
            with contextlib.suppress(OSError):
                stream.close()  # type: ignore[union-attr]

    @property
    def alive(self) -> bool:
        """Whether it can take another request."""
        return self._process.poll() is None

    def serve(self, directory: Path, *, timeout_s: float, memory_bytes: int) -> Ending:
        """Has one request served; the worker is ended where it goes over a limit.

        Args:
          directory: of the request, see `worker`.
          timeout_s: seconds from now.
          memory_bytes: of resident memory, the compiler's own processes included.
        """
        start, peak = self._position(), 0
        deadline = time.monotonic() + timeout_s
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(f"{directory}\n".encode())  # type: ignore[union-attr]
            self._process.stdin.flush()  # type: ignore[union-attr]
        ready = [self._process.stdout]
        while not select.select(ready, [], [], _POLL_SECONDS)[0]:  # type: ignore[type-var]
            peak = max(peak, resident_bytes(self._process.pid))
            kind = "memory" if peak > memory_bytes else "timeout"
            if kind == "memory" or time.monotonic() > deadline:
                self.kill()
                return Ending(kind, self._said(start), peak_bytes=peak)
        if self._process.stdout.read(1):  # type: ignore[union-attr]
            return Ending("answered", self._said(start), peak_bytes=peak)
        code = self._process.wait()
        return Ending("died", self._said(start), ending(code), peak)

    def _position(self) -> int:
        return os.fstat(self._log.fileno()).st_size

    def _said(self, start: int) -> str:
        end = self._position()
        return os.pread(self._log.fileno(), end - start, start).decode(errors="replace")

    def kill(self) -> None:
        """Ends it, whatever it is doing."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


def resident_bytes(pid: int) -> int:
    """Resident memory of a process and its children; 0 where the system does not tell."""
    total = 0
    for process in (pid, *_children(pid)):
        with contextlib.suppress(OSError, IndexError, ValueError):
            pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
            total += pages * os.sysconf("SC_PAGE_SIZE")
    return total


def _children(pid: int) -> list[int]:
    found: list[int] = []
    for listing in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found += map(int, listing.read_text().split())
    return found
