//! `rankmesh serve`: HTTP for people's browsers and programs, in a process of its own.
//!
//! It asks as every command does, over the local socket or of stores, with the rights of the user
//! who runs it: peer credentials, roles and the audit apply as for the command line, and a fault
//! here does not affect capture. The agent opens no port and parses no HTTP.
//!
//! - `listen`: sockets, TLS, limits of a connection; `guard`: checks before a handler gets a
//!   request; `sessions`, `tokens`: who may ask; `pace`: how often.
//! - `gateway`: asking for a client; `problem`: answers for errors.
//! - `page`: the files for browsers; `api`: the paths under `/api/v1`; `findings`: as they come.
//! - `series`: metrics made of `snapshot`s of the current state; `metrics`: for Prometheus; `otlp`:
//!   for OpenTelemetry.
//! - `attended`: ending with an agent that does not come back.
//! - `alerts`, `notify`: alerts for receivers, and sending them; `post`: outgoing HTTP requests.
//! - `postgres`: another protocol for the same questions.

mod accept;
mod alerts;
mod api;
mod attended;
mod findings;
mod gateway;
mod guard;
mod listen;
mod metrics;
mod notify;
#[cfg(feature = "otlp")]
mod otlp;
mod pace;
mod page;
mod post;
#[cfg(feature = "postgres")]
mod postgres;
mod problem;
mod series;
mod sessions;
mod snapshot;
pub mod tokens;
mod unchanging;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use ask::args::SocketArg;
use ask::values::parse_duration;
use ask::{Connector, Exit, Target, UsageError};
use axum::Router;
use clap::Args;
use front::args::{RateArgs, SITE_INVESTIGATIONS};

use gateway::Gateway;
use guard::Guard;
use listen::Listen;
use metrics::MostSeries;
use notify::Receiver;
use sessions::Sessions;
use tokens::Tokens;
use tower_http::compression::CompressionLayer;
use tower_http::compression::predicate::{NotForContentType, Predicate, SizeAbove};

/// Flags of `rankmesh serve`.
#[derive(Debug, Args)]
pub struct ServeArgs {
    /// Which agent.
    #[command(flatten)]
    socket: SocketArg,
    /// Ask no agent, but these trace stores (repeatable; a directory means all its .db files)
    #[arg(long, value_name = "PATH", conflicts_with_all = ["socket", "via"])]
    db: Vec<PathBuf>,
    /// Where to listen: IP:PORT, none, or unix:PATH for a socket that only this user and root may
    /// use (from elsewhere with `ssh -L 7118:PATH HOST`). Beyond loopback only with --tls-cert and
    /// --tokens
    #[arg(long, value_name = "IP:PORT|unix:PATH|none", default_value = "127.0.0.1:7118")]
    listen: Listen,
    /// Certificate chain for TLS, PEM
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// Its private key, PEM
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// Name under which clients reach it (repeatable): requests for any other host are refused
    /// [default: the listen address; of loopback localhost and its addresses]
    #[arg(long, value_name = "NAME[:PORT]")]
    host: Vec<String>,
    /// Tokens of programs and people, a file that `rankmesh identity token --for serve` writes
    #[arg(long, value_name = "FILE", conflicts_with = "via")]
    tokens: Option<PathBuf>,
    /// Speak PostgreSQL's protocol, too, on this address; beyond loopback only with --tls-cert and
    /// --tokens
    #[cfg(feature = "postgres")]
    #[arg(long, value_name = "IP:PORT")]
    postgres: Option<std::net::SocketAddr>,
    /// With --postgres: the password of the user rankmesh, the first line of this file [default: a
    /// new one at each start, which is printed]
    #[cfg(feature = "postgres")]
    #[arg(long, value_name = "FILE", requires = "postgres")]
    postgres_password_file: Option<PathBuf>,
    /// The longest time that a client may give a question
    #[arg(long, value_name = "DURATION", default_value = "2m", value_parser = parse_duration)]
    longest: Duration,
    /// Also write this host's metrics into FILE every 15 s, for node_exporter's textfile collector
    /// (its name ends with .prom); with --listen none nothing else is done
    #[arg(long, value_name = "FILE", conflicts_with = "db")]
    textfile: Option<PathBuf>,
    /// Most series of metrics; ranks that are late most have theirs first
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    series: usize,
    /// Tell a receiver of jobs that are held up (repeatable): alertmanager:URL, webhook:URL or
    /// slack:URL; KIND:@FILE reads a URL that is a secret from a file
    #[arg(long, value_name = "KIND:URL", conflicts_with = "db")]
    notify: Vec<Receiver>,
    /// Tell of all jobs, not only of those that the asked agent judges: where not every host runs
    /// this with --notify
    #[arg(long, requires = "notify")]
    notify_all: bool,
    /// End when the agent has not answered for this long, where no client can connect either
    /// (--listen none)
    #[arg(long, value_name = "DURATION", default_value = "10m", value_parser = parse_duration)]
    without_agent: Duration,
    /// The site's saved investigations, NAME.sql each
    #[arg(long, value_name = "DIR", default_value = SITE_INVESTIGATIONS)]
    investigations: PathBuf,
    /// Push metrics and findings to an OpenTelemetry collector by HTTP with protobuf, as
    /// http://collector:4318 (/v1/metrics and /v1/logs are added): of this host and of the jobs
    /// that the asked agent judges, every 15 s and as they come
    #[cfg(feature = "otlp")]
    #[arg(long, value_name = "URL", conflicts_with = "db")]
    otlp: Option<String>,
    /// Headers for it, as a token needs: a file of lines NAME: VALUE
    #[cfg(feature = "otlp")]
    #[arg(long, value_name = "FILE", requires = "otlp")]
    otlp_headers: Option<PathBuf>,
    /// Push of all hosts and jobs: where not every host runs this with --otlp
    #[cfg(feature = "otlp")]
    #[arg(long, requires = "otlp")]
    otlp_all: bool,
    /// What a GPU costs.
    #[command(flatten)]
    rate: RateArgs,
}

