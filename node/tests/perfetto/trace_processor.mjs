// Perfetto's trace_processor (WebAssembly) behind standard input and output: messages of
// `TraceProcessorRpcStream` in, messages of it out. What is in them is the caller's.
//
// usage: node trace_processor.mjs DIRECTORY   (made by scripts/perfetto.sh)
import { readFileSync, writeSync } from "node:fs";
import { join } from "node:path";
import vm from "node:vm";

const directory = process.argv[2];
// The loader expects a web worker: it fetches its WebAssembly from beside itself.
process.type = "renderer";
globalThis.WorkerGlobalScope = class {};
globalThis.self = { location: { href: "file:///engine_bundle.js" } };
globalThis.XMLHttpRequest = class {
  open(_method, url) {
    this.name = url.split("/").pop();
  }
  send() {
    const bytes = readFileSync(join(directory, this.name));
    this.response = bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.length);
  }
};
console.log = console.warn = console.error = (...words) => process.stderr.write(words.join(" ") + "\n");
vm.runInThisContext(readFileSync(join(directory, "engine_bundle.js"), "utf8"));

const port = {
  postMessage(bytes) {
    for (let at = 0; at < bytes.length; ) {
      try {
        at += writeSync(1, bytes, at);
      } catch (error) {
        if (error.code !== "EAGAIN") throw error;
      }
    }
  },
};
globalThis.self.onmessage({ data: port });
// It is ready a turn of the event loop later.
setTimeout(() => {
  process.stdin.on("data", (bytes) => port.onmessage({ data: new Uint8Array(bytes) }));
}, 0);
