//! Saved investigations: SQL files with parameters, those that ship with the program
//! (docs/investigations) and the site's own. Only parameters that a file declares may be given:
//! values become literals by their declared types, and nothing else of the text changes.
//!
//! A file is comments, then one SELECT. The first line states what it answers; `-- :NAME TYPE [=
//! DEFAULT] [-- ABOUT]` declares a parameter.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use anyhow::Context;
use ask::output::{printable, printable_lines};
use ask::times::parse_when_or_now;
use ask::values::parse_duration;
use ask::{Exit, Target, UsageError};
use clap::Args;
use query_planner::{Value, with_values};
use serde::Serialize;

use super::args::{AskSavedArgs, SITE_INVESTIGATIONS};

/// Largest file of a site.
const MOST_BYTES: u64 = 1 << 20;
/// Most files of a site.
const MOST_FILES: usize = 1_000;

/// Name and text of those that ship.
const SHIPPED: [(&str, &str); 29] = {
    macro_rules! shipped {
        ($($name:literal),* $(,)?) => {
            [$(($name, include_str!(concat!("../../../docs/investigations/", $name, ".sql")))),*]
        };
    }
    shipped![
        "calls-by-function",
        "calls-by-hour",
        "calls-by-process",
        "calls-by-site",
        "communicators",
        "compute-by-rank",
        "delays-by-tenant",
        "durations-by-rank",
        "findings",
        "host-load",
        "incomplete-collectives",
        "jobs",
        "lateness-by-rank",
        "longest-waits",
        "lost-records",
        "off-cpu-at-least",
        "offcpu-by-rank",
        "preempted-by",
        "rank-over-time",
        "ranks",
        "repeat-culprits",
        "retransmits",
        "step-times",
        "sums-and-rows",
        "sums-by-function",
        "tenants",
        "throttled-gpus",
        "waits-by-rank",
        "waits-with-io",
    ]
};

/// Flags of `rankmesh saved`.
#[derive(Debug, Args)]
pub struct SavedArgs {
    /// Print this one's parameters and SQL [default: list all]
    #[arg(value_name = "NAME")]
    name: Option<String>,
    /// The site's own, NAME.sql each
    #[arg(long, value_name = "DIR", default_value = SITE_INVESTIGATIONS)]
    investigations: PathBuf,
}

impl AskSavedArgs {
    /// The SQL of the investigation that was named, with its parameters' values.
    ///
    /// # Errors
    /// There is none of that name, a value is missing or wrong ([`UsageError`]), or a site's file
    /// cannot be read.
    pub fn sql(&self, name: &str, target: &Target) -> anyhow::Result<String> {
        Ok(named(&self.investigations, name)?.filled(target, &pairs(&self.param)?)?)
    }
}

/// Values by name, of `NAME=VALUE`.
///
/// # Errors
/// One has no name, or a name comes twice.
pub(crate) fn pairs(params: &[String]) -> Result<BTreeMap<String, String>, UsageError> {
    let mut given = BTreeMap::new();
    for param in params {
        let pair = param.split_once('=');
        let (name, value) = pair.ok_or_else(|| UsageError(format!("'{param}' is not NAME=VALUE")))?;
        if given.insert(name.to_owned(), value.to_owned()).is_some() {
            return Err(UsageError(format!("{name} is given twice")));
        }
    }
    Ok(given)
}

/// Type of a parameter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
#[cfg_attr(feature = "openapi", schema(as = ParameterType))]
pub enum Kind {
    /// An integer of 64 bits.
    Integer,
    /// A floating-point number.
    Real,
    /// A text.
    Text,
    /// A point in time: `10m` (ago), `now`, `2026-11-22T03:00`, or Unix nanoseconds; in the SQL
    /// Unix nanoseconds.
    Time,
    /// A length of time, as `10s`; in the SQL nanoseconds.
    Duration,
}

/// A parameter of an investigation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "openapi", schema(as = InvestigationParameter))]
#[expect(missing_docs, reason = "a comment would be a description in OpenAPI; these names need none")]
pub struct Parameter {
    pub name: String,
    #[serde(rename = "type")]
    pub kind: Kind,
    /// None: a value has to be given.
    pub default: Option<String>,
    pub about: String,
}

/// An investigation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[expect(missing_docs, reason = "a comment would be a description in OpenAPI; these names need none")]
pub struct Investigation {
    pub name: String,
    /// What it answers.
    pub title: String,
    /// More about it; may be empty.
    pub about: String,
    pub parameters: Vec<Parameter>,
    /// With `:name` in place of values.
    pub sql: String,
    /// It is the site's own.
    pub of_site: bool,
}

