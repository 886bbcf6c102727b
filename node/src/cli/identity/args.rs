//! The flags of `rankmesh identity`.

use std::num::NonZeroU32;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use ask::args::ReportFormat;
use ask::paths::state_dir;
use ask::values::parse_duration;
use certs::{MeshName, NodeName, Role};
#[cfg(feature = "serve")]
use clap::ValueEnum;
use clap::{Args, Subcommand};

/// Flags of `rankmesh identity`.
#[derive(Debug, Args)]
pub struct IdentityArgs {
    #[command(subcommand)]
    pub(super) command: Command,
}

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Make the CA of a new mesh (`rankmesh up` does this by itself when it founds one)
    Init {
        #[command(flatten)]
        dir: DirArg,
        /// Name of the mesh [default: a random one]
        #[arg(long, value_name = "NAME")]
        mesh: Option<MeshName>,
    },
    /// Make the identity of a node, without any network
    Issue {
        #[command(flatten)]
        dir: DirArg,
        /// Name of the node
        #[arg(long, value_name = "NAME")]
        name: NodeName,
        /// Directory to write the identity to: all that `rankmesh up --identity DIR` needs there
        #[arg(long, value_name = "DIR")]
        out: PathBuf,
        /// What it may do: node (an agent), operator (asks and administers) or reader (asks)
        #[arg(long, value_name = "ROLE", default_value_t = Role::Node)]
        role: Role,
        /// How long the certificate is valid; agents renew theirs by themselves while one of them
        /// holds the CA
        #[arg(long, value_name = "DURATION", value_parser = parse_duration, default_value = "30d")]
        validity: Duration,
        /// For an operator or reader: the certificate is renewed, each time for --validity, until
        /// so much time has passed
        #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
        renew_for: Option<Duration>,
        /// Also when the name or the directory has an identity already, which this one replaces
        #[arg(long)]
        reissue: bool,
    },
    /// Renew the certificate of an operator or reader that was issued with --renew-for (`--via`
    /// does so by itself in time)
    Renew {
        /// Where it lies
        #[arg(long = "dir", value_name = "DIR")]
        dir: PathBuf,
        /// Any agent of the mesh
        #[arg(long, value_name = "HOST[:PORT]")]
        via: String,
    },
    /// Print a token with which hosts join: `rankmesh up --join HOST --token TOKEN`
    Token {
        #[command(flatten)]
        dir: DirArg,
        /// How long the token admits hosts
        #[arg(long, value_name = "DURATION", value_parser = parse_duration, default_value = "1h")]
        ttl: Duration,
        /// How many hosts it admits, or `any`
        #[arg(long, value_name = "N", default_value = "1")]
        uses: Uses,
        /// A token for clients of `rankmesh serve` instead: it needs no CA, and goes into the file
        /// of --tokens
        #[cfg(feature = "serve")]
        #[arg(long = "for", value_enum, value_name = "WHAT", requires = "tokens", conflicts_with = "uses")]
        purpose: Option<Purpose>,
        /// With --for serve: the file of tokens that `rankmesh serve --tokens` is given; it is made
        /// where it is not there
        #[cfg(feature = "serve")]
        #[arg(long, value_name = "FILE", requires = "purpose")]
        tokens: Option<PathBuf>,
        /// With --for serve: what its bearer may do
        #[cfg(feature = "serve")]
        #[arg(long, value_enum, default_value_t = ServeRole::Reader, requires = "purpose")]
        role: ServeRole,
        /// With --for serve: whom the audit names
        #[cfg(feature = "serve")]
        #[arg(long, value_name = "NAME", default_value = "client", requires = "purpose")]
        name: String,
    },
    /// Revoke certificates: the agent on this host, or any to whose identity directory
    /// DIR/trust.json is copied, tells the others within seconds
    Revoke {
        #[command(flatten)]
        dir: DirArg,
        /// Whose, or the serial number of one of them (as `show` lists it)
        #[arg(value_name = "NAME|SERIAL", required_unless_present = "name")]
        which: Option<String>,
        /// The same, for scripts
        #[arg(long, value_name = "NAME|SERIAL", conflicts_with = "which")]
        name: Option<String>,
    },
    /// Replace the CA: a new one issues from now on and nodes renew under it by themselves, while
    /// both are trusted
    Rotate {
        #[command(flatten)]
        dir: DirArg,
        /// End it: the CA before is trusted no more
        #[arg(long)]
        finish: bool,
        /// With --finish: also when nodes have no certificate of the new CA yet, which are shut out
        /// then
        #[arg(long, requires = "finish")]
        force: bool,
    },
    /// Show whose identity a directory holds
    Show {
        #[command(flatten)]
        dir: DirArg,
        /// Output format
        #[arg(long, value_enum, default_value_t = ReportFormat::Table)]
        format: ReportFormat,
    },
}

/// Where the identity, or the CA, lies.
#[derive(Debug, Args)]
pub(super) struct DirArg {
    /// Identity directory [default: that of this host's agent]
    #[arg(long = "dir", value_name = "DIR")]
    dir: Option<PathBuf>,
}

impl DirArg {
    pub(super) fn resolve(self) -> anyhow::Result<PathBuf> {
        match self.dir {
            Some(dir) => Ok(dir),
            None => Ok(state_dir()?.join("identity")),
        }
    }
}

/// What a token is for, besides joining.
#[cfg(feature = "serve")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Purpose {
    /// Clients of `rankmesh serve`.
    Serve,
}

/// What the bearer of such a token may do.
#[cfg(feature = "serve")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum ServeRole {
    /// Ask as readers do, whoever runs the server.
    Reader,
}

/// How many hosts a token admits; `None`: any number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Uses(pub(super) Option<NonZeroU32>);

impl FromStr for Uses {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        if text == "any" {
            return Ok(Self(None));
        }
        text.parse()
            .map(|uses| Self(Some(uses)))
            .map_err(|_| format!("'{text}' is not a number of hosts; write 1 or more, or any"))
    }
}
