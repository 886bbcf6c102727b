"""Programs that hang, in Python: mpirun -n 4 python3 hangs.py MODE DIRECTORY. As hangs.c, which says what the table and the notes mean.

truth: mixed            differs=1        another function at the same place
truth: ahead            cause=0,2        two of them asleep, the others in a first gathering
truth: busy             cause=0          computes in Python; the root of a broadcast
truth: nobody-sends     circle=0>1       a receive whose sender waits for the receiver elsewhere
truth: rings            circle=0>1>2 ranks=3  barriers of pairs in an order that closes a circle, their first calls
truth: used-rings       circle=0>1>2 ranks=3  likewise, after others
truth: first-barrier    cause=2          asleep in Python; nobody has called the function before
truth: objects          cause=3          asleep; objects are gathered
truth: pipe             cause=1          reads a pipe that nobody writes
truth: finalize         cause=3          in MPI_Finalize
truth: split            cause=0          asleep; its partner of a split communicator waits, and the others for both
truth: dup-making       cause=2          computes, where the others make a communicator
truth: ssend-ring       circle=0>1>2>3   everybody sends, synchronously, and nobody receives
truth: irecv            cause=1          asleep; a receive that was begun waits for its message
truth: iallreduce       cause=0          asleep; a nonblocking reduction
truth: exit             cause=1          its process has ended
truth: irecv-circle     circle=2>3 by=ebpf  a receive that was begun, whose sender waits for the receiver elsewhere
truth: waitall          circle=2>1 by=ebpf  one of a ring of neighbours does not send to the next
truth: any-source       circle=0>1|0>2|0>3  receives from anybody, while the others receive from it
truth: started          cause=0 by=ebpf  asleep; a persistent receive that was started waits for its message
truth: neighbours       cause=3          asleep; a collective of neighbours on a grid
truth: wrong-part       circle=2>1       receives with another tag than what is sent, while it sends to a third
truth: inter            cause=2          asleep; a barrier between two groups
"""
import os
import sys
import time
from array import array

from mpi4py import MPI

mode, directory = sys.argv[1:]
world = MPI.COMM_WORLD
rank, size = world.rank, world.size
a, b, wide = array("d", [1] * 64), array("d", [0] * 64), array("d", [0] * 64 * size)
before, after = (rank - 1) % size, (rank + 1) % size


def note(what):
    path = f"{directory}/at.{rank}"
    with open(path + ".new", "w") as file:
        file.write(f"{what} hangs.py:{sys._getframe(1).f_lineno} {os.getpid()}\n")
    os.rename(path + ".new", path)


def sleep_on():
    note("asleep"); time.sleep(3600)


def compute():
    x = 0
    note("running"); x = sum(i for i in iter(int, 1))


note("begins")
for _ in range(40):
    world.Allreduce(a, b)
    time.sleep(0.01)

if mode == "mixed":
    if rank == 1:
        note("all_reduce"); world.Allreduce(a, b)
    else:
        note("broadcast"); world.Bcast(b)
    note("barrier"); world.Barrier()
elif mode == "ahead":
    if rank in (0, 2):
        sleep_on()
    note("all_gather"); world.Allgather(a, wide)
elif mode == "busy":
    if rank == 0:
        compute()
    note("broadcast"); world.Bcast(b)
elif mode == "nobody-sends":
    if rank == 0:
        note("recv"); world.Recv(b, source=1, tag=7)
    note("barrier"); world.Barrier()
elif mode in ("rings", "used-rings"):
    pairs = [world.Create(world.group.Incl([i, (i + 1) % 3])) for i in range(3)]
    for pair in pairs if mode == "used-rings" else []:
        if pair != MPI.COMM_NULL:
            pair.Barrier()
    note("barrier"); pairs[rank].Barrier()
    note("barrier"); pairs[before].Barrier()
elif mode == "first-barrier":
    if rank == 2:
        sleep_on()
    note("barrier"); world.Barrier()
elif mode == "objects":
    if rank == 3:
        sleep_on()
    note("gather"); world.gather({"rank": rank})
    note("barrier"); world.Barrier()
elif mode == "pipe":
    if rank == 1:
        reading, writing = os.pipe()
        note("io"); os.read(reading, 1)
    note("all_reduce"); world.Allreduce(a, b)
elif mode == "finalize":
    if rank == 3:
        note("finalize"); MPI.Finalize()
        sys.exit()
    note("barrier"); world.Barrier()
elif mode == "split":
    half = world.Split(rank // 2, rank)
    for _ in range(20):
        half.Allreduce(a, b)
    if rank == 0:
        sleep_on()
    note("all_reduce"); half.Allreduce(a, b)
    note("barrier"); world.Barrier()
elif mode == "dup-making":
    if rank == 2:
        compute()
    note("comm_dup"); world.Dup()
elif mode == "ssend-ring":
    note("ssend"); world.Ssend(a, dest=after)
    note("recv"); world.Recv(b, source=before)
elif mode == "irecv":
    if rank == 1:
        sleep_on()
    if rank == 0:
        request = world.Irecv(b, source=1)
        note("wait"); request.Wait()
    note("barrier"); world.Barrier()
elif mode == "iallreduce":
    if rank == 0:
        sleep_on()
    request = world.Iallreduce(a, b)
    note("wait"); request.Wait()
elif mode == "irecv-circle":
    if rank == 2:
        request = world.Irecv(b, source=3, tag=5)
        note("wait"); request.Wait()
    note("barrier"); world.Barrier()
elif mode == "waitall":
    requests = [world.Irecv(b, source=before, tag=1)]
    if rank != 1:
        requests.append(world.Isend(a, dest=after, tag=1))
    note("wait_all"); MPI.Request.Waitall(requests)
    note("barrier"); world.Barrier()
elif mode == "any-source":
    note("recv"); world.Recv(b, source=MPI.ANY_SOURCE if rank == 0 else 0, tag=rank)
elif mode == "started":
    if rank == 0:
        sleep_on()
    if rank == 1:
        request = world.Recv_init(b, source=0, tag=3)
        request.Start()
        note("wait"); request.Wait()
    note("barrier"); world.Barrier()
elif mode == "neighbours":
    grid = world.Create_cart([size], [True])
    if rank == 3:
        sleep_on()
    note("neighbor_all_to_all"); grid.Neighbor_alltoall(array("d", [1] * 2), array("d", [0] * 2))
    note("barrier"); world.Barrier()
elif mode == "wrong-part":
    tag = 99 if rank == 2 else before
    note("send_recv"); world.Sendrecv(a, dest=after, sendtag=rank, recvbuf=b, source=before, recvtag=tag)
    note("barrier"); world.Barrier()
elif mode == "inter":
    half = world.Split(rank % 2, rank)
    both = half.Create_intercomm(0, world, 1 - rank % 2, tag=7)
    if rank == 2:
        sleep_on()
    note("barrier"); both.Barrier()
elif mode == "exit":
    if rank == 1:
        note("ended"); os._exit(0)
    note("barrier"); world.Barrier()
else:
    sys.exit(f"hangs.py: no mode {mode}")
note("through")
