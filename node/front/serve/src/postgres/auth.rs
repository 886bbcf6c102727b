//! Who may connect: the user who started this, by a password that never crosses the wire
//! (SCRAM-SHA-256), and holders of tokens, whose names are the users.

use std::fmt;
use std::fmt::Debug;
use std::sync::Arc;

use async_trait::async_trait;
use futures::{Sink, SinkExt};
use pgwire::api::auth::cleartext::CleartextPasswordAuthStartupHandler;
use pgwire::api::auth::sasl::SASLAuthStartupHandler;
use pgwire::api::auth::sasl::scram::{ScramAuth, gen_salted_password};
use pgwire::api::auth::{AuthSource, DefaultServerParameterProvider, LoginInfo, Password, StartupHandler};
use pgwire::api::{ClientInfo, ConnectionManager, METADATA_USER};
use pgwire::error::{ErrorInfo, PgWireError, PgWireResult};
use pgwire::messages::startup::{NegotiateProtocolVersion, Startup};
use pgwire::messages::{PgWireBackendMessage, PgWireFrontendMessage, ProtocolVersion};

use super::super::gateway::Who;
use super::super::tokens::{Role, Tokens};
use super::catalog;

/// Iterations, as PostgreSQL's own default; the password has 256 bits, so nobody can guess it.
const ITERATIONS: usize = 4_096;

type Parameters = DefaultServerParameterProvider;

/// Authenticates clients.
pub(super) struct Auth {
    scram: SASLAuthStartupHandler<Parameters>,
    tokens: CleartextPasswordAuthStartupHandler<Bearers, Parameters>,
    needs_tls: bool,
}

impl Auth {
    /// With the password of the user who started this, if there is one, and tokens. `needs_tls`: a
    /// client without TLS is refused before a secret is asked for.
    pub(super) fn new(
        password: Option<String>,
        tokens: Option<Arc<Tokens>>,
        connections: Arc<ConnectionManager>,
        needs_tls: bool,
    ) -> Self {
        let parameters = Arc::new(parameters());
        let mut scram = ScramAuth::new(Arc::new(Starter::new(password)));
        scram.set_iterations(ITERATIONS);
        let bearers = Bearers { tokens };
        Self {
            scram: SASLAuthStartupHandler::new(Arc::clone(&parameters))
                .with_scram(scram)
                .with_connection_manager(Arc::clone(&connections)),
            tokens: CleartextPasswordAuthStartupHandler::new(bearers, self::parameters())
                .with_connection_manager(connections),
            needs_tls,
        }
    }
}

/// Parameters that a client is sent when it connects.
fn parameters() -> Parameters {
    let mut parameters = Parameters::default();
    parameters.server_version = format!("{} (rankmesh {})", catalog::VERSION, env!("CARGO_PKG_VERSION"));
    parameters.is_superuser = false;
    parameters.default_transaction_read_only = true;
    parameters.time_zone = "UTC".to_owned();
    parameters
}

/// The client for which a session asks.
pub(super) fn who<C: ClientInfo>(client: &C) -> Who {
    let user = client.metadata().get(METADATA_USER).map_or("", String::as_str);
    let reader = user != catalog::DATABASE;
    let request_id = format!("{:016x}", rand::random::<u64>());
    let client = if reader { format!("token-{user}") } else { "postgres".to_owned() };
    Who { client, reader, request_id }
}

