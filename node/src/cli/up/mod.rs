//! `rankmesh up`: run the agent until Ctrl-C or SIGTERM.

use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use agent::access::SocketAccess;
use agent::archiver::{self, ArchiveChoice, Kept};
use agent::{Agent, AgentConfig, CaptureChoice, Shared, SourceConfig, bootstrap};
use anyhow::{Context, bail};
use ask::{Exit, UsageError, paths};
use certs::NodeName;
use node_bpf::{ProbeSpec, RequestSpec, ServeRule, ServingConfig};
use store::StoreConfig;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

use super::args::{CaptureMode, UpArgs};
use super::{pipes, secret};
use crate::privileges::{self, Plan};
use crate::slurm::run_dir;

mod greeting;

use greeting::{Greeting, Peer, Recorded, Rows};

/// How long the greeting waits for the nodes that this one is to join, or knew before.
const OTHERS_ANSWER: Duration = Duration::from_secs(3);
/// Services are looked at no more often: sums of requests are of whole seconds.
const SHORTEST_LOOK: Duration = Duration::from_secs(2);
const LOOK_AGAIN: Duration = Duration::from_millis(50);

pub(super) fn run(args: UpArgs) -> anyhow::Result<Exit> {
    query_planner::memory::bound_all(args.question_memory_mib << 20);
    let replace = args.replace;
    let choice = |kept, to: &Option<String>, settings: &Option<PathBuf>| {
        to.clone().map(|to| ArchiveChoice { kept, to, settings: settings.clone() })
    };
    let kept: Vec<ArchiveChoice> = [
        choice(Kept::Hours, &args.archive, &args.archive_settings),
        choice(Kept::Rows, &args.clickhouse, &args.clickhouse_settings),
    ]
    .into_iter()
    .flatten()
    .collect();
    #[cfg(not(feature = "archive"))]
    if !kept.is_empty() {
        return Err(super::without_archives());
    }
    let config = resolve(args)?;
    // As late as possible: until this agent records, none does.
    if let Some(socket) = config.socket.as_deref().filter(|_| replace)
        && let Some(took) = super::replace::predecessor(socket)?
    {
        tracing::info!("the agent on {} has ended, within {} ms", socket.display(), took.as_millis());
    }
    // Before the runtime: capabilities are each thread's own.
    privileges::give_up_all_but(&plan(&config)).context("giving up privileges")?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().context("starting the runtime")?;
    runtime.block_on(serve(config, kept))?;
    // Blocking threads may still sit in SQLite; the stores are closed by now.
    runtime.shutdown_timeout(std::time::Duration::from_millis(500));
    Ok(Exit::Complete)
}

/// What the agent will do, for the decision on privileges.
fn plan(config: &AgentConfig) -> Plan {
    let (file, stored) = match &config.source {
        SourceConfig::Store { path, .. } => (path, true),
        SourceConfig::Served { path, .. } => (path, false),
    };
    Plan {
        capture: stored && matches!(config.capture, CaptureChoice::Auto { .. }),
        files: [file, &config.identity].into_iter().chain(&config.socket).cloned().collect(),
        port: config.listen.port(),
    }
}

async fn serve(config: AgentConfig, kept: Vec<ArchiveChoice>) -> anyhow::Result<()> {
    run_dir::tidy_rings();
    // Before anything else, so that no signal between start and select is lost.
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let founding = config.join.is_empty() && !certs::Identity::exists(&config.identity);
    let agent = tokio::select! {
        agent = Agent::start(config.clone()) => agent?,
        _ = terminate.recv() => return Ok(()),
        _ = interrupt.recv() => return Ok(()),
    };
    let shared = agent.shared();
    tracing::info!(
        "node {} of mesh {} listens on UDP {}, recording {}",
        shared.identity.node(),
        shared.identity.mesh(),
        shared.advertise,
        shared.recording.state
    );
    tokio::select! {
        () = others_answer(shared, &config) => {}
        _ = terminate.recv() => return leave(agent, &mut terminate, &mut interrupt).await,
        _ = interrupt.recv() => return leave(agent, &mut terminate, &mut interrupt).await,
    }
    // An agent goes on where nobody reads that.
    pipes::say(&format!("{}\n", greeting(shared, &config).text()));
    if founding && goes_to_the_journal() {
        tracing::info!(
            "founded a new mesh; a token for the next host: rankmesh identity token --dir {}",
            config.identity.display()
        );
    } else if founding && let Some(token) = bootstrap::first_token(&config)? {
        pipes::say("This node founded a new mesh. On the next host run:\n");
        let _ = writeln!(std::io::stdout(), "rankmesh up --join {} --token {token}", shared.advertise);
    }
    let stop = CancellationToken::new();
    let keep = |choice| tokio::spawn(archiver::keep(Arc::clone(shared), choice, stop.clone()));
    let keeping: Vec<_> = kept.into_iter().map(keep).collect();
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    stop.cancel();
    for kept in keeping {
        let _ = kept.await;
    }
    leave(agent, &mut terminate, &mut interrupt).await
}

