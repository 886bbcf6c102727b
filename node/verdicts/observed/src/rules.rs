//! The thresholds of a verdict, in one place. docs/verdicts.md explains them.
//!
//! Those that differ between questions are fields, all others constants of [`Rules`]. Where no
//! source is named a value was set by hand: what holds it are the simulated jobs of `make bench
//! NAME=verdicts`.

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
    /// Least consistency of the excess over an episode's collectives (a t test on the scale of
    /// normal deviates); keeps rare spikes from naming anybody.
    pub consistency: f64,
    /// The same, in communicators of four ranks and more, for a rank that is later than the median
    /// of the others in at least `mostly` of the collectives: that is not spikes.
    pub steady_consistency: f64,
    /// See `steady_consistency`.
    pub mostly: f64,
    /// Communicators of two and three ranks: how many times the others must wait what the suspect
    /// waits.
    pub ratio: f64,
    /// The same for compute time: it must be at least so many times that of every other rank of its
    /// class.
    pub compute_ratio: f64,
    /// Stage imbalance: the slowest stage's compute time must be at least so many times that of the
    /// others.
    pub stage_ratio: f64,
    /// Rotating lateness: least share of wall time that goes into waiting for whoever is last.
    pub rotating: f64,
    /// And how alike a rank's excess of compute time must be from one collective to the next
    /// (autocorrelation) to say that uneven work makes it, and not noise.
    pub carries_over: f64,
    /// Longest that a rank may wait in one call before it is looked for whom it waits for.
    pub hang_ns: i64,
    /// Share of its lateness that a rank's compute time must explain; below it the lateness is
    /// inherited.
    pub compute_share: f64,
    /// Longest window.
    pub window_ns: i64,
    /// Shortest window, taken when the asked span holds fewer than five of the longest.
    pub short_window_ns: i64,
    /// Shorter episodes name nobody: a host's other work holds a rank up for half a second as easily as
    /// its program does.
    pub least_episode_ns: i64,
    /// Fewest collectives in a time window; where they come rarer, windows count collectives
    /// instead.
    pub window_collectives: usize,
    /// Share of the ranks in the data that must be present in a collective for it to be used.
    pub present: f64,
}

impl Rules {
    /// The usual rules with windows of this length only, nanoseconds: for digests, which hold one
    /// window each.
    #[must_use]
    pub fn with_windows(window_ns: i64) -> Self {
        Self { window_ns, short_window_ns: window_ns, ..Self::default() }
    }

    /// These rules for a span of this length, nanoseconds: who asks for less than two seconds, or can have
    /// no more (calls recorded in slices), is told what held for half of it.
    #[must_use]
    pub fn within(self, span_ns: i64) -> Self {
        Self { least_episode_ns: self.least_episode_ns.min(span_ns / 2), ..self }
    }
}

/// What is the same for every question.
impl Rules {
    /// Smallest part of the median that counts as a spread of the others (docs/verdicts.md,
    /// Scores).
    pub const SCALE_FLOOR: f64 = 0.02;

    /// Ranks that make a population: from here on z decides, below it ratios. Two others have no
    /// spread of their own.
    pub const POPULATION: usize = 4;

    /// Least mean excess that counts where waits are only assumed, nanoseconds.
    pub const ASSUMED_WAITS_FLOOR_NS: f64 = 200_000.0;

    /// Share of telling collectives that may break the rule "nobody leaves before everybody has
    /// entered".
    pub const WAITS_BROKEN: f64 = 0.2;

    /// Two op-count signatures are one class when at most this share of the calls differ.
    pub const CLASS_DISTANCE: f64 = 0.05;

    /// Calls of each name that may differ besides: the span cuts ranks at different calls.
    pub const CLASS_EDGE_CALLS: f64 = 2.0;

    /// Fewest windows worth speaking of persistence over: 3 of 5.
    pub const FEWEST_WINDOWS: usize = 5;

    /// Windows aimed at where they count collectives.
    pub const COUNTED_WINDOWS: usize = 8;

    /// A culprit lies above the median of the others in at least this share of its collectives.
    pub const ABOVE_MEDIAN: f64 = 0.5;

    /// So many places in communicators are looked at without asking for more certainty; with 8, 3
    /// of 200 slow ranks of short jobs were missed (docs/verdicts.md, How well it does).
    pub const COMPARED_FREELY: f64 = 64.0;

    /// A rank stays late where its excess is at least this part of what it mostly is in the episode:
    /// a window half of which it was not late in has less.
    pub const STAYS_LATE: f64 = 0.75;

    /// Stretches of compute time to compare, at least.
    pub const COMPUTE_SEEN: f64 = 3.0;

    /// So many times the share by lateness must compute time show to speak for a rank that is late
    /// as well.
    pub const COMPUTE_OVER_LATENESS: f64 = 1.5;

