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
const PATIENCE: Duration = Duration::from_secs(3);

/// Listens for Ctrl-C from its making on.
#[derive(Clone)]
pub(super) struct Interrupts(Arc<Mutex<Asked>>);

/// What a Ctrl-C is for.
#[derive(Default)]
enum Asked {
    /// No question is asked: for nothing.
    #[default]
    Nothing,
    /// To stop this question.
    Question(CancellationToken),
    /// The question was stopped then, and has not ended.
    Stopped(Instant),
}

impl Interrupts {
    /// Takes the signal over.
    ///
    /// # Errors
    /// The signal cannot be listened for.
    pub(super) fn listen() -> anyhow::Result<Self> {
        let asked: Arc<Mutex<Asked>> = Arc::default();
        let heard = Arc::clone(&asked);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let mut interrupts = {
            let _in_runtime = runtime.enter();
            signal(SignalKind::interrupt()).context("listening for Ctrl-C")?
        };
        std::thread::spawn(move || {
            runtime.block_on(async {
                while interrupts.recv().await.is_some() {
                    let mut asked = heard.lock();
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

    /// The question has ended: Ctrl-C ends nothing more.
    pub(super) fn ended(&self) {
        *self.0.lock() = Asked::Nothing;
    }
}