impl ServeArgs {
    /// Whether anything is to be done besides listening.
    fn sends(&self) -> bool {
        #[cfg(feature = "otlp")]
        if self.otlp.is_some() {
            return true;
        }
        self.textfile.is_some() || !self.notify.is_empty()
    }

    /// Whether clients can connect.
    fn listens(&self) -> bool {
        #[cfg(feature = "postgres")]
        if self.postgres.is_some() {
            return true;
        }
        self.listen != Listen::None
    }
}

/// Serves until it is ended.
///
/// # Errors
/// The flags do not go together, an address is taken, or the stores cannot be read.
pub fn run(args: ServeArgs, connector: &dyn Connector) -> anyhow::Result<Exit> {
    let beyond = !args.listen.is_local();
    #[cfg(feature = "postgres")]
    let beyond = beyond || args.postgres.is_some_and(|address| !address.ip().is_loopback());
    if beyond && (args.tls_cert.is_none() || args.tokens.is_none()) {
        let message = "beyond this host only with TLS and tokens: give --tls-cert, --tls-key and --tokens, or listen on \
                       127.0.0.1 or unix:PATH and let clients come through ssh -L";
        return Err(UsageError(message.to_owned()).into());
    }
    if !matches!(args.listen, Listen::Tcp(_)) && args.tls_cert.is_some() {
        return Err(UsageError("a socket file has no TLS: the kernel says who connects".to_owned()).into());
    }
    if !args.listens() && !args.sends() {
        let message = "--listen none is for --textfile, --notify, --otlp and --postgres: there is nothing to do";
        return Err(UsageError(message.to_owned()).into());
    }
    let tls = match (&args.tls_cert, &args.tls_key) {
        (Some(cert), Some(key)) => Some(listen::tls(cert, key, listen::HTTP)?),
        _ => None,
    };
    let target =
        if args.db.is_empty() { Target::agent(&args.socket, connector) } else { Target::stores(&args.db, connector)? };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .max_blocking_threads(gateway::ASKED_AT_ONCE + 16)
        .thread_name("serve")
        .enable_all()
        .build()?;
    let served = runtime.block_on(serve(&args, target, tls));
    // Questions that still run end with their connection to the agent.
    runtime.shutdown_timeout(Duration::from_secs(1));
    served.map(|()| Exit::Complete)
}

async fn serve(args: &ServeArgs, target: Target, tls: Option<listen::Acceptor>) -> anyhow::Result<()> {
    let (most, gateway_target) = (args.series, target.clone());
    let gateway = Arc::new(Gateway::new(target, args.longest, args.rate.clone(), args.investigations.clone()));
    let writing = async {
        match &args.textfile {
            Some(path) => metrics::textfile(Arc::clone(&gateway), path.clone(), most).await,
            None => std::future::pending().await,
        }
    };
    let notifying = async {
        match args.notify.is_empty() {
            false => notify::send_alerts(&gateway_target, &args.notify, !args.notify_all).await,
            true => std::future::pending().await,
        }
    };
    #[cfg(feature = "otlp")]
    let collector =
        args.otlp.as_ref().map(|url| otlp::Collector::new(url, args.otlp_headers.as_deref())).transpose()?;
    let pushing = async {
        #[cfg(feature = "otlp")]
        if let Some(collector) = collector {
            otlp::push(&gateway, collector, !args.otlp_all, most).await;
        }
        std::future::pending::<()>().await
    };
    let attending = attended::until_left(gateway_target.clone(), args.without_agent, args.listens());
    let serving = listening(args, Arc::clone(&gateway), tls);
    tokio::select! {
        served = serving => served,
        left = attending => Err(left.into()),
        notified = notifying => notified,
        () = writing => Ok(()),
        () = pushing => Ok(()),
        () = ended() => Ok(()),
    }
}

