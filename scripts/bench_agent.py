"""What the benches in Python share: an agent with a store of its own, and the interval of a median."""
import json, math, os, shutil, signal, subprocess, sys, tempfile, time
from pathlib import Path


class Agent:
    """Runs `rankmesh up` with these flags, in a folder below `work`, from when it answers until `end`."""

    def __init__(self, binary, work, flags):
        self.binary, self.at = binary, Path(tempfile.mkdtemp(dir=work))
        at = str(self.at)
        self.process = subprocess.Popen(
            [binary, "up", "--name", "bench", "--listen", "127.0.0.1:0", "--identity", at + "/id",
             "--socket", at + "/sock", "--store", at + "/db", *flags],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while self.ask("SELECT 1") is None:
            if self.process.poll() is not None:
                sys.exit("the agent ended: rankmesh check says what it needs")
            time.sleep(0.1)

    def ask(self, sql):
        """The first value of an answer; none where there is no answer."""
        done = subprocess.run([self.binary, "query", "--socket", str(self.at / "sock"), "--format", "json", sql],
                              capture_output=True, text=True)
        return json.loads(done.stdout)["rows"][0][0] if done.returncode == 0 else None

    def cpu(self):
        """Seconds of CPU that it has taken."""
        return cpu(self.process.pid)

    def end(self):
        self.process.send_signal(signal.SIGCONT)
        self.process.terminate()
        self.process.wait()
        shutil.rmtree(self.at)


def cpu(pid):
    """Seconds of CPU that a process has taken."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def interval(values):
    """The order statistics that hold the median with at least 95 %."""
    values, n = sorted(values), len(values)
    low = max((k for k in range(n // 2) if sum(math.comb(n, i) for i in range(k + 1)) / 2**n <= 0.025),
              default=0)
    return values[low], values[n - 1 - low]
