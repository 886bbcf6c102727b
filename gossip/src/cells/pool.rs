//! One copy of what several nodes know.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};

use super::card::Roll;
use super::report::Report;

/// Rolls and reports that several nodes of one process know are there once: for simulations of many
/// nodes. A process with one node does not gain by it.
#[derive(Debug, Default)]
pub struct Pool {
    rolls: Mutex<HashMap<u128, Weak<Roll>>>,
    reports: Mutex<HashMap<u128, Weak<Report>>>,
}

impl Pool {
    pub(crate) fn roll(&self, roll: Roll) -> Arc<Roll> {
        shared(&self.rolls, roll.id, roll)
    }

    pub(crate) fn report(&self, id: u128, report: Report) -> Arc<Report> {
        shared(&self.reports, id, report)
    }
}

fn shared<T>(pool: &Mutex<HashMap<u128, Weak<T>>>, id: u128, value: T) -> Arc<T> {
    let Ok(mut pool) = pool.lock() else { return Arc::new(value) };
    if let Some(there) = pool.get(&id).and_then(Weak::upgrade) {
        return there;
    }
    if pool.len() >= 64 && pool.len().is_power_of_two() {
        pool.retain(|_, value| value.strong_count() > 0);
    }
    let value = Arc::new(value);
    pool.insert(id, Arc::downgrade(&value));
    value
}
