"""ClickHouse's engine (chDB) behind an HTTP front as a server's is, as far as inserts and questions go. Faults:
what FAULT names in this directory (a file that the test writes): `refuse` answers 500 and does nothing, `taken`
does it and answers nothing, `half` answers half a reply after doing it, `slow` waits two seconds. PORT and DIR are
arguments; the databases lie in DIR and are there again after a restart."""
import http.server
import os
import sys
import tempfile
import threading
import time
import urllib.parse

from chdb import session

port, directory = int(sys.argv[1]), sys.argv[2]
engine = session.Session(os.path.join(directory, "engine"))
lock = threading.Lock()


def fault():
    path = os.path.join(directory, "FAULT")
    try:
        with open(path) as file:
            return file.read().strip()
    except FileNotFoundError:
        return ""


class Front(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def answer(self, status, body, headers=()):
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self):
        given = dict(urllib.parse.parse_qsl(urllib.parse.urlparse(self.path).query))
        length = int(self.headers.get("Content-Length", 0))
        body = self.rfile.read(length)
        if len(body) < length:
            return  # the sender broke off: nothing is taken
        if self.headers.get("X-ClickHouse-User") != "pusher" or self.headers.get("X-ClickHouse-Key") != "hush-hush":
            self.answer(403, b"Code: 516. DB::Exception: Authentication failed")
            return
        wrong = fault()
        if wrong == "refuse":
            self.answer(500, b"Code: 241. DB::Exception: Memory limit exceeded")
            return
        if wrong == "slow":
            time.sleep(2)
        query = given.pop("query", "")
        database = given.pop("database", "default")
        settings = ", ".join(f"{name} = '{value}'" for name, value in given.items() if name != "wait_end_of_query")
        try:
            with lock, tempfile.NamedTemporaryFile(dir=directory, suffix=".parquet") as file:
                if query.startswith("INSERT"):
                    into, form = query.rsplit(" FORMAT ", 1)
                    into = into.replace("INSERT INTO ", f"INSERT INTO `{database}`.")
                    file.write(body)
                    file.flush()
                    engine.query(f"{into} FROM INFILE '{file.name}' SETTINGS {settings} FORMAT {form}")
                    out = b""
                else:
                    out = bytes(str(engine.query(body.decode(), "JSONCompactEachRow")), "utf8")
        except Exception as error:
            self.answer(500, str(error).encode(), [("X-ClickHouse-Exception-Code", "1")])
            return
        if wrong == "taken":
            self.close_connection = True
            self.connection.shutdown(2)
            return
        if wrong == "half":
            self.send_response(200)
            self.send_header("Content-Length", "100")
            self.end_headers()
            self.wfile.write(b"half")
            self.close_connection = True
            return
        self.answer(200, out)


http.server.ThreadingHTTPServer(("127.0.0.1", port), Front).serve_forever()
