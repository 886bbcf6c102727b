//! A client's session: its statements by the simple protocol, and the answers that are being read.
//! `extended` has the extended protocol, `settings` what `SET` and `SHOW` are about.

mod cursors;
mod extended;
mod kept;
mod settings;

use bytes::{Bytes, BytesMut};
use std::collections::HashMap;
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::channel::oneshot;
use futures::{Sink, SinkExt};
use model::{Coverage, Question};
use parking_lot::Mutex;
use pgwire::api::portal::{Format, Portal};
use pgwire::api::query::{SimpleQueryHandler, send_ready_for_query};
use pgwire::api::results::{DataRowEncoder, FieldInfo, Response, Tag};
use pgwire::api::stmt::QueryParser;
use pgwire::api::store::PortalStore;
use pgwire::api::{ClientInfo, ClientPortalStore, ConnectionHandle, DEFAULT_NAME, PgWireConnectionState, Type};
use pgwire::error::{PgWireError, PgWireResult};
use pgwire::messages::PgWireBackendMessage;
use pgwire::messages::copy::{CopyData, CopyDone, CopyOutResponse};
use pgwire::messages::data::RowDescription;
use pgwire::messages::response::{CommandComplete, EmptyQueryResponse, TransactionStatus};
use pgwire::messages::simplequery::Query;
use query_planner::{ColumnMeta, Value};

use super::catalog::{Catalog, Found};
use super::copy::{Copy, Form};
use super::dialect::numbers;
use super::infer::{Inferred, Parameter};
use super::literals::literals;
use super::running::{Next, Running};
use super::statement::{Class, Statement};
pub(super) use cursors::CursorStatement;
use cursors::Cursors;
use kept::{Kept, Kind};
use settings::Settings;

use super::{Asking, auth, dialect, errors, infer, types};

/// The state of a session.
struct Session {
    settings: Mutex<Settings>,
    cursors: tokio::sync::Mutex<Cursors>,
    /// Answers that are being read, by portal; none of a portal whose rows were given up, as from the
    /// start again they would come twice.
    running: tokio::sync::Mutex<HashMap<String, Option<Running>>>,
    /// Types that the client was sent for the columns of a statement.
    given_types: Mutex<HashMap<String, Vec<Type>>>,
    /// The answer that was started to describe a statement without parameters.
    described: tokio::sync::Mutex<Option<(String, Running)>>,
    catalog: Arc<Mutex<Option<Catalog>>>,
    /// What its statements and portals take.
    kept: Mutex<Kept>,
}

/// The handler of clients' messages.
pub(super) struct Handler {
    pub(super) asking: Asking,
}

/// Parses statements.
pub(super) struct Parser;

#[async_trait]
impl QueryParser for Parser {
    type Statement = Statement;

    async fn parse_sql<C>(&self, _: &C, sql: &str, _: &[Option<Type>]) -> PgWireResult<Option<Statement>>
    where
        C: ClientInfo + Unpin + Send + Sync,
    {
        let mut all = Statement::all(sql)?;
        if all.len() > 1 {
            return Err(errors::syntax("cannot insert multiple commands into a prepared statement".to_owned()));
        }
        Ok(all.pop())
    }

    fn get_parameter_types(&self, statement: &Statement) -> PgWireResult<Vec<Type>> {
        Ok(vec![Type::TEXT; statement.parameters()])
    }

    fn get_result_schema(&self, _: &Statement, _: Option<&Format>) -> PgWireResult<Vec<FieldInfo>> {
        // Described by running it; see do_describe_statement.
        Ok(Vec::new())
    }
}

/// Rows that were sent, and whether there are more.
struct Sent {
    rows: usize,
    is_suspended: bool,
}

impl Session {
    /// A prepared statement is no longer there.
    fn forget(&self, store: &impl PortalStore, name: &str) {
        store.rm_statement(name);
        self.kept.lock().end(Kind::Statement, name);
        self.given_types.lock().remove(name);
    }

    /// No prepared statement is there any more, but for the one without a name, as in PostgreSQL.
    fn forget_all(&self, store: &impl PortalStore) {
        let names = self.kept.lock().statements();
        names.iter().filter(|name| *name != DEFAULT_NAME).for_each(|name| self.forget(store, name));
    }

