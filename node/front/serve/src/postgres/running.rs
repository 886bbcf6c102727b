//! A question that runs: its columns, and its rows as they come from the nodes.

use std::collections::VecDeque;
use std::sync::{Arc, OnceLock};

use ask::{Piece, Reply, Target};
use futures::channel::oneshot;
use futures::future::FusedFuture;
use model::{Coverage, Question};
use pgwire::api::Type;
use pgwire::api::portal::Format;
use pgwire::api::results::{FieldFormat, FieldInfo};
use pgwire::error::{PgWireError, PgWireResult};
use query_planner::{ColumnMeta, Value};
use tokio::sync::mpsc;
use tokio_util::sync::DropGuard;

use super::super::gateway::{Shared, Who, send_blocking};
use super::infer::{self, Inferred};
use super::tokens::Token;
use super::{errors, types};

/// Pieces of an answer that wait for their client; beyond, the nodes have to wait.
const PIECES: usize = 2;

enum Event {
    Columns(Vec<ColumnMeta>),
    Rows(Vec<Vec<Value>>),
    /// The plan, a line a row.
    Plan(String),
    End(Option<Coverage>),
    Failed(anyhow::Error),
}

/// The next item of an answer.
pub(super) enum Next {
    Row(Vec<Value>),
    /// With its coverage, if nodes were asked.
    End(Option<Coverage>),
}

/// A question that was started. Dropping it ends it on every node.
pub(super) struct Running {
    columns: Vec<(String, Type)>,
    /// Columns whose type neither their declaration nor a value told.
    untyped: Vec<bool>,
    waiting: VecDeque<Vec<Value>>,
    events: Option<mpsc::Receiver<Event>>,
    /// Set at the end, for those as well who read on from here ([`Self::rest`]).
    ended: Arc<OnceLock<Option<Coverage>>>,
    _stop: Option<DropGuard>,
}

impl Running {
    /// An answer that is complete already.
    pub(super) fn of_rows(columns: &[ColumnMeta], rows: Vec<Vec<Value>>) -> Self {
        let waiting = VecDeque::from(rows);
        let untyped = untyped(columns, &waiting);
        let columns = typed(columns, &waiting);
        Self { columns, untyped, waiting, events: None, ended: ended(None), _stop: None }
    }

    /// These rows under the columns of this answer; with its coverage, if they are its last.
    pub(super) fn like(&self, rows: Vec<Vec<Value>>, coverage: Option<Coverage>) -> Self {
        let (columns, untyped) = (self.columns.clone(), self.untyped.clone());
        Self { columns, untyped, waiting: rows.into(), events: None, ended: ended(coverage), _stop: None }
    }

    /// What is left once somebody else has read this answer: its end.
    pub(super) fn rest(&self) -> Self {
        let (columns, untyped) = (self.columns.clone(), self.untyped.clone());
        let ended = Arc::clone(&self.ended);
        Self { columns, untyped, waiting: VecDeque::new(), events: None, ended, _stop: None }
    }

    /// Asks the nodes, and waits for the first rows: they decide the types of columns.
    ///
    /// # Errors
    /// The question is wrong or failed, or was cancelled.
    pub(super) async fn ask(
        gateway: &Shared,
        who: &Who,
        question: Question,
        cancelled: &mut oneshot::Receiver<()>,
    ) -> PgWireResult<Self> {
        let (to, events) = mpsc::channel(PIECES);
        // A pool of connections asks more at once than there is room for: each waits for its turn.
        let longest = std::time::Duration::from_millis(question.timeout_ms);
        let started = gateway.begin_within(who, longest, move |target: &Target| {
            let give = |event: Event| send_blocking(&to, event);
            let asked = target.query(question, &mut |piece| {
                match piece {
                    Piece::Columns(columns) => give(Event::Columns(columns))?,
                    Piece::Rows(rows) if !rows.is_empty() => give(Event::Rows(rows))?,
                    // No piece to pass on; but the receiver may be gone.
                    Piece::Idle if to.is_closed() => anyhow::bail!("the client is gone"),
                    Piece::Rows(_) | Piece::Idle | Piece::Watched(_) => {}
                }
                Ok(())
            });
            // If the receiver is gone, the end is not needed either.
            let _ = give(match asked {
                Ok(Reply::Result { coverage, .. }) => Event::End(Some(coverage)),
                Ok(Reply::Text(plan)) => Event::Plan(plan),
                Ok(Reply::Board(_)) => Event::Failed(anyhow::anyhow!("something else came in place of rows")),
                Err(error) => Event::Failed(error),
            });
        });
        let started = if cancelled.is_terminated() {
            started.await
        } else {
            tokio::select! {
                biased;
                Ok(()) = &mut *cancelled => return Err(PgWireError::QueryCanceled),
                started = started => started,
            }
        };
        let (_, stop) = started.map_err(|problem| errors::of_problem(&problem))?;
        let mut running = Self {
            columns: Vec::new(),
            untyped: Vec::new(),
            waiting: VecDeque::new(),
            events: Some(events),
            ended: Arc::default(),
            _stop: Some(stop),
        };
        let mut columns = Vec::new();
        while running.waiting.is_empty() && running.ended.get().is_none() {
            if let Some(found) = running.step(cancelled).await? {
                columns = found;
            }
        }
        running.untyped = untyped(&columns, &running.waiting);
        running.columns = typed(&columns, &running.waiting);
        Ok(running)
    }

