//! Limits on requests at a time: in all, and of one name, so that nobody keeps the others out. What
//! an answer may cost is bounded by permits; who may ask at all is the agent's decision.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

/// Bounds what goes on at once.
#[derive(Debug)]
pub struct ConcurrencyLimit {
    all: usize,
    of_one: usize,
    taken: Arc<Mutex<HashMap<String, usize>>>,
}

/// One of those that go on; dropped, there is room for another.
#[derive(Debug)]
pub struct Slot {
    name: String,
    taken: Arc<Mutex<HashMap<String, usize>>>,
}

impl ConcurrencyLimit {
    /// At most `all` at once, `of_one` of them of one name.
    #[must_use]
    pub fn new(all: usize, of_one: usize) -> Self {
        Self { all, of_one, taken: Arc::default() }
    }

    /// A slot for `name`.
    ///
    /// # Errors
    /// There is none, in words for `name`.
    pub fn take(&self, name: &str) -> Result<Slot, String> {
        let mut taken = self.taken.lock();
        if taken.values().sum::<usize>() >= self.all {
            return Err(format!("{} questions are asked here at once; try again", self.all));
        }
        let own = taken.entry(name.to_owned()).or_default();
        if *own >= self.of_one {
            return Err(format!("{} questions of {name} are asked here at once; try again", self.of_one));
        }
        *own += 1;
        Ok(Slot { name: name.to_owned(), taken: Arc::clone(&self.taken) })
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut taken = self.taken.lock();
        if let Some(own) = taken.get_mut(&self.name) {
            *own -= 1;
            if *own == 0 {
                taken.remove(&self.name);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_alone_does_not_take_all_slots_and_nobody_is_remembered() {
        let limit = ConcurrencyLimit::new(5, 3);
        let mut kept: Vec<Slot> = (0..3).map(|_| limit.take("greedy").unwrap()).collect();
        assert!(limit.take("greedy").unwrap_err().contains("of greedy"));
        kept.extend((0..2).map(|i| limit.take(&format!("n{i}")).unwrap()));
        assert_eq!(limit.take("late").unwrap_err(), "5 questions are asked here at once; try again");
        kept.clear();
        assert!(limit.taken.lock().is_empty());
        limit.take("greedy").unwrap();
    }
}
