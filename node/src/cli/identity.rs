//! `rankmesh identity`: the mesh's CA, certificates made offline, join tokens, and showing
//! identities.
//!
//! Standard output carries data only (a token, the output of `show`); messages go to standard
//! error. Keys, files and rules are the `certs` crate's; joining over the network is
//! `mesh::join`'s.

use std::io::Write;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::{Duration, SystemTime};

use anyhow::{Context, bail};
use certs::{Identity, Issuer, MeshName, NodeName, Reissue, Role, TrustList};
#[cfg(feature = "serve")]
use clap::ValueEnum;
use clap::{Args, Subcommand};
use rand::RngExt;
use serde_json::json;

use ask::UsageError;
use ask::args::ReportFormat;
use ask::paths::state_dir;
use ask::utc::utc;
use ask::values::parse_duration;

/// Flags of `rankmesh identity`.
#[derive(Debug, Args)]
pub struct IdentityArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
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
    /// Print a token with which hosts join: `rankmesh up --join IP:PORT --token TOKEN`
    Token {
        #[command(flatten)]
        dir: DirArg,
        /// How long the token admits hosts
        #[arg(long, value_name = "DURATION", value_parser = parse_duration, default_value = "1h")]
        ttl: Duration,
        /// How many hosts it admits, or `any`
        #[arg(long, value_name = "N", default_value = "1")]
        uses: Uses,
        /// A token for clients of `rankmesh serve` instead: it needs no CA, and goes into the file of
        /// --tokens
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
struct DirArg {
    /// Identity directory [default: that of this host's agent]
    #[arg(long = "dir", value_name = "DIR")]
    dir: Option<PathBuf>,
}

impl DirArg {
    fn resolve(self) -> anyhow::Result<PathBuf> {
        match self.dir {
            Some(dir) => Ok(dir),
            None => Ok(state_dir()?.join("identity")),
        }
    }
}

/// What a token is for, besides joining.
#[cfg(feature = "serve")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Purpose {
    /// Clients of `rankmesh serve`.
    Serve,
}

/// What the bearer of such a token may do.
#[cfg(feature = "serve")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum ServeRole {
    /// Ask as readers do, whoever runs the server.
    Reader,
}

/// How many hosts a token admits; `None`: any number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Uses(Option<NonZeroU32>);

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

/// Runs `rankmesh identity`.
///
/// # Errors
/// With what to do about it; nothing was changed then.
pub fn run(args: IdentityArgs) -> anyhow::Result<()> {
    execute(args.command, &mut std::io::stdout().lock(), &mut std::io::stderr().lock())
}