    /// What a client is told that has come to the end of an answer.
    ///
    /// # Errors
    /// Nodes are missing, and `require_all` is on.
    fn notice(&self, coverage: Option<&Coverage>) -> PgWireResult<Option<PgWireBackendMessage>> {
        let Some(coverage) = coverage else { return Ok(None) };
        if self.settings.lock().require_all && !coverage.is_complete() {
            return Err(errors::partial(coverage));
        }
        Ok(errors::notice(coverage))
    }
}

impl Handler {
    fn session<C: ClientInfo>(client: &C) -> Arc<Session> {
        client.session_extensions().get_or_insert_with(|| Session {
            settings: Mutex::default(),
            cursors: tokio::sync::Mutex::default(),
            running: tokio::sync::Mutex::default(),
            given_types: Mutex::default(),
            described: tokio::sync::Mutex::default(),
            catalog: Arc::default(),
            kept: Mutex::default(),
        })
    }

    /// Ends the answers whose rows a client has not asked for.
    pub(super) async fn give_up<C: ClientInfo>(client: &C) {
        let session = Self::session(client);
        session.cursors.lock().await.end(false);
        session.running.lock().await.values_mut().for_each(|running| *running = None);
        session.described.lock().await.take();
    }

    /// A cancel request of the client ends this question from now on.
    async fn cancelled<C: ClientInfo>(client: &C) -> oneshot::Receiver<()> {
        match client.session_extensions().get::<Arc<ConnectionHandle>>() {
            Some(handle) => handle.start_query().await,
            None => oneshot::channel().1,
        }
    }

