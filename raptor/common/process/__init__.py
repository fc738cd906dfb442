"""The process itself: forked tasks, threads, garbage collection, memory and signals."""
