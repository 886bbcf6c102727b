//! Commands on a terminal, which util-linux's `script` makes.

use std::io::{Read, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::PATIENCE;

/// A command on a terminal of its own.
pub struct Terminal {
    child: Child,
    keys: ChildStdin,
    screen: Arc<Mutex<String>>,
    /// How much of the screen was searched.
    seen: usize,
}

impl Terminal {
    /// `script` is a command of util-linux's script, to which the rest is given.
    pub fn open(mut script: Command, line: &str) -> Self {
        let mut child = script
            // The command replaces its shell: a shell that waits for it would end on a Ctrl-C that
            // the command survives, dash with 130.
            .args(["-qefc", &format!("exec {line}"), "/dev/null"])
            .env("SHELL", "/bin/sh")
            .env("TERM", "xterm")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("script, of bsdutils, runs");
        let keys = child.stdin.take().expect("its input");
        let mut output = child.stdout.take().expect("its output");
        let screen: Arc<Mutex<String>> = Arc::default();
        let shown = Arc::clone(&screen);
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(length @ 1..) = output.read(&mut bytes) {
                shown.lock().expect("not poisoned").push_str(&String::from_utf8_lossy(&bytes[..length]));
            }
        });
        Self { child, keys, screen, seen: 0 }
    }

    /// Types.
    pub fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).expect("the terminal takes keys");
        self.keys.flush().expect("the terminal takes keys");
    }

    /// Waits for a text after what was seen before.
    pub fn see(&mut self, text: &str) {
        let until = Instant::now() + PATIENCE;
        while !self.sees(text) {
            assert!(Instant::now() < until, "no {text:?} on: {}", self.screen.lock().expect("not poisoned"));
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Whether a text is there after what was seen before.
    pub fn sees(&mut self, text: &str) -> bool {
        let screen = self.screen.lock().expect("not poisoned");
        let found = screen[self.seen..].find(text).map(|at| self.seen + at + text.len());
        self.seen = found.unwrap_or(self.seen);
        found.is_some()
    }

    /// The process that `script` is.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// What was shown so far.
    pub fn shown(&self) -> String {
        self.screen.lock().expect("not poisoned").clone()
    }

    /// Waits for its end.
    pub fn ends(mut self) -> Option<i32> {
        let until = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait().expect("waits") {
                return status.code();
            }
            assert!(Instant::now() < until, "it does not end: {}", self.screen.lock().expect("not poisoned"));
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}
