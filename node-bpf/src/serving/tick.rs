//! How long a request had lain unread: the kernel notes its coming in ticks, whose length is
//! measured here.

use super::wire::RawRequest;

/// The length of the kernel's tick, measured between requests: 1, 3.33, 4 or 10 ms.
#[derive(Debug, Default)]
pub(super) struct Tick {
    first: Option<(u32, u64)>,
    ns: Option<u64>,
}

impl Tick {
    /// Ticks between the two requests by which it is measured, at least.
    const LONG_ENOUGH_NS: u64 = 2_000_000_000;

    /// How long a request had lain unread, at least. The bytes came at some time in the tick that
    /// is noted, so one tick more may be none.
    pub(super) fn queued_ns(&mut self, raw: &RawRequest) -> Option<u64> {
        let ticks = raw.ticks?;
        let first = *self.first.get_or_insert((raw.jiffies, raw.begin_ns));
        if self.ns.is_none() {
            let (jiffies, ns) = (raw.jiffies.wrapping_sub(first.0), raw.begin_ns.saturating_sub(first.1));
            if ns >= Self::LONG_ENOUGH_NS && jiffies > 0 {
                let measured = ns / u64::from(jiffies);
                self.ns = [1_000_000, 3_333_333, 4_000_000, 10_000_000]
                    .into_iter()
                    .min_by_key(|tick| measured.abs_diff(*tick));
            }
        }
        let more = u64::from(ticks.saturating_sub(1));
        if more == 0 { Some(0) } else { self.ns.map(|tick| more * tick) }
    }
}

#[cfg(test)]
mod tests {
    use super::super::wire;
    use super::*;

    #[test]
    fn the_tick_is_measured_and_a_wait_is_never_overstated() {
        let mut tick = Tick::default();
        let mut raw = wire::parse(&wire::tests::record(b"", 8, 2)).unwrap();
        let mut queued = |ticks, jiffies: u32, ns| {
            (raw.ticks, raw.jiffies, raw.begin_ns) = (Some(ticks), jiffies, ns);
            tick.queued_ns(&raw)
        };
        assert_eq!((queued(0, u32::MAX - 100, 0), queued(1, u32::MAX - 90, 40_000_000)), (Some(0), Some(0)));
        assert_eq!(queued(9, u32::MAX - 80, 80_000_000), None, "the tick is not known yet");
        assert_eq!(queued(9, 650, 3_004_000_000), Some(32_000_000), "4 ms, over the counter's end");
    }
}