/// A file of the site that is no valid investigation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "openapi", schema(as = UnreadInvestigation))]
#[expect(missing_docs, reason = "a comment would be a description in OpenAPI; these names need none")]
pub struct Unread {
    pub name: String,
    pub reason: String,
}

impl Investigation {
    fn parsed(name: &str, text: &str, of_site: bool) -> Result<Self, String> {
        let comments: Vec<&str> = text
            .lines()
            .map_while(|line| line.trim().strip_prefix("--").map(str::trim).or(line.trim().is_empty().then_some("")))
            .collect();
        let (declared, words): (Vec<&str>, Vec<&str>) = comments.iter().partition(|line| line.starts_with(':'));
        let mut words = words.into_iter().filter(|line| !line.is_empty());
        let title = words.next().ok_or("its first line has to say what it answers, after --")?.to_owned();
        let parameters: Vec<Parameter> = declared.into_iter().map(Parameter::parsed).collect::<Result<_, _>>()?;
        let used = query_planner::parameters(text).map_err(|error| error.to_string())?;
        for name in &used {
            if !parameters.iter().any(|of| of.name == *name) {
                return Err(format!(":{name} is not declared: write -- :{name} TYPE at its beginning"));
            }
        }
        for (at, of) in parameters.iter().enumerate() {
            if !used.contains(&of.name) {
                return Err(format!(":{} is declared and not used", of.name));
            }
            if parameters[..at].iter().any(|before| before.name == of.name) {
                return Err(format!(":{} is declared twice", of.name));
            }
        }
        let sql = text.lines().skip(comments.len()).collect::<Vec<_>>().join("\n").trim().to_owned();
        if sql.is_empty() {
            return Err("it has no SQL".to_owned());
        }
        Ok(Self { name: name.to_owned(), title, about: words.collect::<Vec<_>>().join(" "), parameters, sql, of_site })
    }

    /// Its SQL with values: those given, else the defaults; times are of the target's clock.
    ///
    /// # Errors
    /// A value is missing, is not of its parameter's type, or belongs to no parameter.
    pub fn filled(&self, target: &Target, given: &BTreeMap<String, String>) -> Result<String, UsageError> {
        let of = |name: &str| self.parameters.iter().find(|of| of.name == name);
        if let Some(unknown) = given.keys().find(|name| of(name).is_none()) {
            let known: Vec<&str> = self.parameters.iter().map(|of| of.name.as_str()).collect();
            let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
            return Err(UsageError(format!("{} has no parameter {unknown}; there is {known}", self.name)));
        }
        let mut values = BTreeMap::new();
        for of in &self.parameters {
            let text = given
                .get(&of.name)
                .or(of.default.as_ref())
                .ok_or_else(|| UsageError(format!("{} needs {}: {}", self.name, of.name, of.about)))?;
            let value = of.kind.value(text, target).map_err(|why| UsageError(format!("{}: {why}", of.name)))?;
            values.insert(of.name.clone(), value);
        }
        with_values(&self.sql, &values).map_err(|error| UsageError(error.to_string()))
    }
}

impl Parameter {
    /// `:NAME TYPE [= DEFAULT] [-- ABOUT]`.
    fn parsed(line: &str) -> Result<Self, String> {
        let (declared, about) = line.split_once(" -- ").unwrap_or((line, ""));
        let (declared, default) = match declared.split_once('=') {
            Some((declared, default)) => (declared, Some(default.trim().to_owned())),
            None => (declared, None),
        };
        let mut words = declared.split_whitespace();
        let wrong = || {
            format!(
                "'{line}' is no parameter; write -- :NAME integer|real|text|time|duration [= DEFAULT] [-- what it is]"
            )
        };
        let name = words.next().and_then(|name| name.strip_prefix(':')).ok_or_else(wrong)?;
        let kind = match words.next() {
            Some("integer") => Kind::Integer,
            Some("real") => Kind::Real,
            Some("text") => Kind::Text,
            Some("time") => Kind::Time,
            Some("duration") => Kind::Duration,
            _ => return Err(wrong()),
        };
        let is_name = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
        if !is_name || words.next().is_some() {
            return Err(wrong());
        }
        // Texts may be in quotation marks, so that an empty one can be seen.
        let default =
            default.map(|text| match (kind, text.strip_prefix('\'').and_then(|text| text.strip_suffix('\''))) {
                (Kind::Text, Some(inner)) => inner.replace("''", "'"),
                _ => text,
            });
        Ok(Self { name: name.to_owned(), kind, default, about: about.trim().to_owned() })
    }
}