/// `out` takes data, `note` messages for people.
fn execute(command: Command, out: &mut impl Write, note: &mut impl Write) -> anyhow::Result<()> {
    match command {
        Command::Init { dir, mesh } => {
            let dir = dir.resolve()?;
            let mesh = match mesh {
                Some(mesh) => mesh,
                None => format!("mesh-{:08x}", rand::rng().random::<u32>()).parse()?,
            };
            let issuer = Issuer::init(&dir, &mesh)?;
            let (dir, ca) = (dir.display(), issuer.authority().fingerprint());
            writeln!(note, "Made the CA of mesh {mesh} in {dir} (fingerprint {ca}).")?;
            writeln!(note, "Next: rankmesh identity issue --dir {dir} --name NODE --out DIR")?;
        }
        Command::Issue { dir, name, out: target, role, validity, renew_for, reissue } => {
            let wanted = Wanted { name, role, validity, renew_for, reissue };
            issue(&dir.resolve()?, &wanted, &target, note)?;
        }
        Command::Renew { dir, via } => {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            let renewed = runtime.block_on(async {
                let addresses = super::via::addresses(&via).await?;
                super::person::renew(&dir, &addresses).await
            })?;
            let (role, name, until) = (renewed.role(), renewed.node(), utc(renewed.not_after()));
            writeln!(note, "Renewed the certificate of {role} {name}, valid until {until}.")?;
        }
        #[cfg(feature = "serve")]
        Command::Token {
            ttl,
            purpose: Some(Purpose::Serve),
            tokens: Some(file),
            role: ServeRole::Reader,
            name,
            ..
        } => {
            use serve::tokens::{Role, create};
            let token = create(&file, &name, Role::Reader, ttl)?;
            writeln!(out, "{token}")?;
            writeln!(
                note,
                "Good until {} for rankmesh serve --tokens {}",
                utc(SystemTime::now().checked_add(ttl).context("that is too long")?),
                file.display()
            )?;
        }
        Command::Token { dir, ttl, uses, .. } => {
            let issuer = Issuer::open(&dir.resolve()?)?;
            let token = issuer.tokens().create(ttl, uses.0)?;
            writeln!(out, "{token}")?;
            let admits = match uses.0.map(NonZeroU32::get) {
                None => "any number of hosts".to_owned(),
                Some(1) => "one host".to_owned(),
                Some(n) => format!("{n} hosts"),
            };
            let (mesh, until) = (token.mesh(), utc(token.expires()));
            writeln!(
                note,
                "Admits {admits} to mesh {mesh} until {until}: rankmesh up --join IP:PORT --token-file FILE"
            )?;
        }
        Command::Revoke { dir, which, name } => {
            let dir = dir.resolve()?;
            let which = which.or(name).context("give a name or a serial number")?;
            let issuer = Issuer::open(&dir)?;
            let revoked = issuer.revoke(&which)?;
            for certificate in &revoked {
                let (name, role, serial) = (&certificate.name, certificate.role, &certificate.serial);
                writeln!(note, "Revoked the certificate {serial} of {role} {name}.")?;
            }
            if revoked.is_empty() {
                writeln!(note, "It was revoked before.")?;
            }
            how_it_spreads(&dir, note)?;
        }
        Command::Rotate { dir, finish, force } => {
            let dir = dir.resolve()?;
            let issuer = Issuer::open(&dir)?;
            if finish {
                issuer.finish_rotation(force)?;
                writeln!(note, "The CA before is trusted no more.")?;
                how_it_spreads(&dir, note)?;
            } else {
                let ca = issuer.rotate()?.authority().fingerprint();
                writeln!(note, "A new CA issues from now on (fingerprint {ca}); the one before is trusted, too.")?;
                how_it_spreads(&dir, note)?;
                if !Identity::exists(&dir) {
                    writeln!(
                        note,
                        "Then issue the nodes' certificates anew (`identity issue --reissue`) and restart the agents with them."
                    )?;
                }
                writeln!(note, "Tokens made before are worth nothing. When all nodes have renewed (`identity show`):")?;
                writeln!(note, "rankmesh identity rotate --finish --dir {}", dir.display())?;
            }
        }
        Command::Show { dir, format } => show(&dir.resolve()?, format, out)?,
    }
    Ok(())
}

/// Prints how a new trust list reaches the mesh.
fn how_it_spreads(dir: &Path, note: &mut impl Write) -> std::io::Result<()> {
    if Identity::exists(dir) {
        return writeln!(note, "The agent of this host tells the mesh.");
    }
    let list = TrustList::path(dir);
    writeln!(note, "Copy {} into the identity directory of any agent: it tells the others.", list.display())
}

/// The role and validity of the wanted certificate.
struct Wanted {
    name: NodeName,
    role: Role,
    validity: Duration,
    renew_for: Option<Duration>,
    reissue: bool,
}

