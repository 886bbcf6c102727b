//! The extended protocol: statements are parsed, described, bound to values and executed in steps
//! of the client's.

use std::fmt::Debug;
use std::sync::Arc;

use async_trait::async_trait;
use futures::{Sink, SinkExt};
use pgwire::api::portal::{Format, Portal};
use pgwire::api::query::{ExtendedQueryHandler, send_describe_response, send_ready_for_query};
use pgwire::api::results::{DescribePortalResponse, DescribeStatementResponse, Response, Tag};
use pgwire::api::stmt::StoredStatement;
use pgwire::api::store::{Entry, PortalStore};
use pgwire::api::{ClientInfo, ClientPortalStore, DEFAULT_NAME, PgWireConnectionState};
use pgwire::error::{PgWireError, PgWireResult};
use pgwire::messages::PgWireBackendMessage;
use pgwire::messages::extendedquery::{
    Bind, BindComplete, Close, CloseComplete, Describe, Execute, Parse, ParseComplete, PortalSuspended, Sync as PgSync,
    TARGET_TYPE_BYTE_PORTAL, TARGET_TYPE_BYTE_STATEMENT,
};
use pgwire::messages::response::{CommandComplete, EmptyQueryResponse, TransactionStatus};

use super::super::errors;
use super::super::literals::{literals, parameter_types};
use super::super::statement::{Class, Statement};
use super::{CursorStatement, Handler, Kind, Parser, kept, tag_of};

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
                let name = message.portal_name.as_deref().unwrap_or(DEFAULT_NAME);
                Self::session(client).kept.lock().keep(Kind::Portal, name, 0)?;
                client.portal_store().put_empty_portal(name);
                client.send(PgWireBackendMessage::BindComplete(BindComplete::new())).await?;
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
        // It keeps its statement, also when that is replaced.
        let values: usize = portal.parameters.iter().flatten().map(|value| value.len() + 64).sum();
        let bytes = values + kept::bytes_of(&portal.statement.statement);
        let session = Self::session(client);
        session.kept.lock().keep(Kind::Portal, &portal.name, bytes)?;
        session.running.lock().await.remove(&portal.name);
        client.portal_store().put_portal(Arc::new(portal));
        client.send(PgWireBackendMessage::BindComplete(BindComplete::new())).await?;
        Ok(())
    }

    async fn on_parse<C>(&self, client: &mut C, message: Parse) -> PgWireResult<()>
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
        let parsed = StoredStatement::parse(client, &message, self.query_parser()).await?;
        let bytes = parsed.as_ref().map_or(0, |parsed| kept::bytes_of(&parsed.statement));
        session.kept.lock().keep(Kind::Statement, &name, bytes)?;
        match parsed {
            Some(statement) => client.portal_store().put_statement(Arc::new(statement)),
            None => client.portal_store().put_empty_statement(&name),
        }
        client.send(PgWireBackendMessage::ParseComplete(ParseComplete::new())).await?;
        Ok(())
    }

    async fn on_describe<C>(&self, client: &mut C, message: Describe) -> PgWireResult<()>
    where
        C: ClientInfo + ClientPortalStore + Sink<PgWireBackendMessage> + Unpin + Send + Sync,
        C::PortalStore: PortalStore<Statement = Statement>,
        C::Error: Debug,
        PgWireError: From<<C as Sink<PgWireBackendMessage>>::Error>,
    {
        // Clients describe a cursor as the portal of its name.
        let name = message.name.as_deref().unwrap_or(DEFAULT_NAME);
        if message.target_type == TARGET_TYPE_BYTE_PORTAL && client.portal_store().get_portal(name).is_none() {
            let fields = match Self::session(client).cursors.lock().await.running(name) {
                Some(running) => running.fields(&Format::UnifiedText)?.to_vec(),
                None => return Err(PgWireError::PortalNotFound(name.to_owned())),
            };
            return send_describe_response(client, &DescribePortalResponse::new(fields)).await;
        }
        self._on_describe(client, message).await
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
        let parameters = parameter_types(&target.parameter_types, &self.inferred(client, statement).await?, statement)?;
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
                empty = empty.described()?;
            }
            let mut running = self.begin(client, &empty, &mut cancelled).await?;
            self.describe(client, statement, &mut running).await;
            if matches!(statement.class, Class::Nodes | Class::Catalog) {
                running.label(&statement.tokens);
            }
            running
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
        Self::session(client).running.lock().await.insert(target.name.clone(), Some(running));
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
        if let Some(None) = Self::session(client).running.lock().await.get(&name) {
            return Err(errors::cursor("its rows were given up: nobody asked for them for 5 min".to_owned()));
        }
        let mut statement = &portal.statement.statement;
        Self::check(client, statement)?;
        let declared;
        if matches!(statement.class, Class::Cursor(CursorStatement::Declare { .. })) && statement.parameters() > 0 {
            let inferred = self.inferred(client, statement).await?;
            declared = statement.with(&literals(&portal, &inferred)?)?;
            statement = &declared;
        }
        if let Some(tag) = self.command(client, statement).await? {
            client.feed(PgWireBackendMessage::CommandComplete(CommandComplete::from(tag))).await?;
            return Ok(());
        }
        let session = Self::session(client);
        let mut cancelled = Self::cancelled(client).await;
        let started = session.running.lock().await.remove(&name).flatten();
        let mut running = match started {
            Some(running) => running,
            None => self.portal(client, &portal, &mut cancelled).await?,
        };
        let fields = running.fields(&portal.result_column_format)?;
        let most = usize::try_from(message.max_rows).unwrap_or(0);
        let sent = self.send(client, &mut running, fields, most, &mut cancelled).await?;
        if sent.is_suspended {
            session.running.lock().await.insert(name, Some(running));
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
            let session = Self::session(client);
            session.kept.lock().end_portals();
            session.running.lock().await.clear();
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
        if message.target_type == TARGET_TYPE_BYTE_STATEMENT {
            session.forget(client.portal_store(), name);
        } else {
            client.portal_store().rm_portal(name);
            session.kept.lock().end(Kind::Portal, name);
            session.running.lock().await.remove(name);
        }
        client.send(PgWireBackendMessage::CloseComplete(CloseComplete::new())).await?;
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
    matches!(
        statement.class,
        Class::Nodes
            | Class::Catalog
            | Class::Show(_)
            | Class::Explain(..)
            | Class::Sleep(_)
            | Class::Cursor(CursorStatement::Fetch { .. })
    )
}
