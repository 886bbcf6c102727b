//! A client's session: its statements by the simple and the extended protocol, its settings, and
//! the answers that are being read.

use std::collections::HashMap;
use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use futures::channel::oneshot;
use futures::{Sink, SinkExt};
use model::Question;
use parking_lot::Mutex;
use pgwire::api::portal::{Format, Portal};
use pgwire::api::query::{ExtendedQueryHandler, SimpleQueryHandler, send_ready_for_query};
use pgwire::api::results::{
    DataRowEncoder, DescribePortalResponse, DescribeStatementResponse, FieldInfo, Response, Tag,
};
use pgwire::api::stmt::{QueryParser, StoredStatement};
use pgwire::api::store::{Entry, PortalStore};
use pgwire::api::{ClientInfo, ClientPortalStore, ConnectionHandle, DEFAULT_NAME, PgWireConnectionState, Type};
use pgwire::error::{PgWireError, PgWireResult};
use pgwire::messages::PgWireBackendMessage;
use pgwire::messages::data::RowDescription;
use pgwire::messages::extendedquery::{Bind, Close, Execute, PortalSuspended, Sync as PgSync};
use pgwire::messages::response::{CommandComplete, EmptyQueryResponse, TransactionStatus};
use pgwire::messages::simplequery::Query;
use query_planner::{ColumnMeta, Value};

use super::catalog::{self, Found};
use super::running::{Next, Running};
use super::statement::{Class, Statement, literals};
use super::{Asking, auth, errors, types};

/// A question's deadline until `SET statement_timeout`.
const DEFAULT_MS: u64 = 10_000;

/// The state of a session.
struct Session {
    require_all: AtomicBool,
    timeout_ms: AtomicU64,
    /// Settings that have no effect here.
    settings: Mutex<HashMap<String, String>>,
    /// Answers that are being read, by portal.
    running: tokio::sync::Mutex<HashMap<String, Running>>,
    /// Types that the client was sent for the columns of a statement.
    given_types: Mutex<HashMap<String, Vec<Type>>>,
    /// The answer that was started to describe a statement without parameters.
    described: tokio::sync::Mutex<Option<(String, Running)>>,
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

impl Handler {
    fn session<C: ClientInfo>(client: &C) -> Arc<Session> {
        client.session_extensions().get_or_insert_with(|| Session {
            require_all: AtomicBool::new(false),
            timeout_ms: AtomicU64::new(DEFAULT_MS),
            settings: Mutex::default(),
            running: tokio::sync::Mutex::default(),
            given_types: Mutex::default(),
            described: tokio::sync::Mutex::default(),
        })
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
        let wanted = Duration::from_millis(session.timeout_ms.load(Ordering::Relaxed));
        let timeout = self.asking.gateway.timeout(Some(wanted)).map_err(|problem| errors::of_problem(&problem))?;
        let timeout_ms = u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX);
        let ask = |sql: &str, plan_only| Question { sql: sql.to_owned(), timeout_ms, plan_only, ..Question::default() };
        match &statement.class {
            Class::Nodes => Running::ask(&self.asking.gateway, &who, ask(&statement.sql, false), cancelled).await,
            Class::Explain(_, true) => {
                Err(errors::unsupported("EXPLAIN ANALYZE is not offered here: rankmesh query --explain=analyze is"))
            }
            Class::Explain(at, false) => {
                Running::ask(&self.asking.gateway, &who, ask(&statement.sql[*at..], true), cancelled).await
            }
            Class::Catalog => {
                let found = self.asking.catalog(&who, statement.tokens.clone()).await;
                match found.map_err(|problem| errors::of_problem(&problem))? {
                    Found::Rows(columns, rows) => Ok(Running::of_rows(&columns, rows)),
                    Found::Wrong(message) => Err(errors::unsupported(message)),
                }
            }
            Class::Show(name) => {
                let value = Self::setting(&session, name)?;
                let column = ColumnMeta { name: name.clone(), decl_type: "TEXT".to_owned() };
                Ok(Running::of_rows(&[column], vec![vec![Value::Text(value.into_bytes())]]))
            }
            _ => Err(errors::unsupported("the statement has no rows")),
        }
    }

