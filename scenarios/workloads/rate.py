"""MPI_Allreduce some thousand times a second: WORK_US of work before each, on one rank LATE_US more. Once the file
STOP is there, that rank sleeps instead of meeting the others.

    mpirun -np 2 rate.py WORK_US LATE_RANK LATE_US STOP
"""
import os
import sys
import time
from array import array

from mpi4py import MPI

comm = MPI.COMM_WORLD
work_us, late_rank, late_us, stop = float(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), sys.argv[4]
late = comm.Get_rank() == late_rank
mine, total = array("d", [1]), array("d", [0])
step = 0
while True:
    until = time.perf_counter() + (work_us + (late_us if late else 0)) / 1e6
    while time.perf_counter() < until:
        pass
    comm.Allreduce(mine, total)
    step += 1
    if step % 1000 == 0 and comm.bcast(os.path.exists(stop)):
        break
if late:
    time.sleep(3600)
comm.Barrier()
