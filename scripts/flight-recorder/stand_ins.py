"""Makes empty stand-ins of the CUDA libraries that PyPI's torch links to, so that it imports on a host without them."""
import os, re, subprocess, sys, glob
base = sys.argv[1]
lib = base + "/torch/lib"
out = sys.argv[2]; os.makedirs(out, exist_ok=True)
files = glob.glob(lib + "/*.so*") + glob.glob(base + "/torch/_C*.so")
have = {os.path.basename(f) for f in files}
needed, syms = set(), {}   # syms[name] = (version or None, isdata)
verlib = {}
defined = set()
def run(*a): return subprocess.run(a, capture_output=True, text=True).stdout
und = set()
for f in files:
    for m in re.finditer(r"NEEDED.*\[(.*)\]", run("readelf", "-d", f)): needed.add(m[1])
    cur = None
    for line in run("readelf", "-V", f).splitlines():
        m = re.search(r"File: (\S+)", line)
        if m: cur = m[1]
        m = re.search(r"Name: (\S+)\s+Flags", line)
        if m and cur: verlib.setdefault(cur, set()).add(m[1])
    for line in run("readelf", "-W", "--dyn-syms", f).splitlines():
        p = line.split()
        if len(p) < 8: continue
        name = p[7].split("@")[0]
        ver = p[7].split("@")[-1] if "@" in p[7] else None
        if p[6] == "UND":
            und.add((name, ver, p[3], p[4]))
        else: defined.add(name)
system = run("ldconfig", "-p")
missing = [n for n in needed if n not in have and n not in system]
print("missing", missing)
vers = {v: l for l in missing for v in verlib.get(l, ())}
per = {l: {} for l in missing}
for name, ver, typ, bind in und:
    if ver in vers: per[vers[ver]][(name, ver)] = typ
    elif ver is None and name not in defined:
        # no version: by prefix
        for l, pre in {"libcudart":"cuda|__cuda","libcupti":"cupti","libcudnn":"cudnn","libcufile":"cuFile","libcublasLt":"cublasLt","libcublas.":"cublas","libcusparseLt":"cusparseLt","libcusparse.":"cusparse","libcufft":"cufft","libcurand":"curand","libcusolver":"cusolver","libnccl":"nccl|pnccl","libnvshmem":"nvshmem","libnvrtc":"nvrtc","libnvJitLink":"nvJitLink", "libcuda.":"cu[A-Z]"}.items():
            if re.match(pre, name):
                t = [m for m in missing if m.startswith(l)]
                if t: per[t[0]][(name, None)] = typ; break
for l, s in per.items():
    byver = {}
    asm = [".text"]
    seen=set()
    for (name, ver), typ in sorted(s.items(), key=str, reverse=True):
        if name in seen: continue
        seen.add(name)
        byver.setdefault(ver, []).append(name)
        value = "xor %eax,%eax" if name.startswith("__") else "mov $100,%eax"
        asm += [f".globl {name}", f".type {name},@function", f"{name}: {value}; ret", f".size {name},.-{name}"]
    for v in verlib.get(l, ()): byver.setdefault(v, [])
    named = [v for v in byver if v]
    if named and byver.get(None): byver[named[0]] += [n for n in byver.pop(None) if n not in {x for v in named for x in byver[v]}]
    open(f"{out}/s.s","w").write("\n".join(asm) + "\n.section .note.GNU-stack,\"\"\n")
    script = "".join(f"{v} {{ {'global: ' + '; '.join(n) + ';' if n else ''} }};\n" for v, n in byver.items() if v)
    open(f"{out}/s.map","w").write(script)
    cmd = ["gcc","-shared","-nostdlib","-Wl,-soname,"+l,"-o",f"{out}/{l}",f"{out}/s.s"]
    if script and not byver.get(None): cmd.insert(1,f"-Wl,--version-script={out}/s.map")
    r = subprocess.run(cmd, capture_output=True, text=True)
    print(l, len(s), r.returncode, r.stderr[:200])