#[async_trait]
impl StartupHandler for Auth {
    async fn on_startup<C>(&self, client: &mut C, mut message: PgWireFrontendMessage) -> PgWireResult<()>
    where
        C: ClientInfo + Sink<PgWireBackendMessage> + Unpin + Send + Sync,
        C::Error: Debug,
        PgWireError: From<<C as Sink<PgWireBackendMessage>>::Error>,
    {
        if let PgWireFrontendMessage::Startup(startup) = &mut message {
            negotiate(client, startup).await?;
        }
        if self.needs_tls && !client.is_secure() {
            let message = "this server speaks TLS only: connect with sslmode=require or better".to_owned();
            let refused = ErrorInfo::new("FATAL".to_owned(), "28000".to_owned(), message);
            return Err(PgWireError::UserError(Box::new(refused)));
        }
        let user = match &message {
            PgWireFrontendMessage::Startup(startup) => startup.parameters.get(METADATA_USER).cloned(),
            _ => client.metadata().get(METADATA_USER).cloned(),
        };
        let begun = if user.as_deref() == Some(catalog::DATABASE) {
            self.scram.on_startup(client, message).await
        } else {
            self.tokens.on_startup(client, message).await
        };
        // (The name in a message of SCRAM is empty: the one of the startup counts.)
        begun.map_err(|error| match error {
            PgWireError::InvalidPassword(_) => PgWireError::InvalidPassword(user.unwrap_or_default()),
            other => other,
        })
    }
}

/// Says which version and options of the protocol a client does not get, as libpq 18 and later wait
/// for it (<https://www.postgresql.org/docs/current/protocol-message-formats.html>,
/// NegotiateProtocolVersion), and goes on without them.
async fn negotiate<C>(client: &mut C, startup: &mut Startup) -> PgWireResult<()>
where
    C: ClientInfo + Sink<PgWireBackendMessage> + Unpin + Send + Sync,
    C::Error: Debug,
    PgWireError: From<<C as Sink<PgWireBackendMessage>>::Error>,
{
    let newest = ProtocolVersion::default();
    let (major, minor) = newest.version_number();
    let options: Vec<String> = startup.parameters.keys().filter(|name| name.starts_with("_pq_.")).cloned().collect();
    let is_newer = startup.protocol_number_major == major && startup.protocol_number_minor > minor;
    if options.is_empty() && !is_newer {
        return Ok(());
    }
    startup.parameters.retain(|name, _| !name.starts_with("_pq_."));
    if is_newer {
        startup.protocol_number_minor = minor;
    }
    let version =
        (i32::from(startup.protocol_number_major) << 16) | i32::from(startup.protocol_number_minor.min(minor));
    let said = NegotiateProtocolVersion::new(version, options);
    client.send(PgWireBackendMessage::NegotiateProtocolVersion(said)).await?;
    Ok(())
}

/// The user who started this.
struct Starter {
    salted: Option<(Vec<u8>, Vec<u8>)>,
}

impl Starter {
    fn new(password: Option<String>) -> Self {
        let salt = rand::random::<[u8; 16]>().to_vec();
        Self { salted: password.map(|password| (salt.clone(), gen_salted_password(&password, &salt, ITERATIONS))) }
    }
}

impl Debug for Starter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Starter")
    }
}

#[async_trait]
impl AuthSource for Starter {
    async fn get_password(&self, login: &LoginInfo) -> PgWireResult<Password> {
        let wrong = || PgWireError::InvalidPassword(login.user().unwrap_or_default().to_owned());
        let (salt, salted) = self.salted.clone().ok_or_else(wrong)?;
        Ok(Password::new(Some(salt), salted))
    }
}

/// Holders of tokens. (Of 256 random bits: wrong ones need not be counted, and a right one is never
/// kept out for them.)
struct Bearers {
    tokens: Option<Arc<Tokens>>,
}

impl Debug for Bearers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Bearers")
    }
}

#[async_trait]
impl AuthSource for Bearers {
    async fn get_password(&self, login: &LoginInfo) -> PgWireResult<Password> {
        // Only the hashes of tokens are known.
        Err(PgWireError::InvalidPassword(login.user().unwrap_or_default().to_owned()))
    }

    async fn verify_password(&self, login: &LoginInfo, given: &[u8]) -> PgWireResult<Option<()>> {
        let user = login.user().unwrap_or_default();
        let wrong = || PgWireError::InvalidPassword(user.to_owned());
        let given = std::str::from_utf8(given).map_err(|_| wrong())?;
        let known = self.tokens.as_ref().and_then(|tokens| tokens.client(given));
        if known.is_some_and(|(name, role)| name == user && role == Role::Reader) {
            return Ok(None);
        }
        Err(wrong())
    }
}
