"""A halo exchange in one dimension, on mpi4py: every rank works on its rows, then swaps the outermost with both
neighbours by Sendrecv. usage: halo.py [FILE]; a rank whose FILE.RANK exists reads 64 KiB of it past the page cache in each step."""

import array
import mmap
import os
import sys

from mpi4py import MPI

WIDTH = 20_000
BLOCK = 65_536

world = MPI.COMM_WORLD
rank, size = world.rank, world.size
before, after = (rank - 1) % size, (rank + 1) % size
row, halo = array.array("d", bytes(8 * WIDTH)), array.array("d", bytes(8 * WIDTH))
path = f"{sys.argv[1]}.{rank}" if len(sys.argv) > 1 else None
page, source, at = mmap.mmap(-1, BLOCK), None, 0
while True:
    total = 0.0
    for value in row:
        total += value * 0.5
    if path and source is None and os.path.exists(path):
        source = os.open(path, os.O_RDONLY | os.O_DIRECT)
    if source is not None:
        if not os.path.exists(path):
            os.close(source)
            source = None
        elif os.preadv(source, [page], at) < BLOCK:
            at = 0
        else:
            at += BLOCK
    world.Sendrecv(row, after, recvbuf=halo, source=before)
    world.Sendrecv(halo, before, recvbuf=row, source=after)
