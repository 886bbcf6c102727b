//! When the beginnings of page faults are probed: only while ranks have many major ones. That costs
//! every fault of the host some 5 % (`docs/measurements.md`), and where major faults are few each
//! that matters is a stretch off the CPU.

use libbpf_rs::Link;

/// Major faults of followed processes within a second, on the whole host, that are many.
const MANY: u64 = 50;
/// Seconds with fewer after which it ends.
const CALM_SECONDS: u32 = 30;

/// The probes at the beginnings, while they are attached.
#[derive(Debug, Default)]
pub(crate) struct FaultTimes {
    links: Vec<Link>,
    /// Major faults as of the last second.
    hits: u64,
    decision: Decision,
}

/// Whether to look, by the last seconds.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Decision {
    looks: bool,
    calm: u32,
}

impl Decision {
    fn after(self, faults: u64) -> Self {
        match (self.looks, faults >= MANY) {
            (_, true) => Decision { looks: true, calm: 0 },
            (true, false) if self.calm + 1 < CALM_SECONDS => Decision { calm: self.calm + 1, ..self },
            (_, false) => Decision::default(),
        }
    }
}

impl FaultTimes {
    /// Called each second; `hits` counts major faults from the start. An error of `attach` is
    /// returned; it is not tried again.
    pub(crate) fn after_second(
        &mut self,
        hits: u64,
        attach: impl FnOnce() -> libbpf_rs::Result<Vec<Link>>,
    ) -> libbpf_rs::Result<()> {
        let faults = hits.saturating_sub(std::mem::replace(&mut self.hits, hits));
        let after = self.decision.after(faults);
        let before = std::mem::replace(&mut self.decision, after);
        match (before.looks, self.decision.looks) {
            (false, true) => self.links = attach()?,
            (true, false) => self.links.clear(),
            _ => {}
        }
        Ok(())
    }

    /// Removes the probes.
    pub(crate) fn end(&mut self) {
        self.links.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_looked_while_there_are_many_and_for_some_time_after() {
        let mut decision = Decision::default().after(MANY - 1);
        assert!(!decision.looks);
        decision = decision.after(MANY);
        for _ in 1..CALM_SECONDS {
            decision = decision.after(0);
            assert!(decision.looks);
        }
        assert!(decision.after(MANY).looks && decision.after(MANY).calm == 0);
        assert_eq!(decision.after(MANY - 1), Decision::default());
    }

    #[test]
    fn attaching_is_tried_once() {
        let mut times = FaultTimes::default();
        let refuse = || Err(libbpf_rs::Error::from_raw_os_error(libc::EPERM));
        times.after_second(MANY - 1, || unreachable!("they are few")).unwrap();
        times.after_second(2 * MANY, refuse).unwrap_err();
        times.after_second(9 * MANY, || unreachable!("it was refused")).unwrap();
    }
}
