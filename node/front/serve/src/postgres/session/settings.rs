//! Settings of a session: `SET`, `RESET`, `SHOW` and `DISCARD`, and what of them a transaction
//! takes back at its end (<https://www.postgresql.org/docs/current/sql-set.html>).

use std::collections::{BTreeMap, BTreeSet, HashMap};

use pgwire::error::PgWireResult;

use super::super::{catalog, errors};

/// A question's deadline until `SET statement_timeout`.
const DEFAULT_MS: u64 = 10_000;

/// The settings of a session.
#[derive(Debug, Clone)]
pub(super) struct Settings {
    /// A partial answer is an error.
    pub(super) require_all: bool,
    /// A question's deadline.
    pub(super) timeout_ms: u64,
    /// Settings that have no effect here, kept for `SHOW`.
    others: HashMap<String, String>,
    /// Those before the transaction that the session is in, and names that `SET LOCAL` changed.
    before: Option<(Box<Settings>, BTreeSet<String>)>,
    /// Those at each savepoint of the transaction, the last at the end.
    savepoints: Vec<(String, Settings)>,
}

/// Savepoints of a transaction at most.
const MOST_SAVEPOINTS: usize = 64;

impl Default for Settings {
    fn default() -> Self {
        Self {
            require_all: false,
            timeout_ms: DEFAULT_MS,
            others: HashMap::new(),
            before: None,
            savepoints: Vec::new(),
        }
    }
}

impl Settings {
    /// The value that `SHOW` gives.
    ///
    /// # Errors
    /// There is no such setting.
    pub(super) fn value(&self, name: &str) -> PgWireResult<String> {
        let name = plain(name);
        match name.as_str() {
            "require_all" => return Ok(if self.require_all { "on" } else { "off" }.to_owned()),
            "statement_timeout" => return Ok(format!("{}ms", self.timeout_ms)),
            _ => {}
        }
        let set = self.others.get(&name).cloned();
        set.or_else(|| catalog::setting(&name).map(str::to_owned)).ok_or_else(|| {
            errors::setting(format!("unrecognized configuration parameter \"{}\"", record::printable(&name)))
        })
    }

    /// What `SHOW ALL` gives: name and value of each.
    pub(super) fn all(&self) -> BTreeMap<String, String> {
        let known = catalog::SETTINGS.iter().map(|(name, _)| *name).chain(["require_all", "statement_timeout"]);
        let names: BTreeSet<String> = known.map(str::to_owned).chain(self.others.keys().cloned()).collect();
        names.into_iter().filter_map(|name| self.value(&name).ok().map(|value| (name, value))).collect()
    }

    /// Sets a value, until the end of the transaction if `local`. Settings that have no effect here
    /// are kept for `SHOW`, up to a number. A deadline beyond `longest_ms` becomes that one; the
    /// text says so.
    ///
    /// # Errors
    /// The value is none of this setting.
    pub(super) fn set(
        &mut self,
        name: &str,
        value: &str,
        local: bool,
        longest_ms: u64,
    ) -> PgWireResult<Option<String>> {
        let name = plain(name);
        let Some(value) = self.parsed(&name, value.trim())? else { return Ok(None) };
        if local {
            match &mut self.before {
                Some((_, locals)) => drop(locals.insert(name.clone())),
                None => return Ok(Some("SET LOCAL can only be used in transaction blocks".to_owned())),
            }
        }
        match value {
            Parsed::RequireAll(is_on) => self.require_all = is_on,
            Parsed::TimeoutMs(ms) => {
                self.timeout_ms = ms.min(longest_ms);
                if ms > longest_ms {
                    return Ok(Some(format!(
                        "statement_timeout is {longest_ms}ms, the longest that this server gives"
                    )));
                }
            }
            Parsed::Other(value) => drop(self.others.insert(name, value)),
        }
        Ok(None)
    }

    fn parsed(&self, name: &str, value: &str) -> PgWireResult<Option<Parsed>> {
        Ok(Some(match name {
            "require_all" => Parsed::RequireAll(match value.to_ascii_lowercase().as_str() {
                "on" | "true" | "1" | "yes" => true,
                "off" | "false" | "0" | "no" | "default" => false,
                _ => return Err(errors::setting("require_all is on or off".to_owned())),
            }),
            "statement_timeout" if value.eq_ignore_ascii_case("default") => Parsed::TimeoutMs(DEFAULT_MS),
            "statement_timeout" => {
                let (number, unit) = value.split_at(value.find(|c: char| !c.is_ascii_digit()).unwrap_or(value.len()));
                let unit = match unit.trim() {
                    "" | "ms" => 1,
                    "s" => 1_000,
                    "min" => 60_000,
                    "h" => 3_600_000,
                    _ => 0,
                };
                let ms = number.parse::<u64>().ok().and_then(|number| number.checked_mul(unit)).filter(|_| unit > 0);
                let ms =
                    ms.ok_or_else(|| errors::setting("statement_timeout is a number of ms, or 10s, or 1min".into()))?;
                // PostgreSQL's 0 means no limit; here every question has a deadline.
                Parsed::TimeoutMs(if ms == 0 { DEFAULT_MS } else { ms })
            }
            _ => {
                let fits = self.others.contains_key(name) || self.others.len() < 100;
                if !fits || name.len() >= 100 || value.len() >= 1_000 {
                    return Ok(None);
                }
                Parsed::Other(value.to_owned())
            }
        }))
    }