fn issue(dir: &Path, wanted: &Wanted, target: &Path, note: &mut impl Write) -> anyhow::Result<()> {
    let &Wanted { ref name, role, validity, renew_for, reissue } = wanted;
    if role == Role::Node && renew_for.is_some() {
        return Err(
            UsageError("--renew-for is for operators and readers: agents renew theirs by themselves".into()).into()
        );
    }
    if renew_for.is_some_and(|renew_for| renew_for <= validity) {
        return Err(UsageError(
            "--renew-for is the time for which a shorter --validity is renewed: give a longer one".into(),
        )
        .into());
    }
    let issuer = Issuer::open(dir)?;
    let may = if reissue { Reissue::Allow } else { Reissue::Refuse };
    if !reissue && Identity::exists(target) {
        bail!("{} holds an identity already; choose another --out, or replace it with --reissue", target.display());
    }
    let identity = match renew_for {
        Some(renew_for) => issuer.issue_renewable(name, role, validity, renew_for, may)?,
        None => issuer.issue_as(name, role, validity, may)?,
    };
    identity.save(target)?;
    let renewed_until = renew_for.map(|renew_for| SystemTime::now() + renew_for);
    super::person::note_renewal(target, renewed_until)?;
    let (mesh, until, target) = (identity.mesh(), utc(identity.not_after()), target.display());
    writeln!(note, "Made {role} {name} of mesh {mesh} in {target}, valid until {until}.")?;
    if identity.not_after() == issuer.authority().not_after() {
        writeln!(note, "It ends with the CA, sooner than asked.")?;
    }
    match role {
        Role::Node => writeln!(note, "Next: rankmesh up --name {name} --identity {target}")?,
        Role::Operator | Role::Reader => {
            writeln!(note, "Next: rankmesh query --via HOST --identity {target} SQL")?;
            match renewed_until {
                Some(until) => writeln!(note, "In use it renews by itself until {}.", utc(until))?,
                None => writeln!(note, "Nothing renews it (--renew-for DURATION would).")?,
            }
        }
    }
    Ok(())
}

fn show(dir: &Path, format: ReportFormat, out: &mut impl Write) -> anyhow::Result<()> {
    let issuer = if Issuer::exists(dir) { Some(Issuer::open(dir)?) } else { None };
    // A directory fresh from `init` has a CA and no node yet.
    let identity = if issuer.is_some() && !Identity::exists(dir) { None } else { Some(Identity::load(dir)?) };
    let (mesh, ca) = match (&identity, &issuer) {
        (Some(identity), _) => (identity.mesh().clone(), identity.ca_fingerprint()),
        (None, Some(issuer)) => (issuer.authority().mesh().clone(), issuer.authority().fingerprint()),
        (None, None) => bail!("no identity in {}", dir.display()),
    };
    let issued = issuer.as_ref().map(Issuer::issued).transpose().context("reading what the CA issued")?;
    let expired = |at: SystemTime| at < SystemTime::now();
    match format {
        ReportFormat::Json => {
            let value = json!({
                "mesh": mesh,
                "node": identity.as_ref().map(Identity::node),
                "role": identity.as_ref().map(Identity::role),
                "serial": identity.as_ref().map(Identity::serial),
                "revoked": identity.as_ref().map(Identity::is_revoked),
                "trust_list": identity.as_ref().map(Identity::trust_number),
                "not_after": identity.as_ref().map(|identity| utc(identity.not_after())),
                "expired": identity.as_ref().map(|identity| expired(identity.not_after())),
                "fingerprint": identity.as_ref().map(Identity::fingerprint),
                "ca_fingerprint": ca,
                "ca_not_after": issuer.as_ref().map(|issuer| utc(issuer.authority().not_after())),
                "issued": issued,
            });
            writeln!(out, "{value}")?;
        }
        ReportFormat::Table => {
            writeln!(out, "mesh            {mesh}")?;
            if let Some(identity) = &identity {
                let end = identity.not_after();
                let state = match (identity.is_revoked(), expired(end)) {
                    (true, _) => " (revoked)",
                    (false, true) => " (expired)",
                    (false, false) => "",
                };
                writeln!(out, "{:<15} {}", identity.role().as_str(), identity.node())?;
                writeln!(out, "valid until     {}{state}", utc(end))?;
                writeln!(out, "serial          {}", identity.serial())?;
                writeln!(out, "fingerprint     {}", identity.fingerprint())?;
            }
            writeln!(out, "CA fingerprint  {ca}")?;
            if let (Some(issuer), Some(issued)) = (&issuer, &issued) {
                writeln!(out, "CA              here, valid until {}", utc(issuer.authority().not_after()))?;
                let list = issuer.trust()?;
                for certificate in issued {
                    let end = SystemTime::UNIX_EPOCH + Duration::from_secs(certificate.not_after_unix_s);
                    let revoked = list.as_ref().is_some_and(|list| list.revokes(&certificate.serial));
                    let state = match (revoked, certificate.ca == Some(ca_of(issuer))) {
                        (true, _) => ", revoked",
                        (false, true) => "",
                        (false, false) => ", by the CA before",
                    };
                    let (name, role, serial) = (&certificate.name, certificate.role, &certificate.serial);
                    writeln!(out, "issued          {name} until {} ({role}, serial {serial}{state})", utc(end))?;
                }
            }
        }
    }
    Ok(())
}

