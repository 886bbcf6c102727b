"""Notes for rankmesh from a training loop: `mark("epoch", n=3)`. Pure Python, no dependency, never raises.

Writes the same row as `rankmesh mark "epoch" n=3`, into the table `annotations` of this host. The bytes are one frame of
the local socket (docs/wire.md): length, version 1, then request 4 (Mark): the text, and a list of names with values.
"""
import os
import socket
import struct

SOCKETS = [os.environ.get("RANKMESH_SOCKET", ""), os.environ.get("XDG_RUNTIME_DIR", "/nowhere") + "/rankmesh/agent.sock",
           "/run/rankmesh/agent.sock"]


def _count(number):
    return bytes([number]) if number < 251 else b"\xfb" + struct.pack("<H", number)


def _text(value):
    data = str(value).encode()[:1024]
    return _count(len(data)) + data


def mark(text, **attributes):
    """True when the agent has taken the note."""
    body = b"\x01\x04" + _text(text) + _count(len(attributes))
    body += b"".join(_text(name) + _text(value) for name, value in attributes.items())
    for path in filter(os.path.exists, SOCKETS):
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as agent:
                agent.settimeout(0.5)
                agent.connect(path)
                agent.sendall(struct.pack("<I", len(body)) + body)
                return agent.recv(6)[5:6] == b"\x03"  # LocalResponse::Text
        except OSError:
            continue
    return False