    /// Starts a statement that has rows.
    async fn begin<C: ClientInfo>(
        &self,
        client: &C,
        statement: &Statement,
        cancelled: &mut oneshot::Receiver<()>,
    ) -> PgWireResult<Running> {
        let session = Self::session(client);
        let who = auth::who(client);
        let longest = self.asking.gateway.longest();
        let wanted = Duration::from_millis(session.settings.lock().timeout_ms).min(longest);
        let timeout = self.asking.gateway.timeout(Some(wanted)).map_err(|problem| errors::of_problem(&problem))?;
        let timeout_ms = u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX);
        let ask = |sql: &str, plan_only| Question { sql: sql.to_owned(), timeout_ms, plan_only, ..Question::default() };
        match &statement.class {
            Class::Nodes => {
                let asked = self.timed(client, statement).await?;
                let mut running = Running::ask(&self.asking.gateway, &who, ask(&asked.sql, false), cancelled).await?;
                self.describe(client, statement, &mut running).await;
                running.label(&statement.tokens);
                Ok(running)
            }
            Class::Explain(_, true) => {
                Err(errors::unsupported("EXPLAIN ANALYZE is not offered here: rankmesh query --explain=analyze is"))
            }
            Class::Explain(at, false) => {
                Running::ask(&self.asking.gateway, &who, ask(&statement.sql[*at..], true), cancelled).await
            }
            Class::Sleep(wanted) => {
                let wanted = Duration::from_millis(*wanted);
                tokio::select! {
                    () = tokio::time::sleep(wanted.min(timeout)) => {}
                    Ok(()) = &mut *cancelled => return Err(PgWireError::QueryCanceled),
                }
                if wanted > timeout {
                    return Err(errors::timed_out(timeout));
                }
                let column = ColumnMeta { name: "pg_sleep".to_owned(), decl_type: "TEXT".to_owned() };
                Ok(Running::of_rows(&[column], vec![vec![Value::Text(Vec::new())]]))
            }
            Class::Catalog => {
                let catalog = Arc::clone(&session.catalog);
                let found = self.asking.catalog(&who, catalog, statement.tokens.clone()).await;
                match found.map_err(|problem| errors::of_problem(&problem))? {
                    Found::Rows(columns, rows) => {
                        let mut running = Running::of_rows(&columns, rows);
                        running.label(&statement.tokens);
                        Ok(running)
                    }
                    Found::Wrong(message) => Err(errors::unsupported(message)),
                }
            }
            Class::Cursor(CursorStatement::Fetch { name, rows }) => {
                session.cursors.lock().await.fetch(name, *rows, cancelled).await
            }
            Class::Show(name) if name == "all" => {
                let columns = ["name", "setting", "description"]
                    .map(|name| ColumnMeta { name: name.to_owned(), decl_type: "TEXT".to_owned() });
                let text = |text: String| Value::Text(text.into_bytes());
                let row = |(name, value)| vec![text(name), text(value), text(String::new())];
                Ok(Running::of_rows(&columns, session.settings.lock().all().into_iter().map(row).collect()))
            }
            Class::Show(name) => {
                let value = session.settings.lock().value(name)?;
                let column = ColumnMeta { name: name.clone(), decl_type: "TEXT".to_owned() };
                Ok(Running::of_rows(&[column], vec![vec![Value::Text(value.into_bytes())]]))
            }
            _ => Err(errors::unsupported("the statement has no rows")),
        }
    }

    /// Runs a statement without rows; none if it has some.
    async fn command<C>(&self, client: &mut C, statement: &Statement) -> PgWireResult<Option<Tag>>
    where
        C: ClientInfo + ClientPortalStore + Sink<PgWireBackendMessage> + Unpin + Send + Sync,
        C::PortalStore: PortalStore,
        C::Error: Debug,
        PgWireError: From<<C as Sink<PgWireBackendMessage>>::Error>,
    {
        let session = Self::session(client);
        let status = client.transaction_status();
        Ok(Some(Tag::new(match &statement.class {
            Class::Begin => {
                client.set_transaction_status(status.to_in_transaction_state());
                session.settings.lock().begin();
                "BEGIN"
            }
            Class::Commit | Class::Rollback => {
                let committed = statement.class == Class::Commit && status != TransactionStatus::Error;
                client.set_transaction_status(TransactionStatus::Idle);
                session.settings.lock().end(committed);
                session.cursors.lock().await.end(committed);
                if committed { "COMMIT" } else { "ROLLBACK" }
            }
            Class::Savepoint(name) => {
                if status == TransactionStatus::Idle {
                    return Err(errors::no_transaction("SAVEPOINT can only be used in transaction blocks"));
                }
                session.settings.lock().savepoint(name)?;
                "SAVEPOINT"
            }
            Class::Release(name) => {
                session.settings.lock().release(name)?;
                "RELEASE"
            }
            Class::RollbackTo(name) => {
                session.settings.lock().rollback_to(name)?;
                // The transaction goes on, also where it had failed.
                client.set_transaction_status(TransactionStatus::Transaction);
                "ROLLBACK"
            }
            Class::Set(name, value, local) => {
                let longest_ms = u64::try_from(self.asking.gateway.longest().as_millis()).unwrap_or(u64::MAX);
                let said = session.settings.lock().set(name, value, *local, longest_ms)?;
                if let Some(said) = said {
                    client.feed(errors::warning(said)).await?;
                }
                "SET"
            }
            Class::Reset(name) => {
                session.settings.lock().reset(name);
                "RESET"
            }
            Class::DiscardAll => {
                session.settings.lock().reset("all");
                session.cursors.lock().await.close(None)?;
                session.forget_all(client.portal_store());
                "DISCARD ALL"
            }
            Class::Deallocate(None) => {
                session.forget_all(client.portal_store());
                "DEALLOCATE ALL"
            }
            Class::Deallocate(Some(name)) => {
                if client.portal_store().get_statement(name).is_none() {
                    return Err(errors::no_statement(name));
                }
                session.forget(client.portal_store(), name);
                "DEALLOCATE"
            }
            Class::Cursor(CursorStatement::Declare { name, at, hold }) => {
                if !hold && status == TransactionStatus::Idle {
                    return Err(errors::no_transaction("DECLARE CURSOR can only be used in transaction blocks"));
                }
                let question = statement.question(*at);
                let mut cancelled = Self::cancelled(client).await;
                let running = Box::pin(self.begin(client, &question.with(&[])?, &mut cancelled)).await?;
                session.cursors.lock().await.open(name, running, *hold)?;
                "DECLARE CURSOR"
            }
            Class::Cursor(CursorStatement::Move { name, rows }) => {
                let mut cancelled = Self::cancelled(client).await;
                let (passed, coverage) = session.cursors.lock().await.pass(name, *rows, &mut cancelled).await?;
                if let Some(notice) = session.notice(coverage.as_ref())? {
                    client.feed(notice).await?;
                }
                return Ok(Some(Tag::new("MOVE").with_rows(passed)));
            }
            Class::Cursor(CursorStatement::Close(name)) => {
                session.cursors.lock().await.close(name.as_deref())?;
                if name.is_some() { "CLOSE CURSOR" } else { "CLOSE CURSOR ALL" }
            }
            Class::Copy(copy) => return self.copy_out(client, copy).await.map(Some),
            Class::Done(tag) => tag,
            Class::Refused(why) => return Err(errors::unsupported(*why)),
            Class::Cursor(CursorStatement::Fetch { .. })
            | Class::Show(_)
            | Class::Explain(..)
            | Class::Sleep(_)
            | Class::Catalog
            | Class::Nodes => return Ok(None),
        })))
    }

    /// Sends an answer as one stream.
    async fn copy_out<C>(&self, client: &mut C, copy: &Copy) -> PgWireResult<Tag>
    where
        C: ClientInfo + Sink<PgWireBackendMessage> + Unpin + Send + Sync,
        C::Error: Debug,
        PgWireError: From<<C as Sink<PgWireBackendMessage>>::Error>,
    {
        let session = Self::session(client);
        let statement = Statement::one(&copy.sql)?.with(&[])?;
        let mut cancelled = Self::cancelled(client).await;
        let mut running = Box::pin(self.begin(client, &statement, &mut cancelled)).await?;
        let is_binary = copy.form == Form::Binary;
        let fields = running.fields(if is_binary { &Format::UnifiedBinary } else { &Format::UnifiedText })?;
        let columns = i16::try_from(fields.len()).unwrap_or(i16::MAX);
        let form = i8::from(is_binary);
        let begun = CopyOutResponse::new(form, columns, vec![i16::from(form); fields.len()]);
        client.feed(PgWireBackendMessage::CopyOutResponse(begun)).await?;
        let data = |bytes| PgWireBackendMessage::CopyData(CopyData::new(bytes));
        // As PostgreSQL sends it: the binary form's header comes with the first row, or with the end;
        // ADBC reads it there.
        let mut head = BytesMut::new();
        match copy.begin(&fields) {
            Some(first) if is_binary => head.extend_from_slice(&first),
            Some(first) => client.feed(data(first)).await?,
            None => {}
        }
        let mut with_head = |bytes: Bytes| {
            if head.is_empty() {
                return bytes;
            }
            head.extend_from_slice(&bytes);
            head.split().freeze()
        };
        let mut encoder = DataRowEncoder::new(Arc::clone(&fields));
        let mut rows = 0;
        loop {
            match running.next(&mut cancelled).await? {
                Next::Row(row) => {
                    let row = copy.row(&mut encoder, &fields, &row)?;
                    client.feed(data(with_head(row))).await?;
                    rows += 1;
                }
                Next::End(coverage) => {
                    if let Some(notice) = session.notice(coverage.as_ref())? {
                        client.feed(notice).await?;
                    }
                    break;
                }
            }
        }
        if let Some(last) = copy.end() {
            client.feed(data(with_head(last))).await?;
        }
        client.feed(PgWireBackendMessage::CopyDone(CopyDone::new())).await?;
        Ok(Tag::new("COPY").with_rows(rows))
    }

    /// Sends rows as they come: all, or a given number.
    async fn send<C>(
        &self,
        client: &mut C,
        running: &mut Running,
        fields: Arc<Vec<FieldInfo>>,
        most: usize,
        cancelled: &mut oneshot::Receiver<()>,
    ) -> PgWireResult<Sent>
    where
        C: ClientInfo + Sink<PgWireBackendMessage> + Unpin + Send + Sync,
        C::Error: Debug,
        PgWireError: From<<C as Sink<PgWireBackendMessage>>::Error>,
    {
        let session = Self::session(client);
        let mut encoder = DataRowEncoder::new(Arc::clone(&fields));
        let mut rows = 0;
        loop {
            match running.next(cancelled).await? {
                Next::Row(row) => {
                    for (field, value) in fields.iter().zip(&row) {
                        types::encode(&mut encoder, field, value)?;
                    }
                    client.feed(PgWireBackendMessage::DataRow(encoder.take_row())).await?;
                    rows += 1;
                    if most > 0 && rows == most {
                        // A client that wants no more rows may close the portal, and is told nothing then.
                        let coverage = running.at_end(cancelled).await?.flatten();
                        if let Some(notice) = session.notice(coverage.as_ref())? {
                            client.feed(notice).await?;
                        }
                        return Ok(Sent { rows, is_suspended: true });
                    }
                }
                Next::End(coverage) => {
                    if let Some(notice) = session.notice(coverage.as_ref())? {
                        client.feed(notice).await?;
                    }
                    return Ok(Sent { rows, is_suspended: false });
                }
            }
        }
    }

    /// In a failed transaction only its end is accepted.
    fn check<C: ClientInfo>(client: &C, statement: &Statement) -> PgWireResult<()> {
        if client.transaction_status() == TransactionStatus::Error
            && !matches!(statement.class, Class::Commit | Class::Rollback | Class::RollbackTo(_))
        {
            return Err(errors::failed_transaction());
        }
        Ok(())
    }

    async fn simple<C>(&self, client: &mut C, statement: &Statement) -> PgWireResult<()>
    where
        C: ClientInfo + ClientPortalStore + Sink<PgWireBackendMessage> + Unpin + Send + Sync,
        C::PortalStore: PortalStore,
        C::Error: Debug,
        PgWireError: From<<C as Sink<PgWireBackendMessage>>::Error>,
    {
        Self::check(client, statement)?;
        if let Some(tag) = self.command(client, statement).await? {
            client.feed(PgWireBackendMessage::CommandComplete(CommandComplete::from(tag))).await?;
            return Ok(());
        }
        let statement = statement.with(&[])?;
        let mut cancelled = Self::cancelled(client).await;
        let mut running = self.begin(client, &statement, &mut cancelled).await?;
        let fields = running.fields(&Format::UnifiedText)?;
        let described = RowDescription::new(fields.iter().map(Into::into).collect());
        client.feed(PgWireBackendMessage::RowDescription(described)).await?;
        let sent = self.send(client, &mut running, fields, 0, &mut cancelled).await?;
        let tag = Tag::new(tag_of(&statement)).with_rows(sent.rows);
        client.feed(PgWireBackendMessage::CommandComplete(CommandComplete::from(tag))).await?;
        Ok(())
    }

    /// Starts a portal's statement, unless it was started to describe it.
    async fn portal<C: ClientInfo>(
        &self,
        client: &C,
        portal: &Portal<Statement>,
        cancelled: &mut oneshot::Receiver<()>,
    ) -> PgWireResult<Running> {
        let session = Self::session(client);
        let id = &portal.statement.id;
        let described = session.described.lock().await.take();
        if let Some((of, running)) = described
            && of == *id
        {
            return Ok(running);
        }
        let inferred = self.inferred(client, &portal.statement.statement).await?;
        let statement = portal.statement.statement.with(&literals(portal, &inferred)?)?;
        let mut running = self.begin(client, &statement, cancelled).await?;
        if let Some(given_types) = session.given_types.lock().get(id) {
            running.retype(given_types);
        }
        Ok(running)
    }

    /// What the places of a statement's parameters say of their types.
    async fn inferred<C: ClientInfo>(&self, client: &C, statement: &Statement) -> PgWireResult<Vec<Parameter>> {
        let count = statement.parameters();
        if count == 0 {
            return Ok(Vec::new());
        }
        // (The catalogue's tables are not those of the nodes; their values are looked up as texts.)
        let is_catalog = match &statement.class {
            Class::Cursor(CursorStatement::Declare { at, .. }) => statement.question(*at).class == Class::Catalog,
            class => *class == Class::Catalog,
        };
        if is_catalog {
            let of_catalog = infer::parameters(&statement.tokens, &infer::Columns::default(), count);
            let or_text = |found| if found == Parameter::Unknown { Parameter::Is(Inferred::Text) } else { found };
            return Ok(of_catalog.into_iter().map(or_text).collect());
        }
        let columns = self.asking.columns(&auth::who(client)).await.map_err(|problem| errors::of_problem(&problem))?;
        Ok(infer::parameters(&statement.tokens, &columns, count))
    }

    /// The statement with the time of `now()`, and with times in place of texts that are compared
    /// with them. Other texts that are compared with numbers are refused.
    async fn timed<C: ClientInfo>(&self, client: &C, statement: &Statement) -> PgWireResult<Statement> {
        let now = jiff::Timestamp::now().as_nanosecond();
        let mut timed = statement.clone();
        if let Some(tokens) = dialect::with_now(&timed.tokens, i64::try_from(now).unwrap_or(i64::MAX)) {
            timed = timed.of_tokens(&tokens)?;
        }
        let (has_moments, may_differ) = (dialect::has_moments(&timed.tokens), numbers::may_be(&timed.tokens));
        if has_moments || may_differ {
            let columns = match self.asking.columns(&auth::who(client)).await {
                // (The statement itself says what it lacks.)
                Err(_) if !has_moments => return Ok(timed),
                columns => columns.map_err(|problem| errors::of_problem(&problem))?,
            };
            if has_moments
                && let Some(tokens) = dialect::with_moments(&timed.tokens, &columns).map_err(errors::syntax)?
            {
                timed = timed.of_tokens(&tokens)?;
            }
            if may_differ && let Some(text) = numbers::first(&timed.tokens, &columns) {
                return Err(errors::no_number(&text));
            }
        }
        Ok(timed)
    }

    /// Gives computed columns whose values do not tell their types those that their expressions
    /// have.
    async fn describe<C: ClientInfo>(&self, client: &C, statement: &Statement, running: &mut Running) {
        if statement.class != Class::Nodes || !running.has_untyped() {
            return;
        }
        let Ok(columns) = self.asking.columns(&auth::who(client)).await else { return };
        if let Some(kinds) = infer::results(&statement.tokens, &columns) {
            running.infer(&kinds);
        }
    }
}

