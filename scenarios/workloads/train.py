"""A training loop in data parallel, on mpi4py: every rank takes a batch, computes on it and meets the others in an
all-reduce. usage: train.py DIR; a rank for which DIR/cause.RANK exists is late for the cause that stands in it:

    sleep     it sleeps in its own code
    read      it reads 128 KiB of DIR/data.RANK past the page cache
    fsync     it writes 128 KiB into DIR/out.RANK and waits until they are on the disk
    dirty     it changes 2 MiB of DIR/map.RANK in memory that is a file
    swap      it changes 2 MiB of 64 MiB of its own memory
    lock      it wants a lock that another of its threads holds
    fault     it touches 32 pages of DIR/data.RANK that have to be read
    worker    its batches come from a child process that is late

The marks at the ends of lines say where the main thread then is."""

import array
import mmap
import multiprocessing
import os
import sys
import threading
import time

from mpi4py import MPI

BLOCK = 131_072
PAGE = 4_096
MAPPED = 64 << 20

world = MPI.COMM_WORLD
rank, folder = world.rank, sys.argv[1]
busy = threading.Lock()
mine, total = array.array("d", bytes(8 * 16)), array.array("d", bytes(8 * 16))


def opened(name, flags):
    return os.open(f"{folder}/{name}.{rank}", flags)


def holds():
    """Another thread, which has the lock most of the time."""
    while True:
        with busy:
            time.sleep(0.08)
        time.sleep(0.002)


def load_sample(pipe):
    """A worker: a batch every 80 ms."""
    while True:
        time.sleep(0.08)  # WORKER
        pipe.send(b"batch")


class Batches:
    def __init__(self, cause):
        self.cause, self.at = cause, 0
        if cause == "read":
            self.page, self.file = mmap.mmap(-1, BLOCK), opened("data", os.O_RDONLY | os.O_DIRECT)
        if cause == "fsync":
            self.file = opened("out", os.O_WRONLY | os.O_CREAT)
        if cause == "dirty":
            self.file = opened("map", os.O_RDWR | os.O_CREAT)
            os.ftruncate(self.file, MAPPED)
            self.memory = mmap.mmap(self.file, MAPPED)
        if cause == "swap":
            self.memory = mmap.mmap(-1, MAPPED, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if cause == "fault":
            self.file = opened("data", os.O_RDONLY)
            self.size = os.fstat(self.file).st_size
            self.memory = mmap.mmap(self.file, self.size, prot=mmap.PROT_READ)
            self.memory.madvise(mmap.MADV_RANDOM)
        if cause == "lock":
            threading.Thread(target=holds, daemon=True).start()
        if cause == "worker":
            self.pipe, other = multiprocessing.Pipe()
            multiprocessing.Process(target=load_sample, args=(other,), daemon=True).start()

    def change(self):
        for page in range(512):
            self.memory[self.at] = (self.memory[self.at] + 1) % 256  # MEMORY
            self.at = (self.at + PAGE) % MAPPED

    def touch(self):
        if self.at == 0:
            self.memory.madvise(mmap.MADV_DONTNEED)
            os.posix_fadvise(self.file, 0, self.size, os.POSIX_FADV_DONTNEED)
        for page in range(32):
            self.memory[self.at]  # FAULT
            self.at = (self.at + PAGE) % self.size

    def collate(self):
        if self.cause == "sleep":
            time.sleep(0.08)  # SLEEP
        elif self.cause == "read":
            if os.preadv(self.file, [self.page], self.at) < BLOCK:  # READ
                self.at = 0
            else:
                self.at += BLOCK
        elif self.cause == "fsync":
            os.pwrite(self.file, os.urandom(BLOCK), 0)
            os.fsync(self.file)  # FSYNC
        elif self.cause in ("dirty", "swap"):
            self.change()
        elif self.cause == "fault":
            self.touch()
        elif self.cause == "lock":
            with busy:  # LOCK
                pass
        elif self.cause == "worker":
            self.pipe.recv()  # RECEIVE


def compute():
    total = 0
    for value in range(100_000):
        total += value * value
    return total


def step(batches):
    if batches:
        batches.collate()
    compute()
    world.Allreduce(mine, total)  # MEETS


named, batches, steps = f"{folder}/cause.{rank}", None, 0
while True:
    if batches is None and os.path.exists(named):
        with open(named) as file:
            batches = Batches(file.read().strip())
    step(batches)