/// Ends the agent in good order. A second signal ends the process at once.
async fn leave(agent: Agent, terminate: &mut Signal, interrupt: &mut Signal) -> anyhow::Result<()> {
    tracing::info!("leaving");
    tokio::select! {
        () = agent.shutdown() => {}
        _ = terminate.recv() => bail!("stopped before the store was closed"),
        _ = interrupt.recv() => bail!("stopped before the store was closed"),
    }
    Ok(())
}

/// Returns when another node answers, at once if none is expected, and after a while in any case:
/// the agent runs meanwhile.
async fn others_answer(shared: &Shared, config: &AgentConfig) {
    let until = tokio::time::Instant::now() + OTHERS_ANSWER;
    let live = |member: &gossip::Member| !member.is_self && member.state == gossip::MemberState::Live;
    while tokio::time::Instant::now() < until {
        let members = shared.coordinator.gossip.members();
        if members.iter().any(live) || (config.join.is_empty() && members.len() <= 1) {
            return;
        }
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}

fn greeting(shared: &Shared, config: &AgentConfig) -> Greeting {
    let facts = shared.source.facts();
    let rows = match &config.source {
        SourceConfig::Store { path, limits } => Rows::Store {
            path: path.display().to_string(),
            rows: facts.tables.iter().map(|table| table.rows).sum(),
            max_mib: limits.max_bytes >> 20,
            max_age: limits.max_age,
        },
        SourceConfig::Served { path, .. } => {
            Rows::Served { path: path.display().to_string(), tables: facts.tables.len() }
        }
    };
    let others = shared.coordinator.gossip.members().into_iter().filter(|member| !member.is_self);
    let peers: Vec<Peer> = others
        .map(|member| Peer {
            live: member.state == gossip::MemberState::Live,
            ranks: member.facts.ranks.clone(),
            name: member.name,
        })
        .collect();
    // Commands look for the agent here by default.
    let elsewhere = config.socket.as_ref().filter(|socket| **socket != paths::default_socket());
    Greeting {
        version: env!("CARGO_PKG_VERSION"),
        node: shared.identity.node().to_string(),
        mesh: shared.identity.mesh().to_string(),
        address: shared.advertise.to_string(),
        recording: shared.recording.status().map_or_else(
            || Recorded::Otherwise(shared.recording.state.clone()),
            |status| Recorded::Classes { mode: status.mode, only_user: status.only_user, classes: status.classes },
        ),
        rows,
        expects_others: !config.join.is_empty() || !peers.is_empty(),
        peers,
        issuer: certs::Issuer::exists(&config.identity),
        socket: elsewhere.map(|socket| socket.display().to_string()),
    }
}

/// Whether the output of this process goes to systemd's journal, which others may read: then no
/// token may be printed. ($JOURNAL_STREAM is the device and inode of the journal's end,
/// systemd.exec(5).)
fn goes_to_the_journal() -> bool {
    let Ok(journal) = std::env::var("JOURNAL_STREAM") else { return false };
    nix::sys::stat::fstat(std::io::stdout())
        .is_ok_and(|stdout| journal == format!("{}:{}", stdout.st_dev, stdout.st_ino))
}

fn is_missing(error: &anyhow::Error) -> bool {
    error.downcast_ref::<std::io::Error>().is_some_and(|error| error.kind() == std::io::ErrorKind::NotFound)
}

fn resolve(args: UpArgs) -> anyhow::Result<AgentConfig> {
    let name: NodeName = match args.name {
        Some(name) => name.parse().map_err(|error| UsageError(format!("--name: {error}")))?,
        None => {
            let name = nix::unistd::gethostname().context("reading the host name")?;
            let name = name.to_string_lossy();
            name.parse()
                .map_err(|error| UsageError(format!("this host's name cannot be the node's ({error}): give --name")))?
        }
    };
    if (args.token.is_some() || args.token_file.is_some()) && args.join.is_empty() {
        return Err(UsageError("a token needs --join HOST: the node that admits this one".into()).into());
    }
    let identity = match args.identity {
        Some(dir) => dir,
        None => paths::state_dir()?.join("identity"),
    };
    let token = match secret::token(args.token, args.token_file.as_deref()) {
        // A node that has joined needs no token: its file may have been deleted, as it should be.
        Err(error) if is_missing(&error) && certs::Identity::exists(&identity) => {
            tracing::debug!("no token, and an identity is there: {error:#}");
            None
        }
        token => token?,
    };
    if !args.replicated.is_empty() && args.serve_db.is_none() {
        return Err(
            UsageError("--replicated goes with --serve-db: a trace store has no replicated tables".into()).into()
        );
    }
    let mut probes = vec![];
    for typed in &args.probe {
        probes.push(ProbeSpec::function(typed).map_err(|error| UsageError(format!("--probe {error}")))?);
    }
    for typed in &args.usdt {
        probes.push(ProbeSpec::usdt(typed).map_err(|error| UsageError(format!("--usdt {error}")))?);
    }
    if !probes.is_empty() && args.capture == CaptureMode::Off {
        return Err(UsageError("--probe and --usdt record: they do not go with --capture off".into()).into());
    }
    let mut rules = vec![];
    for typed in &args.serve {
        rules.push(ServeRule::parse(typed).map_err(|error| UsageError(format!("--serve {error}")))?);
    }
    let requests = RequestSpec::parse_all(&args.request).map_err(|error| UsageError(format!("--request {error}")))?;
    if args.capture == CaptureMode::Off
        && let Some(flag) =
            [("--serve", rules.is_empty()), ("--request", requests.is_empty())].iter().find(|(_, no)| !no)
    {
        return Err(UsageError(format!("{} records: it does not go with --capture off", flag.0)).into());
    }
    let source = match args.serve_db {
        Some(path) => SourceConfig::Served { path, replicated: args.replicated },
        None => {
            let path = match args.store {
                Some(path) => path,
                None => paths::state_dir()?.join("trace.db"),
            };
            let limits = StoreConfig {
                max_bytes: args.store_max_mib.saturating_mul(1 << 20),
                max_age: args.store_max_age,
                hold_for_archive: args.archive.is_some(),
                ..StoreConfig::default()
            };
            SourceConfig::Store { path, limits }
        }
    };
    Ok(AgentConfig {
        name,
        listen: args.listen,
        advertise: args.advertise,
        join: args.join,
        token,
        identity,
        cert_validity: args.cert_validity,
        source,
        socket_access: SocketAccess {
            users: args.allow_user,
            groups: args.allow_group,
            readers_see_processes: args.readers_see_processes,
            users_see_own: args.users_see_own,
        },
        socket: Some(args.socket.unwrap_or_else(paths::default_socket)),
        capture: match args.capture {
            CaptureMode::Auto => CaptureChoice::Auto {
                cgroup: args.cgroup,
                probes,
                job: None,
                rings: Some(run_dir::ring_dir(None)),
                budget: args.budget.0,
                serving: Some(Box::new(ServingConfig {
                    rules,
                    requests,
                    detect: !args.no_detect,
                    paths: !args.no_paths,
                    cgroup: None,
                })),
            },
            CaptureMode::Off => CaptureChoice::Off,
        },
        on_finding: args.on_finding,
        tail_every: args.tail_every.max(SHORTEST_LOOK),
        asks_nccl: !args.no_nccl_ras,
        labels: args.label,
        most_in_cell: Some(agent::config::MOST_IN_CELL),
    })
}
