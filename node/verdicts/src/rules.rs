//! The thresholds of a verdict, in one place. docs/verdicts.md explains each.

/// What it takes to name a rank. `Rules::default()` is what `rankmesh stragglers` uses.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rules {
    /// Robust z that flags a rank in a window (communicators of four ranks and more).
    pub z: f64,
    /// Least share of the step time that a rank must cost (0.05: 5 %).
    pub effect: f64,
    /// Windows in which a rank must be flagged.
    pub persistence: usize,
    /// Least share of an episode's windows in which it must be flagged (3 of 5).
    pub density: f64,
    /// Least consistency of the excess over an episode's collectives (a t test on the scale of normal deviates); keeps
    /// rare spikes from naming anybody.
    pub consistency: f64,
    /// The same, in communicators of four ranks and more, for a rank that is later than the median of the others in
    /// at least `mostly` of the collectives: that is not spikes.
    pub steady_consistency: f64,
    /// See `steady_consistency`.
    pub mostly: f64,
    /// Communicators of two and three ranks: how many times the others must wait what the suspect waits.
    pub ratio: f64,
    /// The same for own time: it must be at least so many times that of every other rank of its class.
    pub own_ratio: f64,
    /// Stage imbalance: the slowest stage's own time must be at least so many times that of the others.
    pub stage_ratio: f64,
    /// Rotating lateness: least share of wall time that goes into waiting for whoever is last.
    pub rotating: f64,
    /// And how alike a rank's excess of own time must be from one collective to the next (autocorrelation) to say that
    /// uneven work makes it, and not noise.
    pub carries_over: f64,
    /// Longest that a rank may wait in one call before it is looked for whom it waits for.
    pub hang_ns: i64,
    /// Share of its lateness that a rank's own time must explain; below it the lateness is inherited.
    pub own_share: f64,
    /// Longest window.
    pub window_ns: i64,
    /// Shortest window, taken when the asked span holds fewer than five of the longest.
    pub short_window_ns: i64,
    /// Fewest collectives in a time window; where they come rarer, windows count collectives instead.
    pub window_collectives: usize,
    /// Share of the heard ranks that must be present in a collective for it to be used.
    pub present: f64,
}

impl Rules {
    /// The usual rules with windows of this length only, nanoseconds: for digests, which hold one window each.
    #[must_use]
    pub fn with_windows(window_ns: i64) -> Self {
        Self { window_ns, short_window_ns: window_ns, ..Self::default() }
    }
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            z: 3.5,
            effect: 0.05,
            persistence: 3,
            density: 0.6,
            consistency: 5.0,
            steady_consistency: 4.0,
            mostly: 0.75,
            ratio: 3.0,
            own_ratio: 1.25,
            stage_ratio: 1.1,
            rotating: 0.1,
            carries_over: 0.3,
            hang_ns: 3_000_000_000,
            own_share: 0.5,
            window_ns: 1_000_000_000,
            short_window_ns: 500_000_000,
            window_collectives: 3,
            present: 0.9,
        }
    }
}