impl Kind {
    fn value(self, text: &str, target: &Target) -> Result<Value, String> {
        let trimmed = text.trim();
        Ok(match self {
            Self::Integer => Value::Integer(trimmed.parse().map_err(|_| format!("'{text}' is no integer"))?),
            Self::Real => match trimmed.parse::<f64>() {
                Ok(real) if real.is_finite() => Value::Real(real),
                _ => return Err(format!("'{text}' is no number")),
            },
            Self::Text => Value::Text(text.as_bytes().to_vec()),
            Self::Time => Value::Integer(target.at_ns(parse_when_or_now(trimmed)?)),
            Self::Duration => {
                let ns = parse_duration(trimmed)?.as_nanos();
                Value::Integer(i64::try_from(ns).map_err(|_| format!("'{text}' is too long"))?)
            }
        })
    }
}

/// All investigations by name, and files of the site that are not valid.
///
/// # Errors
/// The site's directory cannot be read.
pub fn all(site: &Path) -> anyhow::Result<(Vec<Investigation>, Vec<Unread>)> {
    let mut found = BTreeMap::new();
    for (name, text) in SHIPPED {
        let parsed = Investigation::parsed(name, text, false).map_err(|why| anyhow::anyhow!("{name}: {why}"))?;
        found.insert(name.to_owned(), parsed);
    }
    let mut unread = Vec::new();
    for name in names_of_site(site)? {
        match of_site(site, &name) {
            Ok(Some(own)) => {
                found.insert(name, own);
            }
            Ok(None) => {}
            Err(reason) => unread.push(Unread { name, reason: format!("{reason:#}") }),
        }
    }
    Ok((found.into_values().collect(), unread))
}

/// One investigation.
///
/// # Errors
/// There is none of that name ([`UsageError`]), or the site's file is not valid.
pub fn named(site: &Path, name: &str) -> anyhow::Result<Investigation> {
    if is_name(name)
        && let Some(own) = of_site(site, name).map_err(|why| UsageError(format!("{why:#}")))?
    {
        return Ok(own);
    }
    let shipped = SHIPPED.iter().find(|(known, _)| *known == name);
    let (_, text) =
        shipped.ok_or_else(|| UsageError(format!("there is no investigation '{name}'; rankmesh saved lists them")))?;
    Investigation::parsed(name, text, false).map_err(|why| anyhow::anyhow!("{name}: {why}"))
}

/// The name must not lead to a file of another directory.
fn is_name(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
}

fn names_of_site(site: &Path) -> anyhow::Result<Vec<String>> {
    let place = || format!("the site's investigations in {}", site.display());
    let entries = match std::fs::read_dir(site) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error).with_context(place),
    };
    let mut names = Vec::new();
    for entry in entries {
        let path = entry.with_context(place)?.path();
        let name = path.file_stem().and_then(|name| name.to_str()).filter(|name| is_name(name));
        if let (Some(name), true) = (name, path.extension().is_some_and(|ending| ending == "sql")) {
            names.push(name.to_owned());
        }
        anyhow::ensure!(names.len() <= MOST_FILES, "{}: more than {MOST_FILES} files", place());
    }
    names.sort_unstable();
    Ok(names)
}

fn of_site(site: &Path, name: &str) -> anyhow::Result<Option<Investigation>> {
    let path = site.join(format!("{name}.sql"));
    let place = || path.display().to_string();
    let file = match std::fs::File::open(&path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error).with_context(place),
    };
    let mut text = String::new();
    file.take(MOST_BYTES + 1).read_to_string(&mut text).with_context(place)?;
    anyhow::ensure!(text.len() as u64 <= MOST_BYTES, "{}: more than {MOST_BYTES} bytes", place());
    Investigation::parsed(name, &text, true).map(Some).map_err(|why| anyhow::anyhow!("{}: {why}", place()))
}

/// Lists saved investigations, or prints one.
///
/// # Errors
/// Nobody answers, the flags are wrong, or the output cannot be written.
pub fn run(args: &SavedArgs) -> anyhow::Result<Exit> {
    let mut out = std::io::stdout().lock();
    if let Some(name) = &args.name {
        let found = named(&args.investigations, name)?;
        writeln!(out, "-- {}", printable(&found.title))?;
        if !found.about.is_empty() {
            writeln!(out, "-- {}", printable(&found.about))?;
        }
        for of in &found.parameters {
            let default =
                of.default.as_ref().map_or_else(|| " (has to be given)".to_owned(), |text| format!(" = {text}"));
            let kind = format!("{:?}", of.kind).to_lowercase();
            writeln!(out, "{}", printable(&format!("-- :{} {kind}{default}  {}", of.name, of.about)))?;
        }
        writeln!(out, "{}", printable_lines(&found.sql).trim_end())?;
        return Ok(Exit::Complete);
    }
    let (found, unread) = all(&args.investigations)?;
    write!(out, "{}", listed(&found))?;
    for Unread { name, reason } in &unread {
        eprintln!("{}", printable(&format!("{name}: not an investigation: {reason}")));
    }
    Ok(if unread.is_empty() { Exit::Complete } else { Exit::Partial })
}