fn tag_of(statement: &Statement) -> &'static str {
    match statement.class {
        Class::Show(_) => "SHOW",
        Class::Explain(..) => "EXPLAIN",
        Class::Cursor(_) => "FETCH",
        _ => "SELECT",
    }
}

#[async_trait]
impl SimpleQueryHandler for Handler {
    async fn on_query<C>(&self, client: &mut C, query: Query) -> PgWireResult<()>
    where
        C: ClientInfo + ClientPortalStore + Sink<PgWireBackendMessage> + Unpin + Send + Sync,
        C::PortalStore: PortalStore,
        C::Error: Debug,
        PgWireError: From<<C as Sink<PgWireBackendMessage>>::Error>,
    {
        if !matches!(client.state(), PgWireConnectionState::ReadyForQuery) {
            return Err(PgWireError::NotReadyForQuery);
        }
        client.set_state(PgWireConnectionState::QueryInProgress);
        let statements = Statement::all(&query.query)?;
        if statements.is_empty() {
            client.feed(PgWireBackendMessage::EmptyQueryResponse(EmptyQueryResponse::new())).await?;
        }
        for statement in &statements {
            self.simple(client, statement).await?;
        }
        client.set_state(PgWireConnectionState::ReadyForQuery);
        send_ready_for_query(client, client.transaction_status()).await
    }

    async fn do_query<C>(&self, _: &mut C, _: &str) -> PgWireResult<Vec<Response>>
    where
        C: ClientInfo + ClientPortalStore + Sink<PgWireBackendMessage> + Unpin + Send + Sync,
        C::PortalStore: PortalStore,
        C::Error: Debug,
        PgWireError: From<<C as Sink<PgWireBackendMessage>>::Error>,
    {
        Err(errors::unsupported("not asked this way"))
    }
}
