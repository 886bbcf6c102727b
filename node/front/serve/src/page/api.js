// Asking: the session's token, problems as errors, events over fetch (EventSource sends no token).
"use strict";

const KEY = "rankmesh-token";

/** A problem as the server tells it (RFC 9457). */
export class Problem extends Error {
  constructor(status, body) {
    super(body && body.detail ? body.detail : `HTTP ${status}`);
    this.status = status;
    this.coverage = body && body.coverage;
  }
}

/** Whether there is a token. A cookie would be sent by pages of other ports of this host, too. */
export const signedIn = () => sessionStorage.getItem(KEY) !== null;
export const signOut = () => sessionStorage.removeItem(KEY);
export const useToken = (token) => sessionStorage.setItem(KEY, token);

/** Makes a session of the secret in the link, once; it is taken out of the address. */
export async function signInByLink() {
  const found = /^#k=([A-Za-z0-9_-]+)$/.exec(location.hash);
  if (!found) return;
  history.replaceState(null, "", location.pathname);
  const answer = await fetch("/api/v1/session", {
    method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify({ secret: found[1] }),
  });
  if (!answer.ok) throw await problem(answer);
  useToken((await answer.json()).token);
}

async function problem(answer) {
  let body = null;
  try { body = await answer.json(); } catch { /* not from the server itself */ }
  return new Problem(answer.status, body);
}

/** An answer that is none of the problems. */
export async function request(path, options = {}) {
  const headers = { ...options.headers };
  const token = sessionStorage.getItem(KEY);
  if (token) headers.authorization = `Bearer ${token}`;
  const answer = await fetch(path, { ...options, headers });
  if (!answer.ok) throw await problem(answer);
  return answer;
}

/** A document. Integers beyond 2^53 come as text, since numbers here would lose digits. */
export async function json(path, options) {
  return exact(await (await request(path, options)).text());
}

/** JSON whose integers keep all digits. */
export const exact = (text) => JSON.parse(text, (_, value, context) => {
  const lost = typeof value === "number" && context && Number.isInteger(value) && !Number.isSafeInteger(value);
  return lost ? context.source : value;
});

/** A question, `{sql or saved, parameters}`, with integers of any size; the answer's body is the caller's. */
export function question(given, parameters = {}, options = {}) {
  const whole = (_, value) => (typeof value !== "bigint" ? value : JSON.rawJSON ? JSON.rawJSON(String(value)) : Number(value));
  const headers = { "content-type": "application/json" };
  return request(`/api/v1/query?${new URLSearchParams(parameters)}`, { method: "POST", body: JSON.stringify(given, whole), headers, ...options });
}

/** Calls `take(event, data)` for each event until the server ends it or `signal` does. */
export async function events(path, take, signal, parse = exact) {
  const answer = await request(path, { signal });
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    rest += value;
    const blocks = rest.split("\n\n");
    rest = blocks.pop();
    for (const block of blocks) {
      let name = "message";
      const data = [];
      for (const line of block.split("\n")) {
        if (line.startsWith("event:")) name = line.slice(6).trim();
        if (line.startsWith("data:")) data.push(line.slice(5).replace(/^ /, ""));
      }
      if (data.length) take(name, parse(data.join("\n")));
    }
  }
}
