//! Ctrl-C while a question is asked: it ends the question, and not the shell.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use parking_lot::Mutex;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// What a shell ends with that is interrupted (128 and the signal's number, as shells have it).
const INTERRUPTED: i32 = 130;

/// How long a question has to end before another Ctrl-C ends the shell.
const PATIENCE: Duration = Duration::from_secs(1);

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
                let mut stopped: Option<Instant> = None;
                while interrupts.recv().await.is_some() {
                    match heard.lock().take() {
                        Some(question) => {
                            question.cancel();
                            stopped = Some(Instant::now());
                        }
                        // A question that does not end all the same ends with the shell.
                        None if stopped.is_some_and(|at| at.elapsed() > PATIENCE) => std::process::exit(INTERRUPTED),
                        None => {}
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