fn ca_of(issuer: &Issuer) -> certs::Fingerprint {
    issuer.authority().fingerprint()
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        identity: IdentityArgs,
    }

    /// What a command line prints: data and notes.
    fn typed(line: &[&str]) -> anyhow::Result<(String, String)> {
        let line = Line::try_parse_from(std::iter::once(&"identity").chain(line))?;
        let (mut out, mut note) = (Vec::new(), Vec::new());
        execute(line.identity.command, &mut out, &mut note)?;
        Ok((String::from_utf8(out)?, String::from_utf8(note)?))
    }

    fn fails(line: &[&str]) -> String {
        typed(line).unwrap_err().to_string()
    }

    #[test]
    fn an_offline_mesh_of_two_nodes() {
        let root = tempfile::tempdir().unwrap();
        let path = |name: &str| root.path().join(name).to_str().unwrap().to_owned();
        let (ca, a, b) = (path("ca"), path("a"), path("b"));
        let (out, _) = typed(&["init", "--dir", &ca, "--mesh", "m"]).unwrap();
        assert_eq!(out, "", "nothing but data goes to standard output");
        for (name, dir) in [("a", &a), ("b", &b)] {
            let (out, note) = typed(&["issue", "--dir", &ca, "--name", name, "--out", dir]).unwrap();
            assert!(out.is_empty() && note.contains(dir.as_str()), "{note}");
            // All that is needed, without the CA's key.
            let mut files: Vec<_> = std::fs::read_dir(dir).unwrap().map(|f| f.unwrap().file_name()).collect();
            files.sort();
            assert_eq!(files, ["ca.pem", "node.pem"]);
        }
        let (a, b) = (Identity::load(a.as_ref()).unwrap(), Identity::load(b.as_ref()).unwrap());
        assert_eq!((a.node().as_str(), b.node().as_str()), ("a", "b"));
        assert_eq!(certs::tls::peer_node(b.chain(), &a).unwrap().as_str(), "b");
    }

    #[test]
    fn nothing_is_lost_by_typing_twice() {
        let root = tempfile::tempdir().unwrap();
        let path = |name: &str| root.path().join(name).to_str().unwrap().to_owned();
        let (ca, a, b) = (path("ca"), path("a"), path("b"));
        typed(&["init", "--dir", &ca]).unwrap();
        assert!(fails(&["init", "--dir", &ca]).contains("exists already"));
        let issue = ["issue", "--dir", &ca, "--name", "a", "--out", &a];
        typed(&issue).unwrap();
        let first = Identity::load(a.as_ref()).unwrap().fingerprint();
        assert!(fails(&issue).contains("--reissue"));
        assert!(fails(&["issue", "--dir", &ca, "--name", "a", "--out", &b]).contains("taken"));
        // A refusal uses nothing up: the name that the full directory refused is free.
        assert!(fails(&["issue", "--dir", &ca, "--name", "b", "--out", &a]).contains("--reissue"));
        typed(&["issue", "--dir", &ca, "--name", "b", "--out", &b]).unwrap();
        assert_eq!(Identity::load(a.as_ref()).unwrap().fingerprint(), first);
        typed(&[issue.as_slice(), &["--reissue"]].concat()).unwrap();
        assert_ne!(Identity::load(a.as_ref()).unwrap().fingerprint(), first);
    }

    #[test]
    fn show_tells_who_it_is() {
        let root = tempfile::tempdir().unwrap();
        let path = |name: &str| root.path().join(name).to_str().unwrap().to_owned();
        let (ca, a) = (path("ca"), path("a"));
        assert!(fails(&["show", "--dir", &ca]).contains("no identity"));
        typed(&["init", "--dir", &ca, "--mesh", "m"]).unwrap();
        let of_ca: serde_json::Value =
            serde_json::from_str(&typed(&["show", "--dir", &ca, "--format", "json"]).unwrap().0).unwrap();
        assert_eq!((&of_ca["mesh"], &of_ca["node"]), (&json!("m"), &json!(null)));
        typed(&["issue", "--dir", &ca, "--name", "a", "--out", &a, "--validity", "2d"]).unwrap();
        let of_a: serde_json::Value =
            serde_json::from_str(&typed(&["show", "--dir", &a, "--format", "json"]).unwrap().0).unwrap();
        assert_eq!((&of_a["node"], &of_a["ca_fingerprint"]), (&json!("a"), &of_ca["ca_fingerprint"]));
        assert_eq!((&of_a["expired"], &of_a["issued"]), (&json!(false), &json!(null)));
        let (text, _) = typed(&["show", "--dir", &ca]).unwrap();
        let until = of_a["not_after"].as_str().unwrap();
        assert!(text.contains(&format!("issued          a until {until}")), "{text}");
        let (text, _) = typed(&["show", "--dir", &a]).unwrap();
        assert!(text.contains("node            a\n") && text.contains(until), "{text}");
    }

    #[test]
    fn token_prints_a_token_and_nothing_else() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().to_str().unwrap();
        assert!(fails(&["token", "--dir", dir]).contains("founded the mesh"));
        typed(&["init", "--dir", dir, "--mesh", "m"]).unwrap();
        let (out, note) = typed(&["token", "--dir", dir, "--ttl", "2h", "--uses", "3"]).unwrap();
        let token: certs::JoinToken = out.strip_suffix('\n').unwrap().parse().unwrap();
        assert_eq!(token.mesh().as_str(), "m");
        let left = token.expires().duration_since(SystemTime::now()).unwrap();
        assert!(left > Duration::from_secs(7100) && left <= Duration::from_secs(7200), "{left:?}");
        assert!(note.contains("3 hosts") && !note.contains(out.trim()), "{note}");
        for wrong in ["0", "-1", "many"] {
            assert!(typed(&["token", "--dir", dir, &format!("--uses={wrong}")]).is_err(), "{wrong}");
        }
        assert_eq!("any".parse(), Ok(Uses(None)));
    }

    #[test]
    fn what_is_revoked_and_by_which_ca_is_shown() {
        let root = tempfile::tempdir().unwrap();
        let path = |name: &str| root.path().join(name).to_str().unwrap().to_owned();
        let (ca, a, b) = (path("ca"), path("a"), path("b"));
        typed(&["init", "--dir", &ca, "--mesh", "m"]).unwrap();
        typed(&["issue", "--dir", &ca, "--name", "a", "--out", &a]).unwrap();
        typed(&["issue", "--dir", &ca, "--name", "b", "--role", "reader", "--out", &b]).unwrap();
        assert!(typed(&["issue", "--dir", &ca, "--name", "c", "--role", "king", "--out", &b]).is_err());
        assert!(fails(&["revoke", "--dir", &ca, "c"]).contains("identity show"));
        let (_, note) = typed(&["revoke", "--dir", &ca, "a"]).unwrap();
        assert!(note.contains("of node a") && note.contains("trust.json"), "{note}");
        let serial = Identity::load(b.as_ref()).unwrap().serial().to_owned();
        let (_, note) = typed(&["revoke", "--dir", &ca, "--name", &serial]).unwrap();
        assert!(note.contains("of reader b"), "{note}");
        // The list reaches a directory as a file, too.
        std::fs::copy(format!("{ca}/trust.json"), format!("{a}/trust.json")).unwrap();
        assert!(typed(&["show", "--dir", &a]).unwrap().0.contains("(revoked)"));
        assert!(fails(&["rotate", "--dir", &ca, "--finish"]).contains("identity rotate"));
        typed(&["issue", "--dir", &ca, "--name", "d", "--out", &path("d")]).unwrap();
        typed(&["rotate", "--dir", &ca]).unwrap();
        let (text, _) = typed(&["show", "--dir", &ca]).unwrap();
        assert!(text.contains(", revoked)") && text.contains(", by the CA before)"), "{text}");
        assert!(fails(&["rotate", "--dir", &ca, "--finish"]).contains(": d;"));
        typed(&["rotate", "--dir", &ca, "--finish", "--force"]).unwrap();
    }
}