async fn listening(args: &ServeArgs, gateway: Arc<Gateway>, tls: Option<listen::Acceptor>) -> anyhow::Result<()> {
    let listener = listen::bind(&args.listen).await.with_context(|| format!("listening on {}", args.listen))?;
    let tokens = args.tokens.as_deref().map(Tokens::open).transpose()?.map(Arc::new);
    #[cfg(feature = "postgres")]
    let postgres = postgres(args, &gateway, tokens.clone()).await?;
    // Where there is no such task, a future that never ends takes its place.
    #[cfg(not(feature = "postgres"))]
    let postgres = std::future::pending();
    let Some(listener) = listener else { return postgres.await };
    let scheme = if tls.is_some() { "https" } else { "http" };
    let place = listener.place();
    eprintln!(
        "serving {} on {}",
        ask::output::printable(&gateway.description()),
        place.as_deref().unwrap_or("a socket file")
    );
    let sessions = Sessions::new(match (&place, args.listen.is_local()) {
        // Beyond this host every client needs a token.
        (Some(place), true) => Some(format!("{scheme}://{place}/#k=")),
        _ => None,
    });
    let guard = Arc::new(Guard::new(listener.hosts(&args.host), scheme, sessions, tokens));
    let router = router(&gateway, &guard).layer(axum::Extension(MostSeries(args.series)));
    #[cfg(feature = "mcp")]
    let router = router.merge(mcp(&gateway));
    // Not of events, which are sent as they come, and not of what is small or compressed already.
    let worth =
        SizeAbove::new(1_024).and(NotForContentType::SSE).and(NotForContentType::new("application/vnd.apache.parquet"));
    let router = router.layer(CompressionLayer::new().compress_when(worth));
    let app = guard::around(router, Arc::clone(&guard));
    tokio::select! {
        served = listen::serve(listener, tls, app) => served,
        served = postgres => served,
    }
}

/// The Model Context Protocol at `/mcp`.
#[cfg(feature = "mcp")]
fn mcp(gateway: &Gateway) -> Router {
    use axum::http::{StatusCode, header};
    use axum::response::{IntoResponse, Response};

    let service = ::mcp::http::service(gateway.target(), gateway.usual());
    // What is no message of the protocol is answered as on every other path.
    let refused = |response: Response| async move {
        let status = response.status();
        if !status.is_client_error() || response.headers().contains_key(header::CONTENT_TYPE) {
            return response;
        }
        let words = match status {
            StatusCode::METHOD_NOT_ALLOWED => "messages come by POST",
            StatusCode::NOT_ACCEPTABLE => "answers are application/json or text/event-stream",
            _ => "a JSON-RPC message of the Model Context Protocol is wanted, as application/json",
        };
        problem::Problem::new(status, "wrong", words).into_response()
    };
    let router = Router::new().route_service("/mcp", service).layer(axum::middleware::map_response(refused));
    router.layer(axum::middleware::map_request(|mut request: axum::extract::Request| async {
        api::Params::<api::Nothing>::of(request.uri())?;
        if let Some(behalf) = request.extensions().get::<gateway::Who>().map(gateway::Who::behalf) {
            request.extensions_mut().insert(behalf);
        }
        // The protocol's server wants both forms named; who accepts them by a range, or says
        // nothing, accepts them, too.
        let forms = [("application/json", ()), ("text/event-stream", ())];
        let accepts = |form: &(&str, ())| accept::preferred(request.headers(), std::slice::from_ref(form)).is_some();
        if forms.iter().all(accepts) {
            let both = axum::http::HeaderValue::from_static("application/json, text/event-stream");
            request.headers_mut().insert(axum::http::header::ACCEPT, both);
        }
        Ok::<_, problem::Problem>(request)
    }))
}

/// Serves PostgreSQL's protocol, if that was asked for.
///
/// # Errors
/// The password or the certificate cannot be read, or the address is taken.
#[cfg(feature = "postgres")]
async fn postgres(
    args: &ServeArgs,
    gateway: &Arc<Gateway>,
    tokens: Option<Arc<Tokens>>,
) -> anyhow::Result<impl Future<Output = anyhow::Result<()>> + use<>> {
    let bound = match args.postgres {
        None => None,
        Some(address) => {
            let password = args.postgres_password_file.as_deref().map(postgres::password::first_line).transpose()?;
            let tls = match (&args.tls_cert, &args.tls_key) {
                (Some(cert), Some(key)) => Some(listen::tls(cert, key, b"postgresql")?),
                _ => None,
            };
            Some(postgres::Postgres::bind(address, Arc::clone(gateway), tokens, password, tls).await?)
        }
    };
    Ok(async move {
        match bound {
            Some(postgres) => postgres.serve().await,
            None => std::future::pending().await,
        }
    })
}

/// All paths. (Front ends with paths of their own are merged here.)
fn router(gateway: &Arc<Gateway>, guard: &Arc<Guard>) -> Router {
    let metrics: Router =
        Router::new().route("/metrics", axum::routing::get(metrics::metrics)).with_state(Arc::clone(gateway));
    api::router(gateway, guard).merge(metrics).merge(page::router())
}

/// Waits for Ctrl-C, or the signal of a service manager.
async fn ended() {
    use tokio::signal::unix::{SignalKind, signal};
    match signal(SignalKind::terminate()) {
        Ok(mut terminate) => {
            tokio::select! {
                _ = tokio::signal::ctrl_c() => {}
                _ = terminate.recv() => {}
            }
        }
        Err(_) => {
            let _ = tokio::signal::ctrl_c().await;
        }
    }
}
