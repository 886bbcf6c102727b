//! Settings of a session: `SET`, `RESET` and `SHOW`.

use std::sync::atomic::Ordering;

use pgwire::error::PgWireResult;

use super::super::{catalog, errors};
use super::Session;

/// A question's deadline until `SET statement_timeout`.
pub(super) const DEFAULT_MS: u64 = 10_000;

/// The value that `SHOW` gives.
pub(super) fn value(session: &Session, name: &str) -> PgWireResult<String> {
    let name = name.to_ascii_lowercase();
    let on = |is_on: bool| if is_on { "on" } else { "off" }.to_owned();
    match name.trim_start_matches("rankmesh.") {
        "require_all" => return Ok(on(session.require_all.load(Ordering::Relaxed))),
        "statement_timeout" => return Ok(format!("{}ms", session.timeout_ms.load(Ordering::Relaxed))),
        _ => {}
    }
    let set = session.settings.lock().get(&name).cloned();
    set.or_else(|| catalog::setting(&name).map(str::to_owned)).ok_or_else(|| {
        errors::setting(format!("unrecognized configuration parameter \"{}\"", record::printable(&name)))
    })
}

/// Sets a value. Settings that have no effect here are kept for `SHOW`, up to a number.
pub(super) fn set(session: &Session, name: &str, value: &str) -> PgWireResult<()> {
    let value = value.trim();
    match name.trim_start_matches("rankmesh.") {
        "require_all" => {
            let is_on = match value.to_ascii_lowercase().as_str() {
                "on" | "true" | "1" | "yes" => true,
                "off" | "false" | "0" | "no" | "default" => false,
                _ => return Err(errors::setting("require_all is on or off".to_owned())),
            };
            session.require_all.store(is_on, Ordering::Relaxed);
        }
        "statement_timeout" => {
            let (number, unit) = value.split_at(value.find(|c: char| !c.is_ascii_digit()).unwrap_or(value.len()));
            let unit = match unit.trim() {
                "" | "ms" => 1,
                "s" => 1_000,
                "min" => 60_000,
                _ => 0,
            };
            let ms = number.parse::<u64>().ok().and_then(|number| number.checked_mul(unit)).filter(|_| unit > 0);
            let ms =
                ms.ok_or_else(|| errors::setting("statement_timeout is a number of ms, or 10s, or 1min".to_owned()))?;
            // PostgreSQL's 0 means no limit; here every question has a deadline.
            session.timeout_ms.store(if ms == 0 { DEFAULT_MS } else { ms }, Ordering::Relaxed);
        }
        name => {
            let mut settings = session.settings.lock();
            if settings.len() < 100 && name.len() < 100 && value.len() < 1_000 {
                settings.insert(name.to_owned(), value.to_owned());
            }
        }
    }
    Ok(())
}

/// Puts a setting, or `all` that have an effect here, back to its default.
pub(super) fn reset(session: &Session, name: &str) {
    if name == "all" || name.ends_with("require_all") {
        session.require_all.store(false, Ordering::Relaxed);
    }
    if name == "all" || name == "statement_timeout" {
        session.timeout_ms.store(DEFAULT_MS, Ordering::Relaxed);
    }
}