/// Names with their titles, in lines of 80 columns.
fn listed(all: &[Investigation]) -> String {
    let own = |of: &Investigation| if of.of_site { " (the site's own)" } else { "" };
    let titles: Vec<String> = all.iter().map(|of| printable(&of.title) + own(of)).collect();
    let names = all.iter().map(|of| of.name.as_str());
    crate::schema::list(&names.zip(titles.iter().map(String::as_str)).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use ask::SocketBackend;
    use query_planner::parameters;

    use super::*;

    /// Fills in parameters without asking the target.
    fn target() -> Target {
        Target::of(Arc::new(SocketBackend::at(None)))
    }

    fn given(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn every_file_that_ships_is_listed_and_every_one_that_is_listed_ships() {
        let (every, _) = all(Path::new("/nonexistent")).expect("built in");
        assert!(listed(&every).lines().all(|line| line.chars().count() <= 80), "{}", listed(&every));
        let (found, unread) = all(Path::new("/nowhere")).unwrap();
        assert_eq!((found.len(), unread.len()), (SHIPPED.len(), 0));
        let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/investigations");
        let files = std::fs::read_dir(docs).unwrap().count();
        assert_eq!(files, SHIPPED.len(), "each file of docs/investigations is in SHIPPED");
        for of in &found {
            assert!(of.title.ends_with('?'), "{}: {}", of.name, of.title);
            let needed = of.parameters.iter().filter(|of| of.default.is_none());
            let given: BTreeMap<String, String> = needed.map(|of| (of.name.clone(), "1".to_owned())).collect();
            let sql = of.filled(&target(), &given).unwrap();
            assert!(parameters(&sql).unwrap().is_empty(), "{sql}");
        }
    }

    #[test]
    fn values_are_of_their_types_and_nothing_but_values() {
        let text = "-- Is it?\n-- Somewhat.\n-- :who text = 'a''b' -- which\n-- :many integer\n-- :long duration = 2s\nSELECT :who, :many, :long";
        let of = Investigation::parsed("x", text, true).unwrap();
        assert_eq!((of.title.as_str(), of.about.as_str()), ("Is it?", "Somewhat."));
        let target = target();
        let sql = of.filled(&target, &given(&[("many", " 5 ")])).unwrap();
        assert_eq!(sql, "SELECT  'a''b' ,  5 ,  2000000000 ");
        let sql = of.filled(&target, &given(&[("many", "5"), ("who", "'; DROP TABLE t; --")])).unwrap();
        assert_eq!(sql, "SELECT  '''; DROP TABLE t; --' ,  5 ,  2000000000 ");
        for (wrong, place) in [
            (given(&[]), "x needs many"),
            (given(&[("many", "five")]), "'five' is no integer"),
            (given(&[("many", "5; SELECT 1")]), "is no integer"),
            (given(&[("many", "1"), ("whom", "b")]), "has no parameter whom; there is who, many, long"),
            (given(&[("many", "1"), ("long", "x")]), "not a duration"),
        ] {
            let error = of.filled(&target, &wrong).unwrap_err();
            assert!(error.0.contains(place), "{error}");
        }
    }

    #[test]
    fn a_sites_file_comes_first_and_an_invalid_one_is_reported_as_such() {
        let site = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| std::fs::write(site.path().join(name), text).unwrap();
        write("jobs.sql", "-- Our jobs?\nSELECT 1");
        write("typo.sql", "-- Typo?\n-- :rank integre\nSELECT :rank");
        write("undeclared.sql", "-- Rank?\nSELECT :rank");
        write("silent.sql", "SELECT 1");
        write("notes.txt", "nothing");
        let (found, unread) = all(site.path()).unwrap();
        let jobs = found.iter().find(|of| of.name == "jobs").unwrap();
        assert!(jobs.of_site && jobs.title == "Our jobs?");
        assert_eq!(named(site.path(), "jobs").unwrap(), *jobs);
        let names: Vec<&str> = unread.iter().map(|of| of.name.as_str()).collect();
        assert_eq!(names, ["silent", "typo", "undeclared"]);
        assert!(unread[2].reason.contains(":rank is not declared"), "{}", unread[2].reason);
        for name in ["../jobs", "", "no-such", "typo"] {
            assert!(named(site.path(), name).unwrap_err().is::<UsageError>(), "{name}");
        }
    }
}
