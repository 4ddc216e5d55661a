"""The allocator's heaps, in a separate process, because the choice is permanent."""

import subprocess
import sys

import pytest

PROGRAM = """
import ctypes, sys, threading
from broker.allocator import keep_memory_together

if sys.argv[1] == "together":
    assert keep_memory_together()
kept, all_there = [], threading.Barrier(5)

def allocate():
    kept.append([bytes(4_000) for _ in range(1_000)])
    all_there.wait()

threads = [threading.Thread(target=allocate) for _ in range(4)]
for thread in threads:
    thread.start()
all_there.wait()
libc = ctypes.CDLL(None)
libc.fdopen.restype = ctypes.c_void_p
libc.fdopen.argtypes = [ctypes.c_int, ctypes.c_char_p]
stream = libc.fdopen(1, b"w")
libc.malloc_info.argtypes = [ctypes.c_int, ctypes.c_void_p]
libc.fflush.argtypes = [ctypes.c_void_p]
libc.malloc_info(0, stream)
libc.fflush(stream)
"""


@pytest.mark.parametrize(("word", "is_one"), [("together", True), ("apart", False)])
def test_threads_share_one_heap(word: str, is_one: bool) -> None:
    """E9, E16: memory that one thread frees is reused by another."""
    told = subprocess.run([sys.executable, "-c", PROGRAM, word], capture_output=True, text=True, check=True)
    assert (told.stdout.count("<heap nr=") == 1) is is_one
