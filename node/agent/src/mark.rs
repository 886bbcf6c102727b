//! Notes of people and programs (`rankmesh mark`): rows of the store's `annotations` table.
//!
//! The size of a note is bounded, and so is the number of notes of each user: a training loop may
//! note its steps, but nobody fills the store with them.

use std::collections::HashMap;
use std::time::Instant;

use model::{Failure, FailureKind, Mark};
use parking_lot::Mutex;
use query::access::{Access, Caller};
use query::ask::AskError;
use record::unix_now_ns;
use serde::Serialize;
use store::{Annotation, Source};

use super::Shared;

/// Bytes of a note's text, of an attribute's name and of its value; attributes of a note.
const MOST_TEXT: usize = 1024;
const MOST_NAME: usize = 64;
const MOST_VALUE: usize = 512;
const MOST_ATTRIBUTES: usize = 32;
/// Notes of a user that are accepted at once, and each second from then on.
const BURST: f64 = 200.0;
const PER_SECOND: f64 = 20.0;
/// Users remembered; those without recent notes are dropped first.
const USERS: usize = 4_096;

/// The answer to a mark.
#[derive(Debug, Serialize)]
pub(super) struct Marked {
    /// When it was noted, on this host's clock.
    ts_ns: i64,
    /// This host.
    node: String,
}

/// How many notes each user has left.
#[derive(Debug, Default)]
pub(super) struct Marks {
    left: Mutex<HashMap<Option<u32>, (Instant, f64)>>,
}

impl Marks {
    fn take(&self, user: Option<u32>, now: Instant) -> bool {
        let refilled = |(since, left): &(Instant, f64)| {
            (left + now.saturating_duration_since(*since).as_secs_f64() * PER_SECOND).min(BURST)
        };
        let mut all = self.left.lock();
        if all.len() >= USERS {
            all.retain(|_, had| refilled(had) < BURST);
        }
        let left = all.get(&user).map_or(BURST, refilled);
        let may = left >= 1.0;
        all.insert(user, (now, if may { left - 1.0 } else { left }));
        may
    }
}

/// Stores a note of `uid` (none: of a person who came over the mesh).
pub(super) fn mark(shared: &Shared, mark: &Mark, caller: &Caller, uid: Option<u32>) -> Result<Marked, AskError> {
    if caller.access == Access::Reader {
        return Err(AskError::wrong(Failure::new(
            FailureKind::Forbidden,
            "not allowed: readers may ask, but not note (the agent's owner and root may, and users with `rankmesh up \
             --users-see-own`)",
        )));
    }
    check(mark).map_err(AskError::wrong)?;
    let Source::Store(store) = shared.source.as_ref() else {
        return Err(AskError::failed("this agent serves a file and keeps no notes"));
    };
    if !shared.marks.take(uid, Instant::now()) {
        return Err(AskError::failed(format!(
            "too many notes: {PER_SECOND} a second are kept of each user, {BURST} at once"
        )));
    }
    let attributes: serde_json::Map<String, serde_json::Value> =
        mark.attributes.iter().map(|(name, value)| (name.clone(), value.clone().into())).collect();
    let ts_ns = unix_now_ns();
    let attributes = serde_json::Value::Object(attributes).to_string();
    store.ingest().annotation(Annotation { ts_ns, text: mark.text.clone(), attributes, uid });
    Ok(Marked { ts_ns, node: shared.identity.node().to_string() })
}

fn check(mark: &Mark) -> Result<(), String> {
    if mark.text.trim().is_empty() || mark.text.len() > MOST_TEXT {
        return Err(format!("a note has a text of 1 to {MOST_TEXT} bytes, not {}", mark.text.len()));
    }
    if mark.attributes.len() > MOST_ATTRIBUTES {
        return Err(format!("{} attributes: at most {MOST_ATTRIBUTES} are kept", mark.attributes.len()));
    }
    for (at, (name, value)) in mark.attributes.iter().enumerate() {
        if name.is_empty() || name.len() > MOST_NAME || value.len() > MOST_VALUE {
            return Err(format!(
                "attribute {}: a name has 1 to {MOST_NAME} bytes and a value at most {MOST_VALUE}",
                at + 1
            ));
        }
        if mark.attributes[..at].iter().any(|(other, _)| other == name) {
            return Err(format!("attribute {} has the name of another", at + 1));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn note(text: &str, attributes: &[(&str, &str)]) -> Mark {
        let attributes = attributes.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        Mark { text: text.to_owned(), attributes }
    }

    #[test]
    fn notes_are_bounded() {
        check(&note("epoch", &[("n", "3"), ("phase", "")])).unwrap();
        let long = "x".repeat(MOST_TEXT + 1);
        let many: Vec<(String, &str)> = (0..=MOST_ATTRIBUTES).map(|i| (i.to_string(), "")).collect();
        let many: Vec<(&str, &str)> = many.iter().map(|(name, value)| (name.as_str(), *value)).collect();
        for wrong in [
            note(" ", &[]),
            note(&long, &[]),
            note("x", &many),
            note("x", &[("", "1")]),
            note("x", &[(&long, "1")]),
            note("x", &[("a", &long)]),
            note("x", &[("a", "1"), ("a", "2")]),
        ] {
            assert!(check(&wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn a_user_who_notes_too_much_waits_and_others_do_not() {
        let marks = Marks::default();
        let start = Instant::now();
        for _ in 0..BURST as usize {
            assert!(marks.take(Some(1), start));
        }
        assert!(!marks.take(Some(1), start) && marks.take(Some(2), start));
        assert!(marks.take(Some(1), start + Duration::from_secs(1)));
        let later = start + Duration::from_secs(3_600);
        (0..2 * USERS as u32).for_each(|user| assert!(marks.take(Some(user), later)));
        assert!(marks.left.lock().len() <= 2 * USERS + 2);
    }
}
