"""A process that evaluates: reads jobs as lines of JSON, writes records as lines of JSON.

    python -m raptor.explore.worker MEMORY_MB

It writes a line when it is ready for the first job, and ends when nobody is left to write jobs. A process of its own
can be stopped when it takes too long, and takes nothing with it when it dies.
"""

import os
import signal
import sys

import msgspec


def main(memory_mb: int) -> None:
    """Evaluates until the standard input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the driver, which then stops this process
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # libraries that print to standard output would break the answers
    limit(memory_mb * 2**20)
    from raptor.common.decoding import json_decoder
    from raptor.explore.jobs import Job, evaluate

    answers.write(b"ready\n")
    answers.flush()
    for line in sys.stdin.buffer:
        record = evaluate(json_decoder(Job).decode(line))
        answers.write(msgspec.json.encode(record) + b"\n")
        answers.flush()


def limit(size_bytes: int) -> None:
    """Limits the memory of this process; beyond it, `MemoryError` is raised or the process dies."""
    if sys.platform != "linux":
        return
    import resource

    # NOTE: not the address space, of which threads and memory-mapped files take much more than they use.
    resource.setrlimit(resource.RLIMIT_DATA, (size_bytes, size_bytes))


if __name__ == "__main__":
    main(int(sys.argv[1]))