    /// Of its lateness, what a wait for others must explain.
    pub const WAIT_EXPLAINS: f64 = 0.5;

    /// Other late ranks are listed down to this part of the first one's share,
    pub const ALSO_SHARE: f64 = 0.2;

    /// and down to this where calls only enqueue: waits are derived from means over a step, and
    /// what is left of a wait looks like time of one's own.
    pub const ALSO_SHARE_ENQUEUED: f64 = 0.5;

    /// Autocorrelation of the changes of ranks' lateness that hosts which run ahead may show: -1/2
    /// is that of independent values, -1/4 of those that add up over two.
    pub const RUNS_AHEAD: f64 = -0.25;

    /// It must be so many of its standard errors (1 / sqrt n) below that.
    pub const HOSTS_WAIT_ERRORS: f64 = 2.0;

    /// The others go on later by so much of what a rank is late, at least, if they wait for it: all
    /// of it where they do, nothing where they wait for their devices.
    pub const BINDS: f64 = 0.5;

    /// Their slope must be so many of its standard errors, so that it is not none by chance.
    pub const BINDS_ERRORS: f64 = 3.0;

    /// Where hosts run ahead lateness adds up until all wait: it is less then than this part of what
    /// it had come to, half of it after two steps.
    pub const WAITED: f64 = 0.75;

    /// Waits that are enough to decide.
    pub const BINDS_SEEN: usize = 4;

    /// Where the others wait for a rank that runs ahead, it waits itself by at most this part of what
    /// it is late,
    pub const HARDLY_WAITS: f64 = 0.1;

    /// parts are told apart down to this,
    pub const WAITS_ALIKE: f64 = 0.01;

    /// and their product over all waits is at most this: two that are alike to within three in a
    /// hundred, three to within a tenth.
    pub const WAITS_CHANCE: f64 = 0.001;

    /// Changes of a rank's lateness that are enough to decide: the autocorrelation of n values
    /// comes out lower by about 1 / n.
    pub const CHANGES_SEEN: usize = 8;

    /// A rank that is numbered less than the others comes after them to the collective that is the
    /// same one in truth in about half of all, by the noise of both (0.44 at the least in 50 simulated
    /// jobs of a hundred collectives),
    pub const AFTER_LATER: f64 = 0.35;

    /// and is apart from them there by at most this part of what it is in the one of the same number:
    /// 0.4 and more where a slow host waits after every fourth collective or less often.
    pub const COINCIDES: f64 = 0.3;

    /// Autocorrelation that counts, in its standard errors of 1 / sqrt n (Bartlett 1946).
    pub const AUTOCORRELATION_ERRORS: f64 = 4.0;

    /// Ranks that it takes to see lateness go round,
    pub const ROTATION_RANKS: usize = 3;

    /// and collectives.
    pub const ROTATION_COLLECTIVES: usize = 8;

    /// The evidence tier from which on times are the device's.
    pub const OF_DEVICE: u8 = 3;

    /// Times that a rank had no CPU while all others waited for it alone, for these to be no chance.
    pub const STROKES: f64 = 10.0;

    /// Held off its CPU for so much more of the time than the others (median), outside calls, a rank is
    /// a doubt where nobody is named. Ranks that share CPUs are held in turns, and by as much only
    /// where one has another program beside it.
    pub const HELD_MUCH: f64 = 0.2;

    /// From which share of its time on, spent by every rank waiting for its device after collectives
    /// that only enqueue, nobody's lateness at the host clears anybody: most of it. (Four ranks on
    /// an H100, one with three more matrix products on it in each step: all entered within 1 ms.)
    pub const ON_DEVICES: f64 = 0.5;

    /// The whole job is slower where collectives come so many times as far apart,
    pub const JOB_SLOWER: f64 = 1.25;

    /// in so many stretches of the span, and before in as many.
    pub const JOB_SLOWER_STRETCHES: usize = 4;

    /// Most collectives in one of these stretches: some steps of a job.
    pub const JOB_SLOWER_COLLECTIVES: usize = 64;

    /// So many times as long as collectives usually lie apart is a silence.
    pub const SILENCE_PERIODS: f64 = 3.0;

    /// The longest cycle of collectives that is looked for.
    pub const CYCLE_LONGEST: usize = 512;

    /// A cycle is seen this often at least.
    pub const CYCLE_REPEATS: usize = 3;

    /// Part of the calls that may break the cycle: lost ones, and such as come now and then.
    pub const CYCLE_BROKEN: f64 = 0.1;

    /// A longer cycle must break so much less often than a shorter one to be believed.
    pub const CYCLE_BETTER: f64 = 0.02;

    /// Ends that are apart by less than this share of the distance between collectives coincide.
    pub const ENDS_CLOSE: f64 = 0.02;

