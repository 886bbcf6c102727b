//! Places for who asks: so many in all, and so many of one, so that nobody keeps the others out. What an answer may cost is
//! bounded elsewhere (`query::admission`); who may ask at all is `access`'s.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use query::lock::lock;

/// Places that are taken, by who sits there.
#[derive(Debug)]
pub(super) struct Places {
    all: usize,
    of_one: usize,
    taken: Arc<Mutex<HashMap<String, usize>>>,
}

/// One of them; dropped, it is free again.
#[derive(Debug)]
pub(super) struct Place {
    who: String,
    taken: Arc<Mutex<HashMap<String, usize>>>,
}

impl Places {
    pub(super) fn new(all: usize, of_one: usize) -> Self {
        Self { all, of_one, taken: Arc::default() }
    }

    /// A place for `who`.
    ///
    /// # Errors
    /// There is none, in words for `who`.
    pub(super) fn take(&self, who: &str) -> Result<Place, String> {
        let mut taken = lock(&self.taken);
        if taken.values().sum::<usize>() >= self.all {
            return Err(format!("{} questions are asked here at once; try again", self.all));
        }
        let own = taken.entry(who.to_owned()).or_default();
        if *own >= self.of_one {
            return Err(format!("{} questions of {who} are asked here at once; try again", self.of_one));
        }
        *own += 1;
        Ok(Place { who: who.to_owned(), taken: Arc::clone(&self.taken) })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = lock(&self.taken);
        if let Some(own) = taken.get_mut(&self.who) {
            *own -= 1;
            if *own == 0 {
                taken.remove(&self.who);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_alone_does_not_take_all_places_and_nobody_is_remembered() {
        let places = Places::new(5, 3);
        let mut kept: Vec<Place> = (0..3).map(|_| places.take("greedy").unwrap()).collect();
        assert!(places.take("greedy").unwrap_err().contains("of greedy"));
        kept.extend((0..2).map(|i| places.take(&format!("n{i}")).unwrap()));
        assert_eq!(places.take("late").unwrap_err(), "5 questions are asked here at once; try again");
        kept.clear();
        assert!(lock(&places.taken).is_empty());
        places.take("greedy").unwrap();
    }
}