    /// Puts a setting, or `all`, back to its default.
    pub(super) fn reset(&mut self, name: &str) {
        let before = self.before.take();
        match plain(name).as_str() {
            "all" => *self = Self::default(),
            "require_all" => self.require_all = false,
            "statement_timeout" => self.timeout_ms = DEFAULT_MS,
            other => drop(self.others.remove(other)),
        }
        self.before = before;
    }

    /// A transaction begins.
    pub(super) fn begin(&mut self) {
        if self.before.is_none() {
            self.before = Some((Box::new(self.clone()), BTreeSet::new()));
        }
    }

    /// Keeps the settings as they are under a name.
    ///
    /// # Errors
    /// There are too many.
    pub(super) fn savepoint(&mut self, name: &str) -> PgWireResult<()> {
        if self.savepoints.len() >= MOST_SAVEPOINTS {
            return Err(errors::unsupported(format!("a transaction has {MOST_SAVEPOINTS} savepoints at most")));
        }
        let now = Self { savepoints: Vec::new(), ..self.clone() };
        self.savepoints.push((name.to_owned(), now));
        Ok(())
    }

    /// Forgets a savepoint and those after it.
    ///
    /// # Errors
    /// There is none of this name.
    pub(super) fn release(&mut self, name: &str) -> PgWireResult<()> {
        let at = self.at_savepoint(name)?;
        self.savepoints.truncate(at);
        Ok(())
    }

    /// Takes back what was set since a savepoint, which stays.
    ///
    /// # Errors
    /// There is none of this name.
    pub(super) fn rollback_to(&mut self, name: &str) -> PgWireResult<()> {
        let at = self.at_savepoint(name)?;
        self.savepoints.truncate(at + 1);
        let savepoints = std::mem::take(&mut self.savepoints);
        *self = savepoints[at].1.clone();
        self.savepoints = savepoints;
        Ok(())
    }

    fn at_savepoint(&self, name: &str) -> PgWireResult<usize> {
        let found = self.savepoints.iter().rposition(|(known, _)| known == name);
        found.ok_or_else(|| errors::savepoint(format!("savepoint \"{}\" does not exist", record::printable(name))))
    }

    /// A transaction ends: what was set in it stays where it is committed, but for what was set
    /// locally.
    pub(super) fn end(&mut self, committed: bool) {
        self.savepoints.clear();
        let Some((before, locals)) = self.before.take() else { return };
        if !committed {
            *self = *before;
            return;
        }
        for name in locals {
            match name.as_str() {
                "require_all" => self.require_all = before.require_all,
                "statement_timeout" => self.timeout_ms = before.timeout_ms,
                other => match before.others.get(other) {
                    Some(value) => drop(self.others.insert(other.to_owned(), value.clone())),
                    None => drop(self.others.remove(other)),
                },
            }
        }
    }
}

/// A value that fits its setting.
enum Parsed {
    RequireAll(bool),
    TimeoutMs(u64),
    Other(String),
}

/// A setting's name, without the prefix of ours.
fn plain(name: &str) -> String {
    name.to_ascii_lowercase().trim_start_matches("rankmesh.").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONGEST: u64 = 120_000;

    fn set(settings: &mut Settings, name: &str, value: &str, local: bool) -> Option<String> {
        settings.set(name, value, local, LONGEST).unwrap()
    }

    #[test]
    fn a_transaction_takes_back_what_was_set_locally_or_what_it_did_not_commit() {
        let mut settings = Settings::default();
        assert!(set(&mut settings, "require_all", "on", true).unwrap().contains("transaction"));
        assert!(!settings.require_all);
        settings.begin();
        set(&mut settings, "rankmesh.require_all", "on", true);
        set(&mut settings, "statement_timeout", "5s", false);
        set(&mut settings, "work_mem", "1MB", true);
        assert_eq!((settings.require_all, settings.timeout_ms), (true, 5_000));
        settings.end(true);
        assert_eq!((settings.require_all, settings.timeout_ms), (false, 5_000));
        assert!(settings.value("work_mem").is_err());
        settings.begin();
        set(&mut settings, "statement_timeout", "7s", false);
        settings.savepoint("a").unwrap();
        set(&mut settings, "statement_timeout", "8s", false);
        settings.savepoint("b").unwrap();
        settings.rollback_to("a").unwrap();
        assert_eq!(settings.timeout_ms, 7_000);
        assert!(settings.rollback_to("b").is_err());
        settings.release("a").unwrap();
        assert!(settings.rollback_to("a").is_err());
        settings.end(false);
        assert_eq!(settings.value("statement_timeout").unwrap(), "5000ms");
        settings.reset("all");
        assert_eq!(settings.timeout_ms, DEFAULT_MS);
    }

    #[test]
    fn a_deadline_beyond_the_longest_is_the_longest() {
        let mut settings = Settings::default();
        let said = set(&mut settings, "statement_timeout", "5min", false).unwrap();
        assert!(said.contains("120000ms") && settings.timeout_ms == LONGEST, "{said}");
        assert!(settings.set("statement_timeout", "soon", false, LONGEST).is_err());
        assert!(settings.set("require_all", "maybe", false, LONGEST).is_err());
    }
}