    fn setting(session: &Session, name: &str) -> PgWireResult<String> {
        let name = name.to_ascii_lowercase();
        let on = |is_on: bool| if is_on { "on" } else { "off" }.to_owned();
        match name.trim_start_matches("rankmesh.") {
            "require_all" => return Ok(on(session.require_all.load(Ordering::Relaxed))),
            "statement_timeout" => return Ok(format!("{}ms", session.timeout_ms.load(Ordering::Relaxed))),
            _ => {}
        }
        let set = session.settings.lock().get(&name).cloned();
        set.or_else(|| catalog::setting(&name).map(str::to_owned)).ok_or_else(|| {
            errors::setting(format!("unrecognized configuration parameter \"{}\"", record::printable(&name)))
        })
    }

    /// Runs a statement without rows; none if it has some.
    fn command<C: ClientInfo>(&self, client: &mut C, statement: &Statement) -> PgWireResult<Option<Tag>> {
        let session = Self::session(client);
        let status = client.transaction_status();
        Ok(Some(Tag::new(match &statement.class {
            Class::Begin => {
                client.set_transaction_status(status.to_in_transaction_state());
                "BEGIN"
            }
            Class::Commit => {
                client.set_transaction_status(TransactionStatus::Idle);
                if status == TransactionStatus::Error { "ROLLBACK" } else { "COMMIT" }
            }
            Class::Rollback => {
                client.set_transaction_status(TransactionStatus::Idle);
                "ROLLBACK"
            }
            Class::Set(name, value) => {
                set(&session, name, value)?;
                "SET"
            }
            Class::Reset(name) => {
                if name == "all" || name.ends_with("require_all") {
                    session.require_all.store(false, Ordering::Relaxed);
                }
                if name == "all" || name == "statement_timeout" {
                    session.timeout_ms.store(DEFAULT_MS, Ordering::Relaxed);
                }
                "RESET"
            }
            Class::Done(tag) => tag,
            Class::Refused(why) => return Err(errors::unsupported(*why)),
            Class::Show(_) | Class::Explain(..) | Class::Catalog | Class::Nodes => return Ok(None),
        })))
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
                        return Ok(Sent { rows, is_suspended: true });
                    }
                }
                Next::End(Some(coverage)) => {
                    if session.require_all.load(Ordering::Relaxed) && !coverage.is_complete() {
                        return Err(errors::partial(&coverage));
                    }
                    if let Some(notice) = errors::notice(&coverage) {
                        client.feed(notice).await?;
                    }
                    return Ok(Sent { rows, is_suspended: false });
                }
                Next::End(None) => return Ok(Sent { rows, is_suspended: false }),
            }
        }
    }

    /// In a failed transaction only its end is accepted.
    fn check<C: ClientInfo>(client: &C, statement: &Statement) -> PgWireResult<()> {
        if client.transaction_status() == TransactionStatus::Error
            && !matches!(statement.class, Class::Commit | Class::Rollback | Class::Done("ROLLBACK"))
        {
            return Err(errors::failed_transaction());
        }
        Ok(())
    }

    async fn simple<C>(&self, client: &mut C, statement: &Statement) -> PgWireResult<()>
    where
        C: ClientInfo + Sink<PgWireBackendMessage> + Unpin + Send + Sync,
        C::Error: Debug,
        PgWireError: From<<C as Sink<PgWireBackendMessage>>::Error>,
    {
        Self::check(client, statement)?;
        if let Some(tag) = self.command(client, statement)? {
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
        let statement = portal.statement.statement.with(&literals(portal)?)?;
        let mut running = self.begin(client, &statement, cancelled).await?;
        if let Some(given_types) = session.given_types.lock().get(id) {
            running.retype(given_types);
        }
        Ok(running)
    }
}

