#!/usr/bin/env python3
"""What recording costs a program: runs in turns without an agent, with its probes alone (the agent
is stopped, so its threads take nothing and its ring fills), with an agent that keeps a budget of
1 %, and with one that records each call. Printed are the medians of the ratios within each turn,
with the interval that holds the median with 95 %, the agent's share of a core, the calls a second
that it stored and lost, and the part of the time in which it recorded calls.

    bench-cost.py RANKMESH [openfoam] [lammps] [mpi4py] [nccl]   (root; those that are installed)
    COMMAND='mpirun -np 2 ./mine' ROUNDS=10 WAYS='without 1%' bench-cost.py RANKMESH

Nothing else should run, and no other agent: probes are kernel-wide. A program should run for some
20 s: a budget is kept over ten.
"""
import os, shutil, signal, statistics, subprocess, sys, tempfile, time
from pathlib import Path

from bench_agent import Agent, interval

ROUNDS = int(os.environ.get("ROUNDS", 10))
MPIRUN = ["mpirun", "--allow-run-as-root", "--bind-to", "core", "-np", "2"]
FOAM = Path("/usr/share/openfoam")
WAYS = os.environ.get("WAYS", "without probes 1% none").split()
AGENTS = [way for way in WAYS if way not in ("without", "probes")]


def openfoam(work):
    """icoFoam, a lid-driven cavity of 80 x 80 x 2 cells in two parts: many small messages."""
    if not shutil.which("icoFoam"):
        return None
    case = work / "cavity"
    files = {
        "system/blockMeshDict": """scale 0.1;
            vertices ((0 0 0) (1 0 0) (1 1 0) (0 1 0) (0 0 0.1) (1 0 0.1) (1 1 0.1) (0 1 0.1));
            blocks (hex (0 1 2 3 4 5 6 7) (80 80 2) simpleGrading (1 1 1)); edges ();
            boundary (lid { type wall; faces ((3 7 6 2)); }
                      walls { type wall; faces ((0 4 7 3) (2 6 5 1) (1 5 4 0) (0 3 2 1) (4 5 6 7)); });""",
        "system/controlDict": """application icoFoam; startFrom startTime; startTime 0; stopAt endTime;
            endTime 0.3; deltaT 0.0001; writeControl timeStep; writeInterval 1000000;""",
        "system/fvSchemes": """ddtSchemes { default Euler; } gradSchemes { default Gauss linear; }
            divSchemes { default none; div(phi,U) Gauss linear; }
            laplacianSchemes { default Gauss linear orthogonal; } interpolationSchemes { default linear; }
            snGradSchemes { default orthogonal; }""",
        "system/fvSolution": """solvers { p { solver PCG; preconditioner DIC; tolerance 1e-06; relTol 0.05; }
            pFinal { solver PCG; preconditioner DIC; tolerance 1e-06; relTol 0; }
            U { solver smoothSolver; smoother symGaussSeidel; tolerance 1e-05; relTol 0; } }
            PISO { nCorrectors 2; nNonOrthogonalCorrectors 0; pRefCell 0; pRefValue 0; }""",
        "system/decomposeParDict": "numberOfSubdomains 2; method simple; simpleCoeffs { n (2 1 1); delta 0.001; }",
        "constant/transportProperties": "nu 0.01;",
        "0/p": """dimensions [0 2 -2 0 0 0 0]; internalField uniform 0;
            boundaryField { ".*" { type zeroGradient; } }""",
        "0/U": """dimensions [0 1 -1 0 0 0 0]; internalField uniform (0 0 0);
            boundaryField { lid { type fixedValue; value uniform (1 0 0); } walls { type noSlip; } }""",
    }
    for name, text in files.items():
        kind = {"p": "volScalarField", "U": "volVectorField"}.get(Path(name).name, "dictionary")
        (case / name).parent.mkdir(parents=True, exist_ok=True)
        head = f"FoamFile {{ version 2.0; format ascii; class {kind}; object {Path(name).name}; }}\n"
        (case / name).write_text(head + text + "\n")
    foam = f". {FOAM}/etc/bashrc >/dev/null 2>&1; export WM_PROJECT_DIR={FOAM} FOAM_ETC={FOAM}/etc; cd {case}; exec "
    for tool in ["blockMesh", "decomposePar -force"]:
        subprocess.run(["bash", "-c", foam + tool], check=True, stdout=subprocess.DEVNULL)
    return ["bash", "-c", foam + " ".join(MPIRUN) + " icoFoam -parallel"]


