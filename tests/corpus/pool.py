"""A few worker processes that survive each other's crashes."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import select
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence

from .case import Case
from .outcome import DIED, Outcome

# A worker is replaced after this many cases: JAX keeps memory of all it has traced.
_CASES_PER_WORKER = 40


class _Worker:
    def __init__(self, devices: int, options: Sequence[str]):
        self.devices = devices
        self.served = 0
        environment = {
            **os.environ,
            "JAX_PLATFORMS": "cpu",
            "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}",
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        }
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  as long as the process
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.corpus.worker", *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=environment,
        )

    def run(self, name: str, timeout: float) -> Outcome:
        """Raises TimeoutError, or EOFError where the process died."""
        self.served += 1
        try:
            self._process.stdin.write(f"{name}\n".encode())
            self._process.stdin.flush()
        except BrokenPipeError:
            raise EOFError from None
        return Outcome(**json.loads(self._line(timeout)))

    def _line(self, timeout: float) -> bytes:
        deadline = time.monotonic() + timeout
        stdout = self._process.stdout.fileno()
        line = bytearray()
        while not line.endswith(b"\n"):
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([stdout], [], [], left)[0]:
                raise TimeoutError
            chunk = os.read(stdout, 1 << 16)
            if not chunk:
                raise EOFError
            line += chunk
        return bytes(line)

    def exit_status(self) -> int:
        """Of a process that has closed its output; negative for a signal."""
        return self._process.wait(timeout=30)

    def close(self) -> str:
        """Ends the process; the last that it wrote to its standard error."""
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()  # it ends by itself, unless it is stuck
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=5)
        self._process.kill()
        self._process.wait()
        self._process.stdout.close()
        self._errors.seek(0)
        text = self._errors.read().decode(errors="replace")
        self._errors.close()
        return text[-3000:]


def run_all(
    pairs: Sequence[tuple[Case, str]], *, jobs: int, timeout: float, options: Sequence[str] = ()
) -> Iterator[Outcome]:
    """Outcomes in the order in which cases finish.

    Args:
      pairs: cases, each with a target.
      jobs: number of worker processes.
      timeout: seconds for one case.
      options: for the workers, what to do beside capturing, see `worker`.
    """
    todo: queue.SimpleQueue[tuple[Case, str]] = queue.SimpleQueue()
    for pair in sorted(pairs, key=lambda pair: (pair[0].devices, pair[1])):
        todo.put(pair)
    done: queue.SimpleQueue[Outcome] = queue.SimpleQueue()
    threads = [
        threading.Thread(target=_serve, args=(todo, done, timeout, options), daemon=True)
        for _ in range(min(jobs, len(pairs)))
    ]
    for thread in threads:
        thread.start()
    for _ in pairs:
        yield done.get()


def _serve(
    todo: queue.SimpleQueue, done: queue.SimpleQueue, timeout: float, options: Sequence[str]
) -> None:
    worker: _Worker | None = None
    while True:
        try:
            case, target = todo.get_nowait()
        except queue.Empty:
            break
        name = f"{case.name}@{target}"
        if worker and (worker.devices != case.devices or worker.served >= _CASES_PER_WORKER):
            worker.close()
            worker = None
        worker = worker or _Worker(case.devices, options)
        start = time.monotonic()
        try:
            done.put(worker.run(name, timeout))
        except (TimeoutError, EOFError) as error:
            seconds = round(time.monotonic() - start, 2)
            if isinstance(error, TimeoutError):
                cause = f"no answer in {timeout:.0f} s"
            else:
                cause = f"exit status {worker.exit_status()}"
            done.put(Outcome(name, DIED, cause, worker.close(), seconds=seconds))
            worker = None
    if worker:
        worker.close()
