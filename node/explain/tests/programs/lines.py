# Compiles modules of the standard library and prints, for each function, its line table and what CPython says of each
# code unit: {"version": [3, 11], "first": LINE, "table": HEX, "unit": BYTES, "runs": [[COUNT, LINE or null], ...]}
import json
import os
import sys
import types

wanted = int(sys.argv[1])
try:
    import ctypes

    addr2line = ctypes.pythonapi.PyCode_Addr2Line
    addr2line.argtypes = [ctypes.py_object, ctypes.c_int]

    def line_at(code, offset):
        line = addr2line(code, offset)
        return line if line > 0 else None

except ImportError:  # a minimal installation
    def line_at(code, offset):
        for start, end, line in code.co_lines():
            if start <= offset < end:
                return line
        return None


def codes(code):
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from codes(constant)


done = 0
root = os.path.dirname(os.__file__)
for name in sorted(os.listdir(root)):
    if not name.endswith(".py") or done >= wanted:
        continue
    path = os.path.join(root, name)
    try:
        with open(path, "rb") as source:
            module = compile(source.read(), path, "exec")
    except (SyntaxError, ValueError):
        continue
    for code in codes(module):
        table = code.co_linetable if sys.version_info >= (3, 10) else code.co_lnotab
        runs = []
        for offset in range(0, len(code.co_code), 2):
            line = line_at(code, offset)
            if runs and runs[-1][1] == line:
                runs[-1][0] += 1
            else:
                runs.append([1, line])
        done += len(code.co_code) // 2
        print(json.dumps({"first": code.co_firstlineno, "table": table.hex(), "runs": runs}))