def lammps(work):
    """A melt of 32,000 atoms."""
    if not shutil.which("lmp"):
        return None
    (work / "melt").write_text(
        "units lj\natom_style atomic\nlattice fcc 0.8442\nregion box block 0 20 0 20 0 20\ncreate_box 1 box\n"
        "create_atoms 1 box\nmass 1 1.0\nvelocity all create 3.0 87287\npair_style lj/cut 2.5\n"
        "pair_coeff 1 1 1.0 1.0 2.5\nneigh_modify every 20 delay 0 check no\nfix 1 all nve\nrun 1200\n"
    )
    return [*MPIRUN, "lmp", "-in", str(work / "melt"), "-log", "none"]


def mpi4py(work):
    """A loop as of data-parallel training: compute, then add up the gradients."""
    if subprocess.run(["/usr/bin/python3", "-c", "import mpi4py"], capture_output=True).returncode:
        return None
    (work / "train.py").write_text(
        "from array import array\nfrom mpi4py import MPI\ncomm = MPI.COMM_WORLD\n"
        "g = array('d', [0]) * 20000; s = array('d', g)\n"
        "for step in range(24000):\n    sum(i * i for i in range(10000))\n    comm.Allreduce(g, s)\n"
    )
    return [*MPIRUN, "/usr/bin/python3", str(work / "train.py")]


def nccl(work):
    """Two ranks that do nothing but all-reduce on a stand-in for NCCL."""
    made = subprocess.run(["make", "-s", "-C", "scenarios", f"OUT={work / 'nccl'}"], capture_output=True)
    ranks = work / "nccl" / "nccl-ranks"
    return None if made.returncode or not ranks.exists() else [str(ranks), "--ranks", "2", "--iters", "400000", "--work-ms", "0"]


def run(command):
    began = time.monotonic()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.monotonic() - began


def measure(name, command, binary, work):
    took, of = {way: [] for way in WAYS}, {way: [] for way in AGENTS}
    run(command)
    for turn in range(ROUNDS):
        for way in WAYS[turn % len(WAYS):] + WAYS[:turn % len(WAYS)]:
            agent = None if way == "without" else Agent(binary, work, ["--budget", way if way in AGENTS else "none"])
            if way == "probes":
                agent.process.send_signal(signal.SIGSTOP)
            before = agent.cpu() if agent else 0
            took[way].append(run(command))
            if way in AGENTS:
                s, ended = took[way][-1], time.time_ns()
                missed = f"SELECT coalesce(sum(min(ts_ns, {ended}) - since_ns), 0) FROM capture_loss " \
                    f"WHERE reason = 'budget' AND since_ns < {ended}"
                of[way].append([
                    (agent.cpu() - before) / s,
                    (agent.ask("SELECT count(*) FROM collectives") or 0) / s,
                    (agent.ask("SELECT coalesce(sum(lost), 0) FROM capture_loss WHERE reason <> 'budget'") or 0) / s,
                    1 - min((agent.ask(missed) or 0) / 1e9 / s, 1),
                ])
            if agent:
                agent.end()
    print(f"{name}: {statistics.median(took['without']):.2f} s without an agent, {ROUNDS} turns")
    for way in WAYS:
        if way == "without":
            continue
        ratios = [a / b for a, b in zip(took[way], took["without"])]
        low, high = interval(ratios)
        what = "95 %" if ROUNDS >= 6 else "all"  # fewer turns have no such interval
        print(f"  {way:7} {statistics.median(ratios):.3f} times as long  ({what}: {low:.3f} to {high:.3f})")
    for way in AGENTS:
        share, stored, lost, time_share = [statistics.median(values) for values in zip(*of[way])]
        print(f"  agent at {way}: {share:.1%} of a core; {stored:,.0f} calls/s stored, {lost:,.0f} lost; "
              f"calls recorded in {time_share:.0%} of the time", flush=True)


def main():
    binary, wanted = sys.argv[1], sys.argv[2:]
    with tempfile.TemporaryDirectory(prefix="bench-cost-") as work:
        work = Path(work)
        if command := os.environ.get("COMMAND"):
            return measure(command, ["sh", "-c", command], binary, work)
        for program in [openfoam, lammps, mpi4py, nccl]:
            if wanted and program.__name__ not in wanted:
                continue
            command = program(work)
            if command is None:
                print(f"{program.__name__}: not installed here", file=sys.stderr)
            else:
                measure(program.__name__, command, binary, work)


if __name__ == "__main__":
    main()
