//! Ctrl-C while a question runs: it ends the question, and not the shell.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use parking_lot::Mutex;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// Exit code of an interrupted shell (128 and the signal's number, as shells do it).
const INTERRUPTED: i32 = 130;

/// Time that a question has to end before another Ctrl-C ends the shell.
const PATIENCE: Duration = Duration::from_secs(3);

/// Receives Ctrl-C from its creation on.
#[derive(Clone)]
pub(super) struct Interrupts(Arc<Mutex<Asked>>);

/// What the next Ctrl-C does.
#[derive(Default)]
enum Asked {
    /// No question runs: nothing.
    #[default]
    Nothing,
    /// It stops this question.
    Question(CancellationToken),
    /// The question was stopped at this time, and has not ended.
    Stopped(Instant),
}

impl Interrupts {
    /// Installs the signal handler.
    ///
    /// # Errors
    /// The handler cannot be installed.
    pub(super) fn listen() -> anyhow::Result<Self> {
        let asked: Arc<Mutex<Asked>> = Arc::default();
        let shared = Arc::clone(&asked);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let mut interrupts = {
            let _in_runtime = runtime.enter();
            signal(SignalKind::interrupt()).context("listening for Ctrl-C")?
        };
        std::thread::spawn(move || {
            runtime.block_on(async {
                while interrupts.recv().await.is_some() {
                    let mut asked = shared.lock();
                    match &*asked {
                        Asked::Question(question) => {
                            question.cancel();
                            *asked = Asked::Stopped(Instant::now());
                        }
                        Asked::Stopped(at) if at.elapsed() > PATIENCE => std::process::exit(INTERRUPTED),
                        Asked::Stopped(_) | Asked::Nothing => {}
                    }
                }
            });
        });
        Ok(Self(asked))
    }

    /// The next Ctrl-C stops this question.
    pub(super) fn stops(&self, question: CancellationToken) {
        *self.0.lock() = Asked::Question(question);
    }

    /// The question has ended: Ctrl-C does nothing more.
    pub(super) fn ended(&self) {
        *self.0.lock() = Asked::Nothing;
    }
}
