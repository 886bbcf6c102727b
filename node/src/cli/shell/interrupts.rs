//! Ctrl-C while a question is asked: it ends the question, and not the shell.

use std::sync::Arc;

use anyhow::Context;
use parking_lot::Mutex;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// What a shell ends with that is interrupted (128 and the signal's number, as shells have it).
const INTERRUPTED: i32 = 130;

/// Listens for Ctrl-C from its making on.
pub(super) struct Interrupts(Arc<Mutex<Option<CancellationToken>>>);

impl Interrupts {
    /// Takes the signal over.
    ///
    /// # Errors
    /// The signal cannot be listened for.
    pub(super) fn listen() -> anyhow::Result<Self> {
        let asked: Arc<Mutex<Option<CancellationToken>>> = Arc::default();
        let heard = Arc::clone(&asked);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let mut interrupts = {
            let _in_runtime = runtime.enter();
            signal(SignalKind::interrupt()).context("listening for Ctrl-C")?
        };
        std::thread::spawn(move || {
            runtime.block_on(async {
                while interrupts.recv().await.is_some() {
                    // Of a question that does not end, a second one ends the shell.
                    match heard.lock().take() {
                        Some(question) => question.cancel(),
                        None => std::process::exit(INTERRUPTED),
                    }
                }
            });
        });
        Ok(Self(asked))
    }

    /// The next Ctrl-C stops this question.
    pub(super) fn stops(&self, question: CancellationToken) {
        *self.0.lock() = Some(question);
    }
}