    /// Share of a rank's calls that must coincide with one of the reference's to be numbered by it,
    pub const CALLS_COINCIDE: f64 = 0.9;

    /// and share of the runs of a digest, of those that lie within the calls at hand.
    pub const RUNS_COINCIDE: f64 = 0.5;

    /// Where the clocks' bounds are more than this share of that distance, ends decide nothing.
    pub const CLOCKS_SHARP: f64 = 0.25;

    /// Share of telling calls that may break the rule that a host goes on only when the ranks have
    /// met.
    pub const HOSTS_WAIT_BROKEN: f64 = 0.05;

    /// Where collectives contradict the bounds stated of clocks, these are taken for twice as wide so
    /// many times over, at most.
    pub const CLOCKS_WIDER: u32 = 4;

    /// Telling calls that it takes to believe that rule.
    pub const HOSTS_WAIT_TELLING: usize = 10;

    /// Share of the processes in the data that make everybody.
    pub const EVERYBODY: f64 = 0.9;

    /// Fewer steps than this give no compute times.
    pub const FEWEST_STEPS: usize = 3;

    /// A longer run that fewer than this share of the lanes gave does not bind the others.
    pub const RUN_OUTLIERS: f64 = 0.1;

    /// Share of the lanes whose calls were waited for in synchronise calls that makes these the
    /// evidence.
    pub const RUNS_WAITED: f64 = 0.9;

    /// Who has waited for so long is not to blame for a hang, whoever waits for it.
    pub const HANG_WAITER_NS: i64 = 1_000_000_000;

    /// A call that all have entered may just take long. It is a hang after so many times `hang_ns`,
    pub const JAM_TIMES: i64 = 3;

    /// and where processes wait for their devices, which may compute, after so many times.
    pub const DEVICE_JAM_TIMES: i64 = 20;

    /// The hang threshold of the standing verdict is so many times the third longest wait that was
    /// seen,
    pub const USUAL_WAITS: i64 = 3;

    /// and at most this.
    pub const LONGEST_HANG_NS: i64 = 600_000_000_000;

    /// Where the short look back holds fewer collectives of the job's largest communicator, the long
    /// one is taken; and where a span holds fewer of a communicator, a rank that stands out in it is
    /// not cleared.
    pub const FEW_COLLECTIVES: usize = 8;

    /// From this share of the time on a rank is named by one window's verdict,
    pub const NAMED_AT_ONCE: f64 = 0.2;

    /// and from so much more for each part of the windows in which others stand out, too: on a busy
    /// host somebody does for seconds, now one rank and now another (seen on two cores with a load
    /// of 37).
    pub const RESTLESS_OTHERS: f64 = 3.0;

    /// Windows before, one of which must name the same rank otherwise.
    pub const NAMED_BEFORE: usize = 3;

    /// Windows for which a named rank stays named.
    pub const STAYS_NAMED: usize = 4;

    /// An imbalance or the network must show in `IMBALANCE_IN` of so many of the last windows.
    pub const IMBALANCE_OF: usize = 4;

    /// See `IMBALANCE_OF`.
    pub const IMBALANCE_IN: usize = 3;

    /// Collectives with retransmissions, and without, that it takes to compare.
    pub const NETWORK_COLLECTIVES: usize = 3;

    /// So many times as long as usual must collectives with retransmissions take, on average.
    pub const NETWORK_SLOWER: f64 = 1.5;

    /// A host is named when so much of the retransmissions have it at one end,
    pub const NETWORK_OF_HOST: f64 = 0.8;

    /// and no other host has more than this part of that.
    pub const NETWORK_NEXT_HOST: f64 = 0.75;

    /// Share of the excess that causes together must explain to be named (docs/verdicts.md,
    /// Causes).
    pub const CAUSE_EXPLAINS: f64 = 0.8;

    /// Share of the excess that causes together must exceed to be named as most of it.
    pub const CAUSE_MOSTLY: f64 = 0.5;

    /// Share below which a kind is no part of a cause.
    pub const CAUSE_PART: f64 = 0.1;

    /// So many times the peer's figure must the culprit's be: else the peer has the same, and is
    /// not late.
    pub const CAUSE_TIMES_PEER: f64 = 2.0;

    /// Intervals that must be found on both sides to compare one by one; with fewer, averages are
    /// compared.
    pub const CAUSE_MATCHED: usize = 3;

    /// An interval is late when it exceeds the peer's by this part of the mean excess.
    pub const CAUSE_LATE: f64 = 0.5;
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
            compute_ratio: 1.25,
            stage_ratio: 1.1,
            rotating: 0.1,
            carries_over: 0.3,
            hang_ns: 3_000_000_000,
            compute_share: 0.5,
            window_ns: 1_000_000_000,
            short_window_ns: 500_000_000,
            least_episode_ns: 1_000_000_000,
            window_collectives: 3,
            present: 0.9,
        }
    }
}
