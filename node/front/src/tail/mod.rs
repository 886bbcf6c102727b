//! `rankmesh tail`: how long requests take on each host, and what the slowest have more of than
//! ordinary ones.
//!
//! Owns the flags and the answer, which the servers for browsers, programs and assistants give, too.
//! `asking` asks; `figures` what is known of a service, and which host is slower than its peers; `text`
//! prints it, `chapter` is that for reports. What the slowest wait for is [`explain::tail`]'s.

mod asking;
mod chapter;
mod figures;
mod text;

use std::io::Write;

use anyhow::bail;
use ask::args::{ReportFormat, SpanArgs, TargetArgs};
use ask::output::{printable, quiet, say_coverage};
use ask::rows::Client;
use ask::{Connector, Exit, Target, UsageError};
use clap::{Args, ValueEnum};
use model::Coverage;
use serde::{Deserialize, Serialize};

pub use chapter::chapter;
pub use explain::tail::{CauseGroup, Example, Excess, Kind, Link, More, Part, Shared, Slowest};
pub use figures::{Figures, Group, Service, Slower};

/// Looked at, where no time is given.
const LAST_NS: i64 = 600_000_000_000;

/// Flags of `rankmesh tail`.
#[derive(Debug, Args)]
pub struct TailArgs {
    /// Whom to ask.
    #[command(flatten)]
    target: TargetArgs,
    /// Only this service
    #[arg(long, value_name = "NAME")]
    service: Option<String>,
    /// Only this tenant, as in `requests.tenant`: job:42, unit:vllm.service, user:ada …
    #[arg(long, value_name = "NAME")]
    tenant: Option<String>,
    /// Only this route, as in `requests.route`
    #[arg(long, value_name = "PATH")]
    route: Option<String>,
    /// Break each service down by this
    #[arg(long, value_enum, default_value_t = By::Host)]
    by: By,
    /// Of which time; without it the last ten minutes.
    #[command(flatten)]
    span: SpanArgs,
    /// Output format
    #[arg(long, value_enum, default_value_t = ReportFormat::Table)]
    format: ReportFormat,
}

/// What a service's requests are grouped by.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "openapi", schema(as = TailBy))]
#[serde(rename_all = "snake_case")]
pub enum By {
    /// Its hosts, compared with each other.
    #[default]
    Host,
    /// Whose servers they are.
    Tenant,
    /// Method and path.
    Route,
    /// What most delays each of the slowest requests.
    Cause,
}

impl By {
    /// As it is typed: `host`.
    ///
    /// # Errors
    /// It is none; the message says what there is.
    pub fn parsed(name: &str) -> Result<Self, UsageError> {
        let all = || Self::value_variants().iter().map(|by| by.title()).collect::<Vec<_>>().join(", ");
        Self::from_str(name, false)
            .map_err(|_| UsageError(format!("by: there is no {}; there are {}", printable(name), all())))
    }

    fn title(self) -> &'static str {
        match self {
            By::Host => "host",
            By::Tenant => "tenant",
            By::Route => "route",
            By::Cause => "cause",
        }
    }
}

/// Which requests, of which time, and by what they are broken down.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Wanted {
    /// Only this service.
    pub service: Option<String>,
    /// Only this tenant.
    pub tenant: Option<String>,
    /// Only this route.
    pub route: Option<String>,
    /// What each service is broken down by.
    pub by: By,
    /// Unix nanoseconds, up to the second one; none: the last ten minutes.
    pub span_ns: Option<(i64, i64)>,
}

/// The answer, as `--format json` prints it.
#[derive(Debug, Serialize)]
pub struct Tail {
    /// Raised when a member changes its meaning or goes.
    pub version: u32,
    /// Of requests from then on, Unix nanoseconds,
    pub since_ns: i64,
    /// up to then.
    pub until_ns: i64,
    /// What `groups` of services are: none by cause, which `slowest.causes` has.
    pub by: By,
    /// Those with the most requests first. None: no requests are stored of that time.
    pub services: Vec<Service>,
    /// Services that are not among them, since there were too many.
    pub left_out: usize,
    /// Who is in it.
    pub coverage: Coverage,
}

impl Tail {
    /// For people: in 80 columns, the most important first.
    #[must_use]
    pub fn text(&self) -> String {
        text::printed(self)
    }
}

/// How long requests take, and what the slowest have more of. Nothing stored is an answer without
/// services.
///
/// # Errors
/// As [`Target::query`]; a tenant or a route is named or asked for by who may not see them.
pub fn of(target: &Target, client: &Client<'_>, wanted: Wanted) -> anyhow::Result<Tail> {
    let now_ns = target.now_ns();
    asking::asked(client, &wanted, wanted.span_ns.unwrap_or((now_ns.saturating_sub(LAST_NS), now_ns.saturating_add(1))))
}

/// Prints how long requests take, and what the slowest have more.
///
/// # Errors
/// Nobody answers, the flags are wrong, or the output cannot be written.
pub fn run(args: TailArgs, connector: &dyn Connector) -> anyhow::Result<Exit> {
    let target = args.target.target(connector)?;
    let client = Client::of(&target, &args.target);
    let span_ns = args.span.resolved_ns(&target)?;
    let wanted = Wanted { service: args.service, tenant: args.tenant, route: args.route, by: args.by, span_ns };
    let only = wanted.service.clone();
    let tail = of(&target, &client, wanted)?;
    let complete = tail.coverage.is_complete();
    if args.target.ask.require_all && !complete {
        bail!("the answer is partial and --require-all was given: nothing is printed");
    }
    let mut out = std::io::stdout().lock();
    match args.format {
        ReportFormat::Json => writeln!(out, "{}", quiet(&serde_json::to_string(&tail)?))?,
        ReportFormat::Table => {
            match tail.services.as_slice() {
                [] => writeln!(out, "{}", record::wrapped(&text::nothing(only.as_deref())).trim_end())?,
                _ => write!(out, "{}", tail.text())?,
            }
            say_coverage(&tail.coverage);
        }
    }
    out.flush()?;
    Ok(if complete { Exit::Complete } else { Exit::Partial })
}
