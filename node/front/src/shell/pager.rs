//! A pager for answers that are longer than the terminal: `$PAGER`, else `less` where there is one.
//! What fits is printed as it comes; so is an answer that comes slowly.

use std::io::{self, Write, stdout};
use std::process::{Child, ChildStdin, Command, Stdio};

use ratatui::crossterm::terminal;

/// The pager's command and whether it is used.
#[derive(Debug, Clone, Default)]
pub(super) struct Pager {
    command: Option<String>,
    pub(super) is_on: bool,
}

impl Pager {
    /// That of the environment, for a terminal.
    pub(super) fn of_environment() -> Self {
        let command = match std::env::var("PAGER") {
            // (No pager is wanted.)
            Ok(command) if ["", "cat"].contains(&command.trim()) => None,
            Ok(command) => Some(command),
            Err(_) => in_path("less").then(|| "less".to_owned()),
        };
        Self { is_on: command.is_some(), command }
    }

    /// Output that the pager gets if it is longer than the terminal.
    pub(super) fn output(&self) -> Paged {
        let height = terminal::size().ok().filter(|(_, rows)| *rows > 0);
        let height = height.map_or(usize::MAX, |(_, rows)| usize::from(rows));
        match self.command.clone().filter(|_| self.is_on) {
            // (The prompt and the line on coverage are to be seen, too.)
            Some(command) => {
                Paged { command, room: height.saturating_sub(2), state: State::Waiting { text: Vec::new(), lines: 0 } }
            }
            None => Paged { command: String::new(), room: 0, state: State::Direct },
        }
    }
}

fn in_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|directory| directory.join(program).is_file())
}

/// Output to the terminal, or to a pager.
pub(super) struct Paged {
    command: String,
    /// Lines that fit.
    room: usize,
    state: State,
}

enum State {
    /// Not longer than the terminal so far.
    Waiting {
        text: Vec<u8>,
        lines: usize,
    },
    Direct,
    Paging(Child, ChildStdin),
}

impl Paged {
    /// Waits for the pager, if there is one; returns whether there was.
    ///
    /// # Errors
    /// The terminal cannot be written.
    pub(super) fn finish(mut self) -> io::Result<bool> {
        self.flush()?;
        let State::Paging(mut pager, input) = self.state else { return Ok(false) };
        drop(input);
        pager.wait()?;
        Ok(true)
    }

    fn start(&mut self, text: &[u8]) -> io::Result<()> {
        let mut pager = Command::new("sh");
        // F: an answer that fits after all is only printed. R: colours. S: lines are cut, not
        // wrapped. X: it stays on the screen.
        if std::env::var_os("LESS").is_none() {
            pager.env("LESS", "FRSX");
        }
        let mut pager = pager.args(["-c", &self.command]).stdin(Stdio::piped()).spawn()?;
        let Some(mut input) = pager.stdin.take() else { return Err(io::Error::other("a pager without input")) };
        let written = input.write_all(text);
        self.state = State::Paging(pager, input);
        written
    }
}

impl Write for Paged {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &mut self.state {
            State::Direct => stdout().write_all(bytes)?,
            State::Paging(_, input) => input.write_all(bytes)?,
            State::Waiting { text, lines } => {
                text.extend_from_slice(bytes);
                *lines += bytes.iter().filter(|byte| **byte == b'\n').count();
                if *lines > self.room {
                    let text = std::mem::take(text);
                    self.start(&text)?;
                }
            }
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        match &mut self.state {
            State::Direct => stdout().flush(),
            State::Paging(_, input) => input.flush(),
            State::Waiting { text, .. } if text.is_empty() => Ok(()),
            State::Waiting { text, .. } => {
                let text = std::mem::take(text);
                self.state = State::Direct;
                stdout().write_all(&text)?;
                stdout().flush()
            }
        }
    }
}
