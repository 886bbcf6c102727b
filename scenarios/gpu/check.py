"""Judges programs.py on a host with an NVIDIA GPU: each program healthy and held up in several ways, by an agent beside it (root).

    python3 scenarios/gpu/check.py RANKMESH [--plugin PATH] [--only ddp:loader,…] [--seconds 10]

For each case one line: who was to be named, in how many looks somebody was, in how many it was another, after how many seconds it
was right, and how many times as long steps took as before (where they hardly do, nobody holds the job up); then the agent's own
words. With $OUT set to a directory, cases.json there has the answers, and stores.tar.xz the trace stores. Exit status 1 if a wrong
rank was named."""
import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
CASES = [
    "ddp:healthy", "ddp:loader", "ddp:hog", "ddp:stopped", "ddp:spin",
    "fsdp:healthy", "fsdp:spin", "fsdp:hog", "fsdp:stopped",
    "pipeline:healthy", "pipeline:spin", "pipeline:stopped", "pipeline:hog",
    "clipped:healthy", "clipped:spin", "clipped:stopped",
    "tensor:healthy", "tensor:spin", "tensor:hog",
]
LATE = 2


def agent(rankmesh, directory):
    env = dict(os.environ, XDG_STATE_HOME=directory)
    process = subprocess.Popen(
        [rankmesh, "up", "--budget", "none", "--name", "gpu0", "--listen", "127.0.0.1:0", "--identity", directory + "/identity",
         "--store", directory + "/store.db", "--socket", directory + "/socket"],
        env=env, stdout=open(directory + "/agent.log", "w"), stderr=subprocess.STDOUT)
    until = time.time() + 20
    while not os.path.exists(directory + "/socket"):
        if process.poll() is not None or time.time() > until:
            sys.exit("the agent did not come up:\n" + open(directory + "/agent.log").read())
        time.sleep(0.05)
    return process


