//! The state of each host and of each pair of hosts over time, so that an answer can be judged
//! against the full time in which it was made.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::relay::{HostId, Link};

/// The state of a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HostState {
    /// Its agent runs.
    Up,
    /// It is being killed or started, stopped or continued: it may answer or not.
    Between,
    /// It answers nothing.
    Down,
}

#[derive(Debug, Clone, Copy, PartialEq)]
struct Since<T> {
    at: Instant,
    is: T,
}

/// Changes, in their order.
#[derive(Debug, Default)]
pub struct Timeline {
    hosts: HashMap<HostId, Vec<Since<HostState>>>,
    links: HashMap<(HostId, HostId), Vec<Since<Link>>>,
    /// The data that a host serves: index of its version.
    versions: HashMap<HostId, Vec<Since<usize>>>,
}

impl Timeline {
    /// Records that a host changes now.
    pub fn host(&mut self, host: HostId, is: HostState) {
        self.hosts.entry(host).or_default().push(Since { at: Instant::now(), is });
    }

    /// Records that the links between two hosts change now, both ways.
    pub fn link(&mut self, a: HostId, b: HostId, is: Link) {
        self.links.entry(pair(a, b)).or_default().push(Since { at: Instant::now(), is });
    }

    /// Records that the host may serve this version of its rows from now on.
    pub fn version(&mut self, host: HostId, is: usize) {
        self.versions.entry(host).or_default().push(Since { at: Instant::now(), is });
    }

    /// Whether `b` could answer `a` all the time from `margin` before `from` to `until`: both up,
    /// and no datagram between them lost.
    #[must_use]
    pub fn joined(&self, a: HostId, b: HostId, from: Instant, until: Instant, margin: Duration) -> bool {
        let Some(from) = from.checked_sub(margin) else { return false };
        let up = |host| during(self.hosts.get(&host), from, until).all(|is| is == Some(HostState::Up));
        up(a) && up(b) && during(self.links.get(&pair(a, b)), from, until).all(|is| is.is_none_or(|l| l.is_reliable()))
    }

    /// Whether `b` could not answer `a` at any time between `from` and `until`.
    #[must_use]
    pub fn parted(&self, a: HostId, b: HostId, from: Instant, until: Instant) -> bool {
        during(self.hosts.get(&b), from, until).all(|is| is == Some(HostState::Down))
            || (a != b && during(self.links.get(&pair(a, b)), from, until).all(|is| is.is_some_and(|link| link.cut)))
    }

    /// Whether the host ran without interruption.
    #[must_use]
    pub fn up(&self, host: HostId, from: Instant, until: Instant) -> bool {
        during(self.hosts.get(&host), from, until).all(|is| is == Some(HostState::Up))
    }

    /// Versions of its rows that the host may have served.
    #[must_use]
    pub fn versions(&self, host: HostId, from: Instant, until: Instant) -> Vec<usize> {
        let mut versions: Vec<usize> = during(self.versions.get(&host), from, until).flatten().collect();
        versions.sort_unstable();
        versions.dedup();
        versions
    }
}

fn pair(a: HostId, b: HostId) -> (HostId, HostId) {
    (a.min(b), a.max(b))
}

/// The state at `from` (`None`: nothing yet) and all later ones until `until`.
fn during<T: Copy>(changes: Option<&Vec<Since<T>>>, from: Instant, until: Instant) -> impl Iterator<Item = Option<T>> {
    let changes = changes.map_or(&[][..], Vec::as_slice);
    let before = changes.partition_point(|change| change.at <= from);
    let first = before.checked_sub(1).map(|at| changes[at].is);
    let later: Vec<Option<T>> =
        changes[before..].iter().take_while(|change| change.at <= until).map(|change| Some(change.is)).collect();
    std::iter::once(first).chain(later)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_true_all_the_time_and_what_never_was() {
        let mut timeline = Timeline::default();
        let begin = Instant::now();
        timeline.host(0, HostState::Up);
        timeline.host(1, HostState::Up);
        timeline.version(1, 0);
        let up = Instant::now();
        assert!(!timeline.joined(0, 1, begin, up, Duration::ZERO), "it was not up at the beginning");
        assert!(timeline.joined(0, 1, up, Instant::now(), Duration::ZERO));
        timeline.link(1, 0, Link { loss: 0.1, ..Link::default() });
        let lossy = Instant::now();
        assert!(!timeline.joined(0, 1, up, lossy, Duration::ZERO));
        assert!(!timeline.parted(0, 1, lossy, Instant::now()));
        timeline.link(0, 1, Link { cut: true, ..Link::default() });
        let cut = Instant::now();
        assert!(timeline.parted(0, 1, cut, Instant::now()));
        assert!(!timeline.parted(0, 1, lossy, Instant::now()), "datagrams passed before");
        timeline.host(1, HostState::Between);
        timeline.version(1, 1);
        timeline.host(1, HostState::Down);
        let down = Instant::now();
        assert!(timeline.parted(1, 1, down, Instant::now()));
        assert!(!timeline.up(1, cut, Instant::now()));
        assert_eq!(timeline.versions(1, up, Instant::now()), [0, 1]);
        assert_eq!(timeline.versions(1, down, Instant::now()), [1]);
    }
}
