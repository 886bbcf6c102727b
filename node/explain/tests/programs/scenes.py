# Threads that each stay at a known line: "# at SCENE" marks the lines of a scene, a line as often as it is on the stack.
# Prints one line of JSON with the kernel's id of each thread, then answers each line on its standard input with what
# CPython itself says of all threads (sys._current_frames).
import asyncio
import functools
import json
import sys
import threading
import time

locked = threading.Lock()
locked.acquire()


def sleep():
    time.sleep(3600)  # at sleep


def lock():
    locked.acquire()  # at lock


class Place:
    @staticmethod
    def innermost():
        def closure():
            time.sleep(3600)  # at nested

        closure()  # at nested

    def __init__(self, depth):
        if depth:
            Place(depth - 1)  # at nested # at nested # at nested
        Place.innermost()  # at nested


def nested():
    Place(3)  # at nested


def generator():
    def inner():
        yield 1
        time.sleep(3600)  # at generator
        yield 2

    def outer():
        yield 0
        yield from inner()  # at generator

    for _ in outer():  # at generator
        pass


def coroutine():
    async def inner():
        time.sleep(3600)  # at coroutine

    async def outer():
        await asyncio.sleep(0)
        await inner()  # at coroutine

    loop = asyncio.new_event_loop()
    loop.run_until_complete(outer())  # at coroutine


def through_c():
    def key(value):
        time.sleep(3600)  # at through_c
        return value

    class Hooked:
        def __getattr__(self, name):
            return functools.reduce(lambda a, b: key(b), [1, 2])  # at through_c # at through_c

    list(map(lambda _: Hooked().missing, [1]))  # at through_c # at through_c


def after_an_error():
    try:
        raise ValueError
    except ValueError:
        for _ in range(2):
            pass
        try:
            time.sleep(3600)  # at after_an_error
        finally:
            pass


def made_at_run_time():
    names = {"time": time}
    exec(compile("\n\n\ndef dynamic():\n  time.sleep(3600)\ndynamic()\n", "made up.py", "exec"), names)  # at made_at_run_time


def größe():
    time.sleep(3600)  # at größe


def busy():
    count = 0
    while True:
        count = sum(n * n for n in range(100))


def idle_frames():
    frames = sys._current_frames()
    answer = {}
    for thread in threading.enumerate():
        frame = frames[thread.ident]
        stack = []
        while frame:
            code = frame.f_code
            stack.append([getattr(code, "co_qualname", code.co_name), code.co_filename, frame.f_lineno])
            frame = frame.f_back
        answer[str(thread.native_id)] = stack
    return answer


def main():
    scenes = [sleep, lock, nested, generator, coroutine, through_c, after_an_error, made_at_run_time, größe]
    if "busy" in sys.argv:
        scenes.append(busy)
    threads = {scene.__name__: threading.Thread(target=scene, daemon=True) for scene in scenes}
    for thread in threads.values():
        thread.start()
    print(json.dumps({name: thread.native_id for name, thread in threads.items()}), flush=True)
    for _ in sys.stdin:
        print(json.dumps(idle_frames()), flush=True)


main()