def cpus(rank):
    """Those of a rank, its threads and its loader, as schedulers give them."""
    each = max(1, os.cpu_count() // 4)
    return "%d-%d" % (rank * each, (rank + 1) * each - 1)


def ranks(program, kind, directory, plugin):
    processes = []
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    for rank in range(4):
        env = dict(os.environ, RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="4", LOCAL_WORLD_SIZE="4", MASTER_ADDR="127.0.0.1",
                   MASTER_PORT=str(port), NCCL_HOSTID="host%d" % rank, NCCL_SOCKET_IFNAME="lo", OMP_NUM_THREADS="1")
        if plugin:
            env["NCCL_PROFILER_PLUGIN"] = plugin
        command = [sys.executable, HERE + "/programs.py", "--program", program, "--late-rank", str(LATE), "--late-file",
                   directory + "/late", "--stop-file", directory + "/stop"]
        if kind in ("loader", "spin", "gpu"):
            command += ["--late", kind]
        processes.append(subprocess.Popen(["taskset", "-c", cpus(rank)] + command, env=env, stdout=subprocess.PIPE,
                                          stderr=open(directory + "/rank%d.err" % rank, "w"), text=True))
    return processes


def hold(kind, process, directory):
    """Begins what holds the late rank up; returns what ends it."""
    if kind == "hog":
        hogs = [subprocess.Popen(["taskset", "-c", cpus(LATE), "sh", "-c", "while :; do :; done"]) for _ in range(os.cpu_count())]
        return lambda: [hog.kill() for hog in hogs]
    if kind == "stopped":
        script = ("import os,signal,time\nwhile True:\n os.kill(%d,signal.SIGSTOP); time.sleep(.03)\n"
                  " os.kill(%d,signal.SIGCONT); time.sleep(.07)" % (process.pid, process.pid))
        stopper = subprocess.Popen([sys.executable, "-c", script])

        def end():
            stopper.kill()
            stopper.wait()
            os.kill(process.pid, signal.SIGCONT)
        return end
    open(directory + "/late", "w").close()
    return lambda: None


def look(rankmesh, directory):
    out = subprocess.run([rankmesh, "stragglers", "--socket", directory + "/socket", "--format", "json"], capture_output=True, text=True)
    try:
        return json.loads(out.stdout)
    except ValueError:
        return {"error": out.stderr}


def named(answer):
    """The ranks that the verdict names."""
    verdict = answer.get("verdict") or {}
    if verdict.get("kind") == "hang":
        return sorted(rank["rank"] for rank in verdict.get("missing", []) if isinstance(rank, dict) and "rank" in rank)
    if verdict.get("kind") != "rank":
        return []
    return sorted({verdict["rank"]} | {other["rank"] for other in verdict.get("also", [])})


def case(rankmesh, name, seconds, plugin, healthy_seconds):
    program, kind = name.split(":")
    directory = tempfile.mkdtemp(prefix="gpu-check-")
    process, begun = agent(rankmesh, directory), time.time()
    job = ranks(program, kind, directory, plugin)
    looks, end, first, answer = [], None, None, {}
    try:
        until = begun + 60
        while time.time() < until:  # until steps are made: enough calls in the store
            rows = subprocess.run([rankmesh, "query", "--socket", directory + "/socket", "--format", "csv",
                                   "SELECT count(*) FROM collectives"], capture_output=True, text=True).stdout.split()
            if rows and rows[-1].isdigit() and int(rows[-1]) > 200:
                break
            if any(p.poll() is not None for p in job):
                print("== %s: a rank ended\n%s" % (name, "".join(open(directory + "/rank%d.err" % r).read()[-1200:] for r in range(4))))
                return True
            time.sleep(0.3)
        time.sleep(4)
        if kind != "healthy":
            end = hold(kind, job[LATE], directory)
        start = time.time()
        while time.time() - start < (healthy_seconds if kind == "healthy" else seconds):
            answer = look(rankmesh, directory)
            looks.append(named(answer))
            if first is None and LATE in looks[-1]:
                first = time.time() - start
            time.sleep(0.4)
        text = subprocess.run([rankmesh, "stragglers", "--socket", directory + "/socket"], capture_output=True, text=True)
        since = subprocess.run([rankmesh, "stragglers", "--socket", directory + "/socket", "--since", "%ds" % (seconds - 2)],
                               capture_output=True, text=True)
        shape = subprocess.run([rankmesh, "query", "--socket", directory + "/socket", "SELECT func, count(*) AS n, count(DISTINCT comm) AS comms, "
                                "avg(duration_ns)/1e6 AS ms FROM collectives GROUP BY 1 ORDER BY 2 DESC LIMIT 8"], capture_output=True, text=True)
    finally:
        if end:
            end()
        open(directory + "/stop", "w").close()
        done = time.time() + 4
        for p in job:
            try:
                p.wait(max(0.1, done - time.time()))
            except subprocess.TimeoutExpired:
                p.kill()
        process.terminate()
        process.wait()
    wrong = [n for n in looks if any(r != LATE or kind == "healthy" for r in n)]
    told = [json.loads(line) for p in job for line in p.stdout if line.startswith("{")]
    times = told[0]["steps"] if told else []
    rate = lambda a, b: max(1, sum(1 for t in times if a <= t < b)) / (b - a)
    before, after = rate(start - 4, start), rate(start + 1, start + seconds)
    print("== %-17s %s; looks %d, named %d, wrong %d%s; steps %.1f/s, %.2f times as long as before" % (
        name, "nobody is late" if kind == "healthy" else "rank %d" % LATE, len(looks), sum(1 for n in looks if n), len(wrong),
        "" if first is None else ", right after %.1f s" % first, before, before / after), flush=True)
    for part in (text.stdout + text.stderr, "-- since:\n" + since.stdout + since.stderr, shape.stdout):
        print("".join("   " + line[:150] + "\n" for line in part.strip().splitlines()[:3]), end="", flush=True)
    if os.environ.get("OUT"):
        of = {"case": name, "start": start, "looks": looks, "last": answer, "text": text.stdout, "since": since.stdout, "shape": shape.stdout, "ranks": told}
        with open(os.path.join(os.environ["OUT"], "cases.json"), "a") as f:
            f.write(json.dumps(of) + "\n")
        subprocess.run("mkdir -p /tmp/stores/%s && cp -r %s/store.db* /tmp/stores/%s/" % (name, directory, name), shell=True)
    return bool(wrong)


parser = argparse.ArgumentParser()
parser.add_argument("rankmesh")
parser.add_argument("--plugin")
parser.add_argument("--only", default=",".join(CASES))
parser.add_argument("--seconds", type=float, default=9)
parser.add_argument("--healthy-seconds", type=float, default=9)
arguments = parser.parse_args()
wrong = [name for name in arguments.only.split(",")
         if case(arguments.rankmesh, name, arguments.seconds, arguments.plugin, arguments.healthy_seconds)]
if os.environ.get("OUT"):
    subprocess.run("tar cJf $OUT/stores.tar.xz -C /tmp stores; ls -l $OUT", shell=True)
print("wrong or failed: " + (", ".join(wrong) or "none"))
sys.exit(1 if wrong else 0)
