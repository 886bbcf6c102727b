#!/usr/bin/env python3
"""What following requests costs a server: nginx under load, in turns without an agent, with an agent
that follows no server, and with one that follows this one. Printed are the medians of the ratios
within each turn, of requests a second, of p99 and of nginx's CPU for a request, with the interval that
holds the median with 95 %, the agent's share of a core, and how many of the requests it counted.

    bench-serve.py RANKMESH   (root; Debian's nginx-light, wrk, nghttp2-client)
    ROUNDS=10 SECONDS=10 CONNECTIONS=8 bench-serve.py RANKMESH
    DELAY_MS=1 CONNECTIONS=12 bench-serve.py RANKMESH
    STREAMS=16 bench-serve.py RANKMESH
    STREAMS=16 RATE=10000 bench-serve.py RANKMESH

wrk asks by HTTP/1.1; with STREAMS h2load by HTTP/2, so many requests at once on each connection (it
prints no p99: the mean stands in its place).

Each connection asks again when it has its answer, as fast as the CPUs can, or DELAY_MS later: 12
connections and 1 ms are some 10,000 requests a second. RATE is h2load's, in requests a second.

Nothing else should run, and no other agent: probes are kernel-wide.
"""
import os, re, shutil, statistics, subprocess, sys, tempfile, time
from pathlib import Path

from bench_agent import Agent, cpu, interval

ROUNDS = int(os.environ.get("ROUNDS", 10))
SECONDS = int(os.environ.get("SECONDS", 10))
CONNECTIONS = int(os.environ.get("CONNECTIONS", 8))
DELAY_MS = int(os.environ.get("DELAY_MS", 0))
STREAMS = int(os.environ.get("STREAMS", 0))
RATE = int(os.environ.get("RATE", 0))
PORT = 18080
LOADER = "h2load" if STREAMS else "wrk"
LISTEN = f"127.0.0.1:{PORT} http2" if STREAMS else f"127.0.0.1:{PORT}"
LONG = "mean" if STREAMS else "p99"
MS = {"us": 1e-3, "ms": 1, "s": 1e3}
WAYS = {"without": None, "idle": ["--no-detect"], "follows": ["--serve", f"web=port:{PORT}"]}


def nginx(work):
    """One worker that answers with 600 bytes."""
    (work / "www").mkdir()
    (work / "www" / "index.html").write_text("x" * 600)
    (work / "nginx.conf").write_text(
        f"worker_processes 1; pid {work}/pid; error_log {work}/errors; daemon off;\n"
        "events { worker_connections 512; }\n"
        f"http {{ access_log off; keepalive_requests 1000000000; server {{ listen {LISTEN}; root {work}/www; }} }}\n")
    os.chmod(work, 0o755)
    return subprocess.Popen(["nginx", "-c", str(work / "nginx.conf"), "-p", str(work)], stderr=subprocess.DEVNULL)


def load(seconds, work, worker):
    """Requests a second, p99 (or mean) in milliseconds, microseconds of the worker's CPU for a request, and requests."""
    before = cpu(worker)
    if STREAMS:
        paced = ["--rps", str(RATE // CONNECTIONS)] if RATE else []
        text = subprocess.run(["h2load", "-t", "1", "-c", str(CONNECTIONS), "-m", str(STREAMS), "-D", str(seconds), *paced,
                               f"http://127.0.0.1:{PORT}/"], check=True, capture_output=True, text=True).stdout
        took = cpu(worker) - before
        size, unit = re.search(r"time for request:\s+\S+\s+\S+\s+([\d.]+)(us|ms|s)", text).groups()
        count = int(re.search(r"(\d+) succeeded", text).group(1))
        return count / seconds, float(size) * MS[unit], took / count * 1e6, count
    (work / "delay.lua").write_text(f"function delay() return {DELAY_MS} end")
    script = ["-s", str(work / "delay.lua")] if DELAY_MS else []
    text = subprocess.run(["wrk", "-t", "1", "-c", str(CONNECTIONS), "-d", f"{seconds}s", "--latency", *script,
                           f"http://127.0.0.1:{PORT}/"], check=True, capture_output=True, text=True).stdout
    took = cpu(worker) - before
    size, unit = re.search(r"99%\s+([\d.]+)(us|ms|s)", text).groups()
    count = int(re.search(r"(\d+) requests in", text).group(1))
    rate = float(re.search(r"Requests/sec:\s+([\d.]+)", text).group(1))
    return rate, float(size) * MS[unit], took / count * 1e6, count


def main():
    binary, ways = sys.argv[1], list(WAYS)
    for program in ["nginx", LOADER]:
        if not shutil.which(program):
            sys.exit(f"{program} is not installed (Debian: apt-get install nginx-light wrk nghttp2-client)")
    with tempfile.TemporaryDirectory(prefix="bench-serve-") as work:
        work = Path(work)
        server = nginx(work)
        try:
            time.sleep(0.5)
            worker = int(Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text())
            load(2, work, worker)
            got, of = {way: [] for way in ways}, {way: [] for way in ways}
            for turn in range(ROUNDS):
                for way in ways[turn % len(ways):] + ways[:turn % len(ways)]:
                    agent = None if WAYS[way] is None else Agent(binary, work, WAYS[way])
                    if agent:
                        time.sleep(3)  # servers are looked for every two seconds
                    before, began = agent.cpu() if agent else 0, time.monotonic()
                    *figures, count = load(SECONDS, work, worker)
                    got[way].append(figures)
                    if agent:
                        share = (agent.cpu() - before) / (time.monotonic() - began)
                        time.sleep(5)  # until the last second's sums are stored
                        counted = agent.ask("SELECT coalesce(sum(count), 0) FROM request_rollups") or 0
                        of[way].append((share, counted / count))
                        agent.end()
            rate, p99, took = [statistics.median(values) for values in zip(*got["without"])]
            print(f"nginx, {CONNECTIONS} connections, {ROUNDS} turns; without an agent {rate:,.0f} requests/s, "
                  f"{LONG} {p99:.2f} ms, {took:.1f} us of CPU a request")
            what = "95 %" if ROUNDS >= 6 else "all"  # fewer turns have no such interval
            for way in ways[1:]:
                for at, name in enumerate(["requests/s", LONG, "CPU"]):
                    ratios = [a[at] / b[at] for a, b in zip(got[way], got["without"])]
                    low, high = interval(ratios)
                    print(f"  {way:8} {name:10} {statistics.median(ratios):.3f} of that  ({what}: {low:.3f} to {high:.3f})")
                share, counted = [statistics.median(values) for values in zip(*of[way])]
                print(f"  {way:8} agent {share:.1%} of a core, counted {counted:.2%} of {LOADER}'s requests", flush=True)
        finally:
            server.terminate()
            server.wait()


if __name__ == "__main__":
    main()
