"""A worker process: reads jobs as lines of JSON from standard input, and writes records as lines of JSON.

    python -m raptor.tools.explore.evaluation.worker_process MEMORY_MB

It writes the line `ready` when it can take the first job, and ends at the end of its input. A separate process can be
killed when a job takes too long, and its crash affects no other job.
"""

import os
import signal
import sys

import msgspec


def main(memory_mb: int) -> None:
    """Evaluates jobs until the end of standard input, with at most `memory_mb` of memory."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the driver, which then stops this process
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # libraries that print to standard output would break the answers
    limit_memory(memory_mb * 2**20)
    from raptor.common.files.json_decoding import json_decoder
    from raptor.tools.explore.evaluation.evaluation_jobs import EvaluationJob, evaluate_job

    answers.write(b"ready\n")
    answers.flush()
    for line in sys.stdin.buffer:
        record = evaluate_job(json_decoder(EvaluationJob).decode(line))
        answers.write(msgspec.json.encode(record) + b"\n")
        answers.flush()


def limit_memory(size_bytes: int) -> None:
    """Limits the data memory of this process; an allocation beyond it raises `MemoryError` or ends the process."""
    if sys.platform != "linux":
        return
    import resource

    # NOTE: not the address space, of which threads and memory-mapped files take much more than they use.
    resource.setrlimit(resource.RLIMIT_DATA, (size_bytes, size_bytes))


if __name__ == "__main__":
    main(int(sys.argv[1]))