    /// Takes the next piece, or its columns.
    async fn step(&mut self, cancelled: &mut oneshot::Receiver<()>) -> PgWireResult<Option<Vec<ColumnMeta>>> {
        let Some(events) = &mut self.events else {
            return Err(errors::cursor(
                "its rows were asked for before, and did not all come: DECLARE it anew".to_owned(),
            ));
        };
        let event = if cancelled.is_terminated() {
            events.recv().await
        } else {
            tokio::select! {
                biased;
                // The only effect of an error is that the next question of the session cannot be
                // cancelled by it.
                Ok(()) = &mut *cancelled => return Err(PgWireError::QueryCanceled),
                event = events.recv() => event,
            }
        };
        match event {
            Some(Event::Columns(columns)) => return Ok(Some(columns)),
            Some(Event::Rows(rows)) => self.waiting.extend(rows),
            Some(Event::Plan(plan)) => {
                self.waiting.extend(plan.lines().map(|line| vec![Value::Text(record::printable(line).into_bytes())]));
                let _ = self.ended.set(None);
                return Ok(Some(vec![ColumnMeta { name: "QUERY PLAN".to_owned(), decl_type: "TEXT".to_owned() }]));
            }
            Some(Event::End(coverage)) => {
                // (There is one end.)
                let _ = self.ended.set(coverage);
            }
            Some(Event::Failed(error)) => return Err(errors::of(&error)),
            None => return Err(errors::data("the question ended without a word".to_owned())),
        }
        Ok(None)
    }

    /// The next row, or the end.
    ///
    /// # Errors
    /// The question failed, or was cancelled.
    pub(super) async fn next(&mut self, cancelled: &mut oneshot::Receiver<()>) -> PgWireResult<Next> {
        loop {
            if let Some(row) = self.waiting.pop_front() {
                return Ok(Next::Row(row));
            }
            if let Some(coverage) = self.at_end(cancelled).await? {
                return Ok(Next::End(coverage));
            }
        }
    }

    /// Its coverage, if no row is left: it waits for a further row, or the end.
    ///
    /// # Errors
    /// As [`Self::next`].
    pub(super) async fn at_end(
        &mut self,
        cancelled: &mut oneshot::Receiver<()>,
    ) -> PgWireResult<Option<Option<Coverage>>> {
        while self.waiting.is_empty() {
            if let Some(coverage) = self.ended.get() {
                return Ok(Some(coverage.clone()));
            }
            self.step(cancelled).await?;
        }
        Ok(None)
    }

    /// The types of its columns.
    pub(super) fn types(&self) -> Vec<Type> {
        self.columns.iter().map(|(_, kind)| kind.clone()).collect()
    }

    /// Gives columns without a name in this statement those that PostgreSQL gives them.
    pub(super) fn label(&mut self, tokens: &[Token]) {
        let labels = infer::labels(tokens, self.columns.len());
        for ((name, _), label) in self.columns.iter_mut().zip(labels) {
            *name = label.unwrap_or_else(|| std::mem::take(name));
        }
    }

    /// Whether there are columns whose type nothing told so far.
    pub(super) fn has_untyped(&self) -> bool {
        self.untyped.contains(&true)
    }

    /// Gives such columns the types of their expressions.
    pub(super) fn infer(&mut self, kinds: &[Option<Inferred>]) {
        if kinds.len() != self.columns.len() {
            return; // not the list of this result
        }
        for (((_, kind), untyped), inferred) in self.columns.iter_mut().zip(&mut self.untyped).zip(kinds) {
            if let (true, Some(inferred)) = (*untyped, inferred) {
                *kind = types::of(*inferred);
                *untyped = false;
            }
        }
    }

    /// Sets other types of its columns: those that a client was sent before.
    pub(super) fn retype(&mut self, types: &[Type]) {
        for ((_, kind), described) in self.columns.iter_mut().zip(types) {
            *kind = described.clone();
        }
    }

    /// Sets the formats of its columns that a client asked for.
    ///
    /// # Errors
    /// The number of formats differs from that of columns.
    pub(super) fn fields(&self, format: &Format) -> PgWireResult<Arc<Vec<FieldInfo>>> {
        if let Format::Individual(codes) = format
            && codes.len() != self.columns.len()
        {
            return Err(errors::data(format!("{} forms for {} columns", codes.len(), self.columns.len())));
        }
        let fields = self.columns.iter().enumerate().map(|(at, (name, kind))| {
            let size = if *kind == Type::BOOL {
                1
            } else if [Type::INT8, Type::FLOAT8].contains(kind) {
                8
            } else {
                -1
            };
            let form: FieldFormat = format.format_for(at);
            FieldInfo::new(name.clone(), None, None, kind.clone(), form).with_type_size(size)
        });
        Ok(Arc::new(fields.collect()))
    }
}

fn ended(coverage: Option<Coverage>) -> Arc<OnceLock<Option<Coverage>>> {
    Arc::new(OnceLock::from(coverage))
}

fn untyped(columns: &[ColumnMeta], rows: &VecDeque<Vec<Value>>) -> Vec<bool> {
    let has_value = |at: usize| rows.iter().filter_map(|row| row.get(at)).any(|value| *value != Value::Null);
    columns.iter().enumerate().map(|(at, column)| column.decl_type.is_empty() && !has_value(at)).collect()
}

fn typed(columns: &[ColumnMeta], rows: &VecDeque<Vec<Value>>) -> Vec<(String, Type)> {
    let of = |(at, column): (usize, &ColumnMeta)| {
        let values = rows.iter().filter_map(|row| row.get(at));
        (column.name.clone(), types::seen(&column.decl_type, values))
    };
    columns.iter().enumerate().map(of).collect()
}
