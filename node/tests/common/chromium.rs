//! A real browser without a screen, over the DevTools protocol
//! (<https://chromedevtools.github.io/devtools-protocol/>) on a pair of pipes.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use base64::Engine as _;
use serde_json::{Value, json};

use super::{Killed, PATIENCE};

/// A page in Chromium.
pub struct Chromium {
    _child: Killed,
    to: ChildStdin,
    from: Receiver<Value>,
    seen: VecDeque<Value>,
    number: u64,
    session: Option<String>,
}

/// Of the window, pixels.
const HEIGHT: u32 = 900;

impl Chromium {
    /// With this file open at that width and colours; an error where there is no browser.
    pub fn open(file: &Path, width: u32, dark: bool) -> Result<Self, String> {
        Self::open_url(&format!("file://{}", file.display()), width, dark)
    }

    /// As [`Self::open`], with a page from a server.
    pub fn open_url(url: &str, width: u32, dark: bool) -> Result<Self, String> {
        let profile = tempfile::tempdir().map_err(|error| error.to_string())?;
        // It takes messages on descriptor 3 and answers on 4, each ended by a NUL.
        let command = "exec chromium --headless=new --no-sandbox --disable-gpu --disable-dev-shm-usage --no-first-run \
                       --disable-background-networking --disable-extensions --remote-debugging-pipe --user-data-dir=\"$0\" about:blank \
                       3<&0 4>&1 0</dev/null 1>/dev/null 2>/dev/null";
        if !Command::new("chromium").arg("--version").output().is_ok_and(|output| output.status.success()) {
            return Err("chromium (Debian's) is not installed (scripts/deps.sh --test)".to_owned());
        }
        let mut child = Command::new("sh")
            .args(["-c", command])
            .arg(profile.path())
            // It leaves folders there when it is killed.
            .env("TMPDIR", profile.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| error.to_string())?;
        let to = child.stdin.take().expect("a pipe");
        let mut output = BufReader::new(child.stdout.take().expect("a pipe"));
        let (send, from) = channel();
        std::thread::spawn(move || {
            // It is removed when the browser has gone.
            let _profile = profile;
            let mut message = Vec::new();
            while output.read_until(0, &mut message).is_ok_and(|read| read > 0) {
                message.pop();
                let Ok(value) = serde_json::from_slice(&message) else { break };
                message.clear();
                if send.send(value).is_err() {
                    break;
                }
            }
        });
        let mut this = Self { _child: Killed(child), to, from, seen: VecDeque::new(), number: 0, session: None };
        let target = this.call("Target.createTarget", json!({ "url": "about:blank" }));
        let attached = this.call("Target.attachToTarget", json!({ "targetId": target["targetId"], "flatten": true }));
        this.session = attached["sessionId"].as_str().map(str::to_owned);
        for domain in ["Page", "Runtime", "Log", "Network"] {
            this.call(&format!("{domain}.enable"), json!({}));
        }
        let colours = if dark { "dark" } else { "light" };
        let feature = json!([{ "name": "prefers-color-scheme", "value": colours }]);
        this.call("Emulation.setEmulatedMedia", json!({ "features": feature }));
        let size = json!({ "width": width, "height": HEIGHT, "deviceScaleFactor": 1, "mobile": false });
        this.call("Emulation.setDeviceMetricsOverride", size);
        this.call("Page.navigate", json!({ "url": url }));
        this.wait("Page.loadEventFired");
        Ok(this)
    }

    /// The value of an expression on the page.
    pub fn evaluate(&mut self, expression: &str) -> Value {
        let asked = json!({ "expression": expression, "returnByValue": true, "awaitPromise": true });
        let result = self.call("Runtime.evaluate", asked);
        assert_eq!(result["exceptionDetails"], Value::Null, "{expression}");
        result["result"]["value"].clone()
    }

    /// Waits until an expression is true.
    pub fn wait_until(&mut self, expression: &str) {
        super::wait_for(expression, || match self.evaluate(expression) {
            Value::Bool(true) => Ok(()),
            other => Err(other.to_string()),
        });
    }

