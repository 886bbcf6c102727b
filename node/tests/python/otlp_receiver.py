"""An OTLP/HTTP receiver over OpenTelemetry's published protobufs: prints its port, then each request as a line of JSON.

The first request with logs is answered by 503 with Retry-After, as a busy collector does; after that each is taken.
"""

import json
from http.server import BaseHTTPRequestHandler, HTTPServer

from google.protobuf.json_format import MessageToDict
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest, ExportLogsServiceResponse
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest, ExportMetricsServiceResponse

KINDS = {
    "/v1/logs": (ExportLogsServiceRequest, ExportLogsServiceResponse),
    "/v1/metrics": (ExportMetricsServiceRequest, ExportMetricsServiceResponse),
}
seen = set()


class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        request, response = KINDS[self.path]
        assert self.headers["content-type"] == "application/x-protobuf", self.headers
        message = request.FromString(self.rfile.read(int(self.headers["content-length"])))
        busy = self.path == "/v1/logs" and self.path not in seen
        seen.add(self.path)
        status, body = (503, b"") if busy else (200, response().SerializeToString())
        said = {"path": self.path, "status": status, "authorization": self.headers["authorization"], "message": MessageToDict(message)}
        print(json.dumps(said), flush=True)
        self.send_response(status)
        if busy:
            self.send_header("retry-after", "1")
        self.send_header("content-type", "application/x-protobuf")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


server = HTTPServer(("127.0.0.1", 0), Handler)
print(server.server_address[1], flush=True)
server.serve_forever()
