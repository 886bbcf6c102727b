"""A server on uvicorn whose loop hands the work to others: threads of pools, and a process of one.

/KIND/N answers after KIND's work; from N = 100000 on with what makes it slow. Prints its port.
"""
import asyncio
import ctypes
import multiprocessing
import os
import socket
import sys
import threading
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

import uvicorn

SLOW_S = 0.06
libc = ctypes.CDLL(None)
numbers = iter(range(1_000))


def named(name):
    libc.prctl(15, name.encode())  # PR_SET_NAME


def burn(ms):
    until = time.thread_time() + ms / 1000
    while time.thread_time() < until:
        pass


lock, held, wanted = threading.Lock(), threading.Event(), threading.Semaphore(0)


def hold():
    """Has the lock for a while whenever that is wanted."""
    named("holder")
    while True:
        wanted.acquire()
        with lock:
            held.set()
            time.sleep(SLOW_S)
            held.clear()


def sleeps(is_slow):
    burn(0.3)
    time.sleep(SLOW_S if is_slow else 0.0005)


def locks(is_slow):
    burn(0.3)
    if is_slow:
        wanted.release()
        held.wait()
    with lock:
        pass


def writes(is_slow):
    until = time.monotonic() + (SLOW_S if is_slow else 0)
    while time.monotonic() < until:
        os.pwrite(scratch, bytes(4_096), 0)
        os.fsync(scratch)


def works(is_slow):
    """In the other process."""
    burn(30 if is_slow else 0.3)


def waits(_):
    time.sleep(0.004)


async def nothing(_):
    await asyncio.sleep(0)


async def app(scope, receive, send):
    if scope["type"] != "http":
        return
    _, kind, number = scope["path"].split("/")
    is_slow = int(number) >= 100_000
    loop = asyncio.get_running_loop()
    pool, work = KINDS[kind]
    if pool:
        await loop.run_in_executor(pool, work, is_slow)
    else:
        await work(is_slow)
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


def begins():
    named("engine")
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})


if __name__ == "__main__":
    threading.Thread(target=hold, daemon=True).start()
    threads = ThreadPoolExecutor(4, initializer=lambda: named(f"pool_{next(numbers)}"))
    single = ThreadPoolExecutor(1, initializer=named, initargs=("single",))
    engine = ProcessPoolExecutor(1, multiprocessing.get_context("fork"), initializer=begins)
    engine.submit(works, False).result()
    scratch = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
    KINDS = {
        "sleep": (threads, sleeps),
        "lock": (threads, locks),
        "disk": (threads, writes),
        "burst": (single, waits),
        "engine": (engine, works),
        "hog": (engine, works),
        "plain": (None, nothing),
    }
    listening = socket.socket(proto=socket.IPPROTO_TCP)  # for which asyncio turns Nagle's delay off
    listening.bind(("127.0.0.1", 0))
    listening.listen()
    print(listening.getsockname()[1], flush=True)
    config = uvicorn.Config(app, log_level="error", access_log=False, date_header=False, server_header=False)
    uvicorn.Server(config).run(sockets=[listening])