    /// Network off, as in a network without internet.
    pub fn go_offline(&mut self) {
        let offline = json!({ "offline": true, "latency": 0, "downloadThroughput": -1, "uploadThroughput": -1 });
        self.call("Network.emulateNetworkConditions", offline);
    }

    /// A click of the mouse, pixels of the window.
    pub fn click(&mut self, x: f64, y: f64) {
        for kind in ["mouseMoved", "mousePressed", "mouseReleased"] {
            let button = if kind == "mouseMoved" { "none" } else { "left" };
            let asked = json!({ "type": kind, "x": x, "y": y, "button": button, "clickCount": 1 });
            self.call("Input.dispatchMouseEvent", asked);
        }
    }

    /// Writes the whole page as a PNG. The window becomes as high as the page first: what is drawn anew as
    /// it grows would be caught empty.
    pub fn screenshot(&mut self, to: &Path) {
        let size = self.evaluate("[innerWidth, Math.max(innerHeight, document.documentElement.scrollHeight)]");
        let window =
            |height: &Value| json!({ "width": size[0], "height": height, "deviceScaleFactor": 1, "mobile": false });
        self.call("Emulation.setDeviceMetricsOverride", window(&size[1]));
        self.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(0))))");
        let result = self.call("Page.captureScreenshot", json!({ "format": "png" }));
        std::fs::write(to, decoded(&result["data"])).expect("written");
        self.call("Emulation.setDeviceMetricsOverride", window(&json!(HEIGHT)));
    }

    /// The page on paper.
    pub fn pdf(&mut self) -> Vec<u8> {
        let result = self.call("Page.printToPDF", json!({ "preferCSSPageSize": true, "printBackground": true }));
        decoded(&result["data"])
    }

    /// What went wrong on the page, and what it asked the network for, so far.
    pub fn complaints(&mut self) -> Vec<String> {
        // All earlier events have arrived before this answer.
        self.call("Runtime.evaluate", json!({ "expression": "0" }));
        let complaint = |event: &Value| {
            let params = &event["params"];
            match event["method"].as_str()? {
                "Runtime.exceptionThrown" => Some(params.to_string()),
                "Runtime.consoleAPICalled" if params["type"] == "error" => Some(params["args"].to_string()),
                "Log.entryAdded" if params["entry"]["level"] == "error" => Some(params["entry"]["text"].to_string()),
                "Network.requestWillBeSent" => {
                    let url = params["request"]["url"].as_str()?;
                    (params["type"] != "Document" || !url.starts_with("file:")).then(|| format!("asks for {url}"))
                }
                _ => None,
            }
        };
        self.seen.iter().filter_map(complaint).collect()
    }

    fn call(&mut self, method: &str, params: Value) -> Value {
        self.number += 1;
        let mut message = json!({ "id": self.number, "method": method, "params": params });
        if let Some(session) = &self.session {
            message["sessionId"] = json!(session);
        }
        let mut bytes = message.to_string().into_bytes();
        bytes.push(0);
        self.to.write_all(&bytes).and_then(|()| self.to.flush()).expect("chromium reads");
        loop {
            let answer = self.next(method);
            if answer["id"] == self.number {
                assert_eq!(answer["error"], Value::Null, "{method}");
                return answer["result"].clone();
            }
            self.seen.push_back(answer);
        }
    }

    fn wait(&mut self, event: &str) {
        while !self.seen.iter().any(|seen| seen["method"] == event) {
            let next = self.next(event);
            self.seen.push_back(next);
        }
    }

    fn next(&mut self, what: &str) -> Value {
        self.from.recv_timeout(PATIENCE.max(Duration::from_secs(60))).unwrap_or_else(|error| panic!("{what}: {error}"))
    }
}

fn decoded(data: &Value) -> Vec<u8> {
    base64::engine::general_purpose::STANDARD.decode(data.as_str().expect("data")).expect("base64")
}
