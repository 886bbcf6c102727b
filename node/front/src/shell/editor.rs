//! The line editor on a terminal: prompts, history, completion. The session interprets the lines.

use std::path::{Path, PathBuf};

use rustyline::completion::Completer;
use rustyline::error::ReadlineError;
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::history::FileHistory;
use rustyline::validate::Validator;
use rustyline::{CompletionType, Config, Context, Editor, Helper};

use super::complete::{Names, candidates};

const PROMPT: &str = "rankmesh> ";
const FURTHER: &str = "     ...> ";
/// Statements remembered.
const HISTORY: usize = 1_000;

/// A line of input, or a key.
pub(super) enum Typed {
    Line(String),
    /// Ctrl-C: the input so far is dropped.
    GivenUp,
    /// Ctrl-D.
    End,
}

/// Reads lines from a terminal.
pub(super) struct LineEditor {
    editor: Editor<Completing, FileHistory>,
    history: Option<PathBuf>,
}

impl LineEditor {
    /// An editor that completes `names` and keeps its history in `history`.
    pub(super) fn new(names: Names, history: Option<PathBuf>) -> anyhow::Result<Self> {
        let config = Config::builder()
            .max_history_size(HISTORY)?
            .completion_type(CompletionType::List)
            .auto_add_history(false)
            .build();
        let mut editor = Editor::with_config(config)?;
        editor.set_helper(Some(Completing { names, before: String::new() }));
        let history = history.filter(|path| match made(path).and_then(|()| Ok(editor.load_history(path)?)) {
            Ok(()) => true,
            Err(error) => {
                eprintln!("rankmesh: no history: {}: {error:#}", path.display());
                false
            }
        });
        Ok(Self { editor, history })
    }

    /// The next line; `before` are those of the same statement.
    pub(super) fn read(&mut self, before: &str) -> anyhow::Result<Typed> {
        if let Some(helper) = self.editor.helper_mut() {
            before.clone_into(&mut helper.before);
        }
        match self.editor.readline(if before.is_empty() { PROMPT } else { FURTHER }) {
            Ok(line) => Ok(Typed::Line(line)),
            Err(ReadlineError::Interrupted) => Ok(Typed::GivenUp),
            Err(ReadlineError::Eof) => Ok(Typed::End),
            Err(error) => Err(error.into()),
        }
    }

    /// Adds a statement to the history, of this shell and the next.
    pub(super) fn remember(&mut self, typed: &str) {
        if !self.editor.add_history_entry(typed).unwrap_or(false) {
            return;
        }
        let appended = self.history.as_ref().map(|path| self.editor.append_history(path));
        if let Some(Err(error)) = appended {
            eprintln!("rankmesh: no history: {error}");
            self.history = None;
        }
    }
}

/// The history's file, readable by its owner alone.
fn made(path: &Path) -> anyhow::Result<()> {
    use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
    if let Some(directory) = path.parent() {
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    }
    let file = std::fs::OpenOptions::new().append(true).create(true).mode(0o600).open(path)?;
    if file.metadata()?.permissions().mode() & 0o077 != 0 {
        file.set_permissions(std::fs::Permissions::from_mode(0o600))?;
    }
    Ok(())
}

struct Completing {
    names: Names,
    before: String,
}

impl Completer for Completing {
    type Candidate = String;

    fn complete(&self, line: &str, at: usize, _: &Context<'_>) -> rustyline::Result<(usize, Vec<String>)> {
        Ok(candidates(&self.before, line, at, &self.names))
    }
}

impl Hinter for Completing {
    type Hint = String;
}
impl Highlighter for Completing {}
impl Validator for Completing {}
impl Helper for Completing {}