fn tag_of(statement: &Statement) -> &'static str {
    match statement.class {
        Class::Show(_) => "SHOW",
        Class::Explain(..) => "EXPLAIN",
        _ => "SELECT",
    }
}

fn set(session: &Session, name: &str, value: &str) -> PgWireResult<()> {
    let value = value.trim();
    match name.trim_start_matches("rankmesh.") {
        "require_all" => {
            let is_on = match value.to_ascii_lowercase().as_str() {
                "on" | "true" | "1" | "yes" => true,
                "off" | "false" | "0" | "no" | "default" => false,
                _ => return Err(errors::setting("require_all is on or off".to_owned())),
            };
            session.require_all.store(is_on, Ordering::Relaxed);
        }
        "statement_timeout" => {
            let (number, unit) = value.split_at(value.find(|c: char| !c.is_ascii_digit()).unwrap_or(value.len()));
            let unit = match unit.trim() {
                "" | "ms" => 1,
                "s" => 1_000,
                "min" => 60_000,
                _ => 0,
            };
            let ms = number.parse::<u64>().ok().and_then(|number| number.checked_mul(unit)).filter(|_| unit > 0);
            let ms =
                ms.ok_or_else(|| errors::setting("statement_timeout is a number of ms, or 10s, or 1min".to_owned()))?;
            // PostgreSQL's 0 means no limit; here every question has a deadline.
            session.timeout_ms.store(if ms == 0 { DEFAULT_MS } else { ms }, Ordering::Relaxed);
        }
        name => {
            let mut settings = session.settings.lock();
            if settings.len() < 100 && name.len() < 100 && value.len() < 1_000 {
                settings.insert(name.to_owned(), value.to_owned());
            }
        }
    }
    Ok(())
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

#[async_trait]
impl ExtendedQueryHandler for Handler {
    type Statement = Statement;
    type QueryParser = Parser;

    fn query_parser(&self) -> Arc<Parser> {
        Arc::new(Parser)
    }

    async fn on_bind<C>(&self, client: &mut C, message: Bind) -> PgWireResult<()>
    where
        C: ClientInfo + ClientPortalStore + Sink<PgWireBackendMessage> + Unpin + Send + Sync,
        C::PortalStore: PortalStore<Statement = Statement>,
        C::Error: Debug,
        PgWireError: From<<C as Sink<PgWireBackendMessage>>::Error>,
    {
        let statement = message.statement_name.as_deref().unwrap_or(DEFAULT_NAME);
        let statement = match client.portal_store().get_statement(statement) {
            Some(Entry::Value(statement)) => statement,
            Some(Entry::Empty) => {
                client.portal_store().put_empty_portal(message.portal_name.as_deref().unwrap_or(DEFAULT_NAME));
                client
                    .send(PgWireBackendMessage::BindComplete(pgwire::messages::extendedquery::BindComplete::new()))
                    .await?;
                return Ok(());
            }
            None => return Err(PgWireError::StatementNotFound(statement.to_owned())),
        };
        if message.parameters.len() != statement.statement.parameters() {
            let wanted = statement.statement.parameters();
            return Err(errors::data(format!("{} values for {wanted} parameters", message.parameters.len())));
        }
        let codes = message.parameter_format_codes.len();
        if codes > 1 && codes != message.parameters.len() {
            return Err(errors::data(format!("{codes} forms for {} parameters", message.parameters.len())));
        }
        let portal = Portal::try_new(&message, statement)?;
        Self::session(client).running.lock().await.remove(&portal.name);
        client.portal_store().put_portal(Arc::new(portal));
        client.send(PgWireBackendMessage::BindComplete(pgwire::messages::extendedquery::BindComplete::new())).await?;
        Ok(())
    }

    async fn on_parse<C>(&self, client: &mut C, message: pgwire::messages::extendedquery::Parse) -> PgWireResult<()>
    where
        C: ClientInfo + ClientPortalStore + Sink<PgWireBackendMessage> + Unpin + Send + Sync,
        C::PortalStore: PortalStore<Statement = Statement>,
        C::Error: Debug,
        PgWireError: From<<C as Sink<PgWireBackendMessage>>::Error>,
    {
        let name = message.name.clone().unwrap_or_else(|| DEFAULT_NAME.to_owned());
        let session = Self::session(client);
        session.given_types.lock().remove(&name);
        session.described.lock().await.take();
        match StoredStatement::parse(client, &message, self.query_parser()).await? {
            Some(statement) => client.portal_store().put_statement(Arc::new(statement)),
            None => client.portal_store().put_empty_statement(&name),
        }
        client.send(PgWireBackendMessage::ParseComplete(pgwire::messages::extendedquery::ParseComplete::new())).await?;
        Ok(())
    }

    async fn do_describe_statement<C>(
        &self,
        client: &mut C,
        target: &StoredStatement<Statement>,
    ) -> PgWireResult<DescribeStatementResponse>
    where
        C: ClientInfo + ClientPortalStore + Sink<PgWireBackendMessage> + Unpin + Send + Sync,
        C::PortalStore: PortalStore<Statement = Statement>,
        C::Error: Debug,
        PgWireError: From<<C as Sink<PgWireBackendMessage>>::Error>,
    {
        let statement = &target.statement;
        let count = statement.parameters();
        let given = |at: usize| target.parameter_types.get(at).cloned().flatten().unwrap_or(Type::TEXT);
        let parameters: Vec<Type> = (0..count).map(given).collect();
        if !has_rows(statement) {
            return Ok(DescribeStatementResponse::new(parameters, Vec::new()));
        }
        Self::check(client, statement)?;
        let mut cancelled = Self::cancelled(client).await;
        let session = Self::session(client);
        let running = if count == 0 {
            self.begin(client, &statement.with(&[])?, &mut cancelled).await?
        } else {
            // Without values only names and declared types are known.
            let mut empty = statement.with(&vec!["NULL".to_owned(); count])?;
            if empty.class == Class::Nodes {
                empty.sql = format!("SELECT * FROM ({}\n) LIMIT 0", empty.sql);
            }
            self.begin(client, &empty, &mut cancelled).await?
        };
        let fields = running.fields(&Format::UnifiedText)?;
        session.given_types.lock().insert(target.id.clone(), running.types());
        if count == 0 {
            *session.described.lock().await = Some((target.id.clone(), running));
        }
        Ok(DescribeStatementResponse::new(parameters, fields.to_vec()))
    }

    async fn do_describe_portal<C>(
        &self,
        client: &mut C,
        target: &Portal<Statement>,
    ) -> PgWireResult<DescribePortalResponse>
    where
        C: ClientInfo + ClientPortalStore + Sink<PgWireBackendMessage> + Unpin + Send + Sync,
        C::PortalStore: PortalStore<Statement = Statement>,
        C::Error: Debug,
        PgWireError: From<<C as Sink<PgWireBackendMessage>>::Error>,
    {
        if !has_rows(&target.statement.statement) {
            return Ok(DescribePortalResponse::new(Vec::new()));
        }
        Self::check(client, &target.statement.statement)?;
        let mut cancelled = Self::cancelled(client).await;
        let running = self.portal(client, target, &mut cancelled).await?;
        let fields = running.fields(&target.result_column_format)?;
        Self::session(client).running.lock().await.insert(target.name.clone(), running);
        Ok(DescribePortalResponse::new(fields.to_vec()))
    }

    async fn on_execute<C>(&self, client: &mut C, message: Execute) -> PgWireResult<()>
    where
        C: ClientInfo + ClientPortalStore + Sink<PgWireBackendMessage> + Unpin + Send + Sync,
        C::PortalStore: PortalStore<Statement = Statement>,
        C::Error: Debug,
        PgWireError: From<<C as Sink<PgWireBackendMessage>>::Error>,
    {
        if !matches!(client.state(), PgWireConnectionState::ReadyForQuery) {
            return Err(PgWireError::NotReadyForQuery);
        }
        let name = message.name.clone().unwrap_or_else(|| DEFAULT_NAME.to_owned());
        let portal = match client.portal_store().get_portal(&name) {
            Some(Entry::Value(portal)) => portal,
            Some(Entry::Empty) => {
                client.feed(PgWireBackendMessage::EmptyQueryResponse(EmptyQueryResponse::new())).await?;
                return Ok(());
            }
            None => return Err(PgWireError::PortalNotFound(name)),
        };
        let statement = &portal.statement.statement;
        Self::check(client, statement)?;
        if let Some(tag) = self.command(client, statement)? {
            client.feed(PgWireBackendMessage::CommandComplete(CommandComplete::from(tag))).await?;
            return Ok(());
        }
        let session = Self::session(client);
        let mut cancelled = Self::cancelled(client).await;
        let started = session.running.lock().await.remove(&name);
        let mut running = match started {
            Some(running) => running,
            None => self.portal(client, &portal, &mut cancelled).await?,
        };
        let fields = running.fields(&portal.result_column_format)?;
        let most = usize::try_from(message.max_rows).unwrap_or(0);
        let sent = self.send(client, &mut running, fields, most, &mut cancelled).await?;
        if sent.is_suspended {
            session.running.lock().await.insert(name, running);
            client.send(PgWireBackendMessage::PortalSuspended(PortalSuspended::new())).await?;
        } else {
            let tag = Tag::new(tag_of(statement)).with_rows(sent.rows);
            client.send(PgWireBackendMessage::CommandComplete(CommandComplete::from(tag))).await?;
        }
        Ok(())
    }

    async fn on_sync<C>(&self, client: &mut C, _: PgSync) -> PgWireResult<()>
    where
        C: ClientInfo + ClientPortalStore + Sink<PgWireBackendMessage> + Unpin + Send + Sync,
        C::PortalStore: PortalStore<Statement = Statement>,
        C::Error: Debug,
        PgWireError: From<<C as Sink<PgWireBackendMessage>>::Error>,
    {
        if client.transaction_status() == TransactionStatus::Idle {
            // Portals end with the transaction, which without BEGIN ends here.
            client.portal_store().clear_portals();
            Self::session(client).running.lock().await.clear();
        }
        send_ready_for_query(client, client.transaction_status()).await
    }

    async fn on_close<C>(&self, client: &mut C, message: Close) -> PgWireResult<()>
    where
        C: ClientInfo + ClientPortalStore + Sink<PgWireBackendMessage> + Unpin + Send + Sync,
        C::PortalStore: PortalStore<Statement = Statement>,
        C::Error: Debug,
        PgWireError: From<<C as Sink<PgWireBackendMessage>>::Error>,
    {
        let name = message.name.as_deref().unwrap_or(DEFAULT_NAME);
        let session = Self::session(client);
        if message.target_type == pgwire::messages::extendedquery::TARGET_TYPE_BYTE_STATEMENT {
            client.portal_store().rm_statement(name);
            session.given_types.lock().remove(name);
        } else {
            client.portal_store().rm_portal(name);
            session.running.lock().await.remove(name);
        }
        client.send(PgWireBackendMessage::CloseComplete(pgwire::messages::extendedquery::CloseComplete::new())).await?;
        Ok(())
    }

    async fn do_query<C>(&self, _: &mut C, _: &Portal<Statement>, _: usize) -> PgWireResult<Response>
    where
        C: ClientInfo + ClientPortalStore + Sink<PgWireBackendMessage> + Unpin + Send + Sync,
        C::PortalStore: PortalStore<Statement = Statement>,
        C::Error: Debug,
        PgWireError: From<<C as Sink<PgWireBackendMessage>>::Error>,
    {
        Err(errors::unsupported("not asked this way"))
    }
}

fn has_rows(statement: &Statement) -> bool {
    matches!(statement.class, Class::Nodes | Class::Catalog | Class::Show(_) | Class::Explain(..))
}
