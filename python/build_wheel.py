"""Makes the wheel: the module and the program ``rankmesh``, which pip puts beside the Python that it installs into.

usage: build_wheel.py BINARY OUT-DIR

The tag says where it runs: manylinux_2_N where the program needs no library beyond those that manylinux allows, and no newer
glibc than 2.N; else linux_ARCH, which installs on this kind of machine only. Needs readelf (binutils).
"""

import base64
import hashlib
import platform
import re
import stat
import subprocess
import sys
import zipfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
#: What a manylinux wheel may take from the system (PEP 600), of what programs in Rust need.
ALLOWED = {"libc.so.6", "libm.so.6", "libgcc_s.so.1", "libpthread.so.0", "libdl.so.2", "librt.so.1", "libz.so.1"}
LOADERS = re.compile(r"ld-linux.*\.so\.\d+")
#: The same for whoever builds it again.
DATE = (1980, 1, 1, 0, 0, 0)


def tag(binary: Path) -> str:
    def read(*flags: str) -> str:
        return subprocess.run(["readelf", "-W", *flags, str(binary)], check=True, stdout=subprocess.PIPE, text=True).stdout

    arch = platform.machine()
    needed = set(re.findall(r"\(NEEDED\).*\[(.*)\]", read("-d")))
    beyond = {name for name in needed - ALLOWED if not LOADERS.fullmatch(name)}
    glibc = max((int(minor) for minor in re.findall(r"GLIBC_2\.(\d+)", read("-V"))), default=17)
    if beyond:
        print(f"not for every Linux: the program needs {', '.join(sorted(beyond))}", file=sys.stderr)
        return f"linux_{arch}"
    return f"manylinux_2_{max(glibc, 17)}_{arch}"


def main() -> None:
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    binary, out = Path(sys.argv[1]), Path(sys.argv[2])
    said = subprocess.run([str(binary), "--version"], check=True, stdout=subprocess.PIPE, text=True).stdout
    version = said.split()[1]
    name, full_tag = f"rankmesh-{version}", f"py3-none-{tag(binary)}"
    readme = (HERE / "README.md").read_text()
    files = {f"rankmesh/{path.name}": path.read_bytes() for path in sorted((HERE / "rankmesh").iterdir()) if path.is_file()}
    files[f"{name}.data/scripts/rankmesh"] = binary.read_bytes()
    files[f"{name}.dist-info/METADATA"] = (
        f"Metadata-Version: 2.1\nName: rankmesh\nVersion: {version}\n"
        "Summary: Which rank holds a GPU or MPI job up, and why: SQL over all its hosts\n"
        "License: Apache-2.0\nRequires-Python: >=3.9\nProvides-Extra: pandas\nRequires-Dist: pandas>=2; extra == 'pandas'\n"
        "Provides-Extra: polars\nRequires-Dist: polars>=1; extra == 'polars'\n"
        "Provides-Extra: arrow\nRequires-Dist: pyarrow>=15; extra == 'arrow'\n"
        f"Description-Content-Type: text/markdown\n\n{readme}"
    ).encode()
    files[f"{name}.dist-info/WHEEL"] = (
        f"Wheel-Version: 1.0\nGenerator: rankmesh\nRoot-Is-Purelib: false\nTag: {full_tag}\n"
    ).encode()
    files[f"{name}.dist-info/LICENSE"] = (HERE.parent / "LICENSE").read_bytes()
    record = ""
    for path, data in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        record += f"{path},sha256={digest},{len(data)}\n"
    files[f"{name}.dist-info/RECORD"] = (record + f"{name}.dist-info/RECORD,,\n").encode()
    out.mkdir(parents=True, exist_ok=True)
    wheel = out / f"{name}-{full_tag}.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, data in files.items():
            info = zipfile.ZipInfo(path, DATE)
            info.compress_type = zipfile.ZIP_DEFLATED
            info.external_attr = (stat.S_IFREG | (0o755 if "/scripts/" in path else 0o644)) << 16
            archive.writestr(info, data)
    print(wheel)


main()
