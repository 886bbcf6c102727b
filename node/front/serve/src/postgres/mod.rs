//! `rankmesh serve --postgres`: PostgreSQL's wire protocol, so that psql, Grafana's own source,
//! DBeaver and other clients can ask the mesh. Read-only; the dialect stays SQLite's.
//!
//! - `auth`: who may connect; `session`: a client's statements and settings; `running`: a question
//!   and its rows as they come; `types`, `errors`: values and errors in PostgreSQL's forms.
//! - `copy`: answers as one stream.
//! - `tokens`, `statement`: kinds of statements, and inserting parameters; `infer`: their types;
//!   `catalog`, `rewrite`: what clients look up of tables, columns and settings.

mod auth;
mod catalog;
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

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
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
use session::Handler;

/// Connections at a time; further ones wait in the kernel's queue.
const CONNECTIONS: usize = 64;
/// The catalogue is made anew when it is older.
const CATALOG_AGE: Duration = Duration::from_secs(10);

/// State shared by sessions.
pub(super) struct Asking {
    gateway: gateway::Shared,
    catalog: Arc<Mutex<Option<Catalog>>>,
}

impl Asking {
    /// Makes the catalogue anew where it is old.
    async fn refresh(&self, who: &Who) -> Result<(), Problem> {
        let is_young = |catalog: &Option<Catalog>| catalog.as_ref().is_some_and(|catalog| catalog.age() < CATALOG_AGE);
        if !is_young(&self.catalog.lock()) {
            let tables = self.gateway.ask(who, ask::Target::tables).await?;
            let made = Catalog::new(&tables).map_err(|error| Problem::internal(format!("{error:#}")))?;
            *self.catalog.lock() = Some(made);
        }
        Ok(())
    }

    /// The types of the tables' columns.
    ///
    /// # Errors
    /// The target does not list its tables.
    async fn columns(&self, who: &Who) -> Result<Arc<infer::Columns>, Problem> {
        self.refresh(who).await?;
        Ok(self.catalog.lock().as_ref().map(Catalog::columns).unwrap_or_default())
    }

    /// Answers a statement from the catalogue, which is refreshed now and then.
    ///
    /// # Errors
    /// The target does not list its tables.
    async fn catalog(&self, who: &Who, tokens: Vec<tokens::Token>) -> Result<Found, Problem> {
        self.refresh(who).await?;
        let catalog = Arc::clone(&self.catalog);
        let asked = tokio::task::spawn_blocking(move || catalog.lock().as_mut().map(|catalog| catalog.ask(&tokens)));
        match asked.await {
            Ok(Some(found)) => Ok(found),
            Ok(None) => Err(Problem::internal("there is no catalogue")),
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
            handler: Arc::new(Handler { asking: Asking { gateway, catalog: Arc::default() } }),
            cancel: Arc::new(DefaultCancelHandler::new(connections)),
        };
        Ok(Self { listener, handlers: Arc::new(handlers), tls })
    }

    /// Serves every connection until this is dropped.
    ///
    /// # Errors
    /// None: connections that cannot be accepted are logged.
    pub(super) async fn serve(self) -> anyhow::Result<()> {
        let start = |(stream, peer): (TcpStream, SocketAddr), permit| {
            let (handlers, tls) = (Arc::clone(&self.handlers), self.tls.clone());
            async move {
                if let Err(error) = pgwire::tokio::process_socket(stream, tls, handlers).await {
                    tracing::debug!("{peer}: {error}");
                }
                drop(permit);
            }
        };
        listen::each_connection(CONNECTIONS, async || self.listener.accept().await, start).await
    }
}
