//! Scripts of operations: the operations on the hosts of a lab and their times, from one seed.

use std::fmt;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

use super::host::Start;
use super::questions::name_of;
use super::relay::{HostId, Link};

/// One operation on a lab.
#[derive(Debug, Clone, PartialEq)]
pub enum Operation {
    /// The agent is killed; silently if its host lost power with it.
    Kill {
        /// Which.
        host: HostId,
        /// Nothing at its address answers, not even the host.
        silent: bool,
    },
    /// It starts again, as a new generation.
    Start(HostId, Start),
    /// It is suspended and answers nothing.
    Stop(HostId),
    /// It continues.
    Continue(HostId),
    /// These hosts and all others do not reach each other.
    Partition(Vec<HostId>),
    /// All links of a host get these properties.
    Links(HostId, Link),
    /// Every link is intact again.
    Heal,
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kill { host, silent } => {
                write!(f, "kill {}{}", name_of(*host), if *silent { " silently" } else { "" })
            }
            Self::Start(host, how) => write!(f, "start {} {how:?}", name_of(*host)),
            Self::Stop(host) => write!(f, "stop {}", name_of(*host)),
            Self::Continue(host) => write!(f, "continue {}", name_of(*host)),
            Self::Partition(hosts) => {
                write!(f, "part {} from the rest", hosts.iter().map(|h| name_of(*h)).collect::<Vec<_>>().join(" "))
            }
            Self::Links(host, link) => {
                write!(f, "links of {}: {:.0} % lost, {:?} late", name_of(*host), link.loss * 100.0, link.delay)
            }
            Self::Heal => f.write_str("heal every link"),
        }
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Is {
    Up,
    Killed,
    Stopped,
}

/// Draws one operation after the other; each makes sense after those before.
pub struct Script {
    rng: StdRng,
    hosts: Vec<Is>,
    links_bad: bool,
    /// Time between two operations: up to twice this.
    pace: Duration,
    /// Whether hosts may return with other rows.
    new_rows: bool,
}

impl Script {
    /// A script for `hosts` that all run.
    #[must_use]
    pub fn new(seed: u64, hosts: usize, pace: Duration, new_rows: bool) -> Self {
        Self { rng: StdRng::seed_from_u64(seed), hosts: vec![Is::Up; hosts], links_bad: false, pace, new_rows }
    }

    /// The next operation and how long to wait before it.
    pub fn draw(&mut self) -> (Duration, Operation) {
        let pause = self.pace.mul_f64(self.rng.random_range(0.2..2.0));
        (pause, self.operation())
    }

    fn operation(&mut self) -> Operation {
        let disturbed = self.hosts.iter().filter(|is| **is != Is::Up).count();
        // At most a third of the hosts is away at a time; links are repaired before others are made
        // bad.
        let room = disturbed < self.hosts.len() / 3;
        match self.rng.random_range(0..10) {
            0..=2 if room => {
                let host = self.one(Is::Up);
                self.hosts[host] = Is::Killed;
                Operation::Kill { host, silent: self.rng.random_bool(0.4) }
            }
            3 | 4 if room => {
                let host = self.one(Is::Up);
                self.hosts[host] = Is::Stopped;
                Operation::Stop(host)
            }
            5..=7 if self.links_bad => {
                self.links_bad = false;
                Operation::Heal
            }
            5 => {
                self.links_bad = true;
                let size = 1 + self.rng.random_range(0..self.hosts.len() / 2);
                let mut all: Vec<HostId> = (0..self.hosts.len()).collect();
                let mut side: Vec<HostId> =
                    (0..size).map(|_| all.swap_remove(self.rng.random_range(0..all.len()))).collect();
                side.sort_unstable();
                Operation::Partition(side)
            }
            6 | 7 => {
                self.links_bad = true;
                let host = self.rng.random_range(0..self.hosts.len());
                let lossy = self.rng.random_bool(0.7);
                let loss = if lossy { self.rng.random_range(0.05..=0.20) } else { 0.0 };
                let delay = if lossy && self.rng.random_bool(0.5) { 0 } else { 40 };
                Operation::Links(host, Link { cut: false, loss, delay: Duration::from_millis(delay) })
            }
            _ if disturbed > 0 => self.back(),
            _ => {
                self.links_bad = false;
                Operation::Heal
            }
        }
    }

    fn back(&mut self) -> Operation {
        let away: Vec<HostId> = (0..self.hosts.len()).filter(|host| self.hosts[*host] != Is::Up).collect();
        let host = away[self.rng.random_range(0..away.len())];
        let was = std::mem::replace(&mut self.hosts[host], Is::Up);
        if was == Is::Stopped {
            return Operation::Continue(host);
        }
        let how = Start {
            new_address: self.rng.random_bool(0.3),
            new_rows: self.rng.random_bool(0.4) && self.new_rows,
            clock_ahead: self.rng.random_bool(0.15),
        };
        Operation::Start(host, how)
    }

    fn one(&mut self, wanted: Is) -> HostId {
        let such: Vec<HostId> = (0..self.hosts.len()).filter(|host| self.hosts[*host] == wanted).collect();
        such[self.rng.random_range(0..such.len())]
    }

    /// The operations that bring everything back.
    pub fn ending(&mut self) -> Vec<Operation> {
        let mut operations = vec![Operation::Heal];
        while self.hosts.iter().any(|is| *is != Is::Up) {
            operations.push(self.back());
        }
        operations
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scripts_repeat_and_make_sense() {
        let draw = |seed| {
            let mut script = Script::new(seed, 9, Duration::from_millis(100), true);
            let mut drawn: Vec<Operation> = (0..300).map(|_| script.draw().1).collect();
            drawn.extend(script.ending());
            drawn
        };
        assert_eq!(draw(7), draw(7));
        assert_ne!(draw(7), draw(8));
        for seed in 0..20 {
            let mut away = std::collections::BTreeSet::new();
            for operation in draw(seed) {
                match operation {
                    Operation::Kill { host, .. } | Operation::Stop(host) => assert!(away.insert(host)),
                    Operation::Start(host, _) | Operation::Continue(host) => assert!(away.remove(&host)),
                    _ => {}
                }
                assert!(away.len() <= 3);
            }
            assert!(away.is_empty());
        }
    }
}
