//! `rankmesh serve --postgres`: PostgreSQL's wire protocol, so that psql, Grafana's own source,
//! DBeaver and other clients can ask the mesh. Read-only; the dialect stays SQLite's.
//!
//! - `connection`: a client's bounds; `auth`: who may connect; `session`: a client's statements and settings; `running`: a question
//!   and its rows as they come; `types`, `errors`: values and errors in PostgreSQL's forms.
//! - `copy`: answers as one stream.
//! - `tokens`, `statement`: kinds of statements, and inserting parameters; `infer`: their types;
//!   `catalog`, `rewrite`: what clients look up of tables, columns and settings.

mod auth;
mod catalog;
mod connection;
mod copy;
mod dialect;
mod errors;
mod infer;
mod literals;
pub(crate) mod password;
mod rewrite;
mod running;
mod session;
mod statement;
mod tokens;
mod types;
mod views;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use model::TableSeen;
use parking_lot::Mutex;
use pgwire::api::auth::StartupHandler;
use pgwire::api::cancel::{CancelHandler, DefaultCancelHandler};
use pgwire::api::query::{ExtendedQueryHandler, SimpleQueryHandler};
use pgwire::api::{ConnectionManager, PgWireServerHandlers};
use tokio::net::{TcpListener, TcpStream};

use super::gateway::{self, Who};
use super::listen::{self, Acceptor};
use super::problem::Problem;
use super::tokens::Tokens as KnownTokens;
use auth::Auth;
use catalog::{Catalog, Found};
use connection::Clients;
use session::Handler;

/// The nodes' tables are looked up again when they were found so long ago.
const TABLES_AGE: Duration = Duration::from_secs(10);

/// State shared by sessions.
pub(super) struct Asking {
    gateway: gateway::Shared,
    tables: Mutex<Option<Tables>>,
}

/// The nodes' tables, as they were a moment ago.
#[derive(Clone)]
struct Tables {
    at: Instant,
    all: Arc<Vec<TableSeen>>,
    columns: Arc<infer::Columns>,
}

impl Asking {
    /// The nodes' tables, which are looked up now and then.
    async fn tables(&self, who: &Who) -> Result<Tables, Problem> {
        let known = self.tables.lock().clone();
        if let Some(known) = known.filter(|tables| tables.at.elapsed() < TABLES_AGE) {
            return Ok(known);
        }
        // (As a question it waits for its turn: a pool that asks more at once comes to no error.)
        let (asked, _stop) = self.gateway.begin_within(who, self.gateway.longest(), ask::Target::tables).await?;
        let all = asked.await.map_err(|error| Problem::internal(error.to_string()))?;
        let all = all.map_err(|error| Problem::of(&error))?;
        let all = views::told(all);
        let columns = Arc::new(views::columns(&all));
        let tables = Tables { at: Instant::now(), all: Arc::new(all), columns };
        *self.tables.lock() = Some(tables.clone());
        Ok(tables)
    }

    /// The types of the tables' columns.
    ///
    /// # Errors
    /// The target does not list its tables.
    async fn columns(&self, who: &Who) -> Result<Arc<infer::Columns>, Problem> {
        Ok(self.tables(who).await?.columns)
    }

    /// Answers a statement from a session's catalogue, which is made anew where the tables are others.
    /// It takes the turn of a question: it is worked on as long as one.
    ///
    /// # Errors
    /// The target does not list its tables.
    async fn catalog(
        &self,
        who: &Who,
        kept: Arc<Mutex<Option<Catalog>>>,
        tokens: Vec<tokens::Token>,
    ) -> Result<Found, Problem> {
        let tables = self.tables(who).await?.all;
        let work = move |_: &ask::Target| {
            let mut kept = kept.lock();
            if kept.as_ref().is_none_or(|catalog| !catalog.is_of(&tables)) {
                *kept = Some(Catalog::new(tables)?);
            }
            let catalog = kept.as_mut().context("a catalogue was made")?;
            anyhow::Ok(catalog.ask(&tokens))
        };
        let (asked, _stop_when_dropped) = self.gateway.begin_within(who, self.gateway.longest(), work).await?;
        match asked.await {
            Ok(Ok(found)) => Ok(found),
            Ok(Err(error)) => Err(Problem::internal(format!("{error:#}"))),
            Err(error) => Err(Problem::internal(error.to_string())),
        }
    }
}

/// The parts that a connection needs.
struct Handlers {
    auth: Arc<Auth>,
    handler: Arc<Handler>,
    cancel: Arc<DefaultCancelHandler>,
}

impl PgWireServerHandlers for Handlers {
    fn simple_query_handler(&self) -> Arc<impl SimpleQueryHandler> {
        Arc::clone(&self.handler)
    }

    fn extended_query_handler(&self) -> Arc<impl ExtendedQueryHandler> {
        Arc::clone(&self.handler)
    }

    fn startup_handler(&self) -> Arc<impl StartupHandler> {
        Arc::clone(&self.auth)
    }

    fn cancel_handler(&self) -> Arc<impl CancelHandler> {
        Arc::clone(&self.cancel)
    }
}

/// A listening socket for clients.
pub(super) struct Postgres {
    listener: TcpListener,
    handlers: Arc<Handlers>,
    clients: Arc<Clients>,
    tls: Option<Acceptor>,
}

impl Postgres {
    /// Listens, and prints how to connect. The user who started this has a password that is made
    /// anew each time, or `password`; others need tokens.
    ///
    /// # Errors
    /// The address is taken or not this host's.
    pub(super) async fn bind(
        address: SocketAddr,
        gateway: gateway::Shared,
        tokens: Option<Arc<KnownTokens>>,
        password: Option<String>,
        tls: Option<Acceptor>,
    ) -> anyhow::Result<Self> {
        let listener = TcpListener::bind(address).await.with_context(|| format!("listening on {address}"))?;
        let place = listener.local_addr()?;
        let is_own = password.is_none();
        let password = password.unwrap_or_else(super::sessions::secret);
        if !address.ip().is_loopback() {
            eprintln!("PostgreSQL's protocol on {place}, with TLS, for tokens: their names are the users");
        } else if is_own {
            let (user, database) = (catalog::DATABASE, catalog::DATABASE);
            eprintln!("psql postgresql://{user}:{password}@{place}/{database}\n(until this ends)");
        } else {
            eprintln!("PostgreSQL's protocol on {place}, user {}", catalog::DATABASE);
        }
        let connections = Arc::new(ConnectionManager::new());
        // Beyond this host every client needs a token.
        let password = address.ip().is_loopback().then_some(password);
        let handlers = Handlers {
            auth: Arc::new(Auth::new(password, tokens, Arc::clone(&connections), tls.is_some())),
            handler: Arc::new(Handler { asking: Asking { gateway, tables: Mutex::default() } }),
            cancel: Arc::new(DefaultCancelHandler::new(connections)),
        };
        Ok(Self { listener, handlers: Arc::new(handlers), clients: Arc::default(), tls })
    }

    /// Serves every connection until this is dropped.
    ///
    /// # Errors
    /// None: connections that cannot be accepted are logged.
    pub(super) async fn serve(self) -> anyhow::Result<()> {
        let start = |(stream, peer): (TcpStream, SocketAddr), permit| {
            let (clients, handlers, tls) = (Arc::clone(&self.clients), Arc::clone(&self.handlers), self.tls.clone());
            async move {
                if let Err(error) = clients.serve(stream, peer, tls, &handlers).await {
                    tracing::debug!("{peer}: {error}");
                }
                drop(permit);
            }
        };
        listen::each_connection(connection::CONNECTIONS, async || self.listener.accept().await, start).await
    }
}
