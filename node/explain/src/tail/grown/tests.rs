use proptest::prelude::*;

use super::*;

const MS: i64 = 1_000_000;
const MINUTE: i64 = 60_000 * MS;
const DAY: i64 = PAST_NS / MINUTE;

/// A minute of requests, by how many took how many milliseconds.
fn window_of(at: i64, of: &[(i64, u64)]) -> Window {
    let mut durations = Durations::default();
    of.iter().for_each(|(ms, count)| durations.add((ms * MS).cast_unsigned(), *count));
    let since_ns = at * MINUTE;
    Window { since_ns, until_ns: since_ns + MINUTE, requests: durations.count(), durations, failed: 0 }
}

/// Two in a hundred take as long, the others a millisecond.
fn window(at: i64, p99_ms: i64) -> Window {
    window_of(at, &[(1, LEAST_REQUESTS - 10), (p99_ms, 10)])
}

/// What the windows of these p99s change, minute after minute, each with its minute.
fn changes(history: &mut History, from: i64, p99s_ms: &[i64]) -> Vec<(i64, Change)> {
    let windows = p99s_ms.iter().zip(from..).map(|(p99_ms, at)| window(at, *p99_ms));
    windows.filter_map(|of| Some((of.since_ns / MINUTE, history.judge(of)?))).collect()
}

fn grown(since: i64, past: i64) -> Grown {
    Grown { since_ns: since * MINUTE, past_p99_ns: 10 * MS, past_ns: past * MINUTE }
}

#[test]
fn what_grows_is_found_once_and_is_over_once() {
    let mut history = History::default();
    assert_eq!(changes(&mut history, 0, &[10; 20]), []);
    assert_eq!(changes(&mut history, 20, &[90, 10, 90, 29, 29]), [], "moments, and less than three times");
    let grown = grown(25, 25);
    assert_eq!(changes(&mut history, 25, &[90, 90, 90, 25, 10, 10, 25]), [(26, Change::Grown(grown))]);
    assert_eq!(history.grown(), Some(grown));
    assert_eq!(changes(&mut history, 32, &[10, 12, 10]), [(34, Change::Over(grown))]);
    assert_eq!((history.grown(), history.last_ns()), (None, 35 * MINUTE));
}

#[test]
fn what_comes_again_soon_is_found_when_it_has_lasted() {
    let mut history = History::default();
    let found = changes(&mut history, 0, &[&[10; 20][..], &[90; 3], &[10; 3], &[90; 40]].concat());
    let kinds: Vec<(i64, bool)> = found.iter().map(|(at, of)| (*at, matches!(of, Change::Grown(_)))).collect();
    assert_eq!(kinds, [(21, true), (25, false), (55, true)]);
    let Change::Grown(again) = found[2].1 else { unreachable!() };
    assert_eq!(again.since_ns, 26 * MINUTE);
}

#[test]
fn without_a_past_and_below_some_milliseconds_nothing_grows() {
    let mut young = History::default();
    assert_eq!(changes(&mut young, 0, &[1, 1, 1, 900, 900, 900, 900]), []);
    let mut fast = History::default();
    assert_eq!(changes(&mut fast, 0, &[[1; 20], [5; 20]].concat()), []);
}

#[test]
fn what_lasts_for_a_day_is_usual_and_what_ends_then_is_over() {
    let long = |last: i64| {
        let high = (0..DAY).map(|_| 90);
        (0..20).map(|_| 10).chain(high).chain([last; 5]).collect::<Vec<i64>>()
    };
    let (mut history, grown) = (History::default(), grown(20, 20));
    let found = changes(&mut history, 0, &long(90));
    assert_eq!(found, [(21, Change::Grown(grown)), (19 + DAY, Change::Usual(grown))]);
    let mut history = History::default();
    changes(&mut history, 0, &long(10)[..usize::try_from(19 + DAY).unwrap()]);
    assert_eq!(changes(&mut history, 19 + DAY, &[10; 5]), [(21 + DAY, Change::Over(grown))]);
    changes(&mut history, 30 + DAY, &[10; 2_000]);
    assert!(history.past.len() <= 50, "{}", history.past.len());
}

#[test]
fn a_service_without_requests_is_grown_no_more() {
    let mut history = History::default();
    let found = changes(&mut history, 0, &[[10; 12], [90; 12]].concat());
    let [(13, Change::Grown(grown))] = found[..] else { panic!("{found:?}") };
    assert_eq!(history.silent(70 * MINUTE), None);
    assert_eq!(history.silent(90 * MINUTE), Some(Change::Silent(grown)));
    assert_eq!(history.silent(190 * MINUTE), None);
}

#[test]
fn windows_with_hours_between_them_are_not_in_a_row() {
    let mut history = History::default();
    assert_eq!(changes(&mut history, 0, &[10; 20]), []);
    assert_eq!(changes(&mut history, 20, &[90]), []);
    assert_eq!(changes(&mut history, 620, &[90]), [], "that of ten hours ago is another matter");
    assert_eq!(changes(&mut history, 621, &[90]).len(), 1);
    assert_eq!(history.grown().map(|grown| grown.since_ns), Some(620 * MINUTE));
}

#[test]
fn an_agent_that_is_started_again_goes_on() {
    let stored: Vec<Window> = (0..24).map(|hour| window(60 * hour, 10)).rev().collect();
    let mut history = History::default();
    history.add_stored(stored.clone());
    assert_eq!(changes(&mut history, 23 * 60 + 5, &[90, 90]).len(), 1);
    let (mut history, grown) = (History::default(), grown(20 * 60, 0));
    history.stands(grown, 90 * MS, 23 * 60 * MINUTE);
    history.add_stored(stored);
    assert_eq!(changes(&mut history, 23 * 60 + 5, &[90, 90, 90]), [], "it was written before");
    assert_eq!(changes(&mut history, 23 * 60 + 8, &[10; 3]), [(23 * 60 + 10, Change::Over(grown))]);
    // Also without a past, and without requests.
    let mut history = History::default();
    history.stands(grown, 90 * MS, 23 * 60 * MINUTE);
    assert_eq!(changes(&mut history, 23 * 60, &[90, 10, 10, 90]), []);
    assert_eq!(history.silent(25 * 60 * MINUTE), Some(Change::Silent(grown)));
}

/// Numbers that look random, the same in each run: below 1.
fn random() -> impl FnMut() -> f64 {
    let mut state = 7_u64;
    move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 11) as f64 / (1_u64 << 53) as f64
    }
}

#[test]
fn a_service_with_two_kinds_of_requests_has_no_findings_by_chance() {
    let mut random = random();
    let mut minute = |at: i64, share: f64| {
        let slow = (0..LEAST_REQUESTS).filter(|_| random() < share).count() as u64;
        window_of(at, &[(5, LEAST_REQUESTS - slow), (500, slow)])
    };
    for share in [0.002, 0.005, 0.007, 0.009, 0.011, 0.015] {
        let mut history = History::default();
        let found: Vec<Change> = (0..3 * DAY).filter_map(|at| history.judge(minute(at, share))).collect();
        assert_eq!(found, [], "{share} of the requests are slow");
    }
    // And where there are more of them, it has.
    let mut history = History::default();
    let mut found = vec![];
    for at in 0..2 * DAY {
        let is_ill = (DAY..DAY + 120).contains(&at);
        found.extend(history.judge(minute(at, if is_ill { 0.05 } else { 0.009 })).map(|change| (at - DAY, change)));
    }
    let [(1..=5, Change::Grown(_)), (122..=140, Change::Over(_))] = found[..] else { panic!("{found:?}") };
}

#[test]
fn long_requests_that_have_not_ended_yet_are_no_end() {
    let seconds = |at: i64, slow: i64| window_of(at, &[(2_000, LEAST_REQUESTS - 50), (slow * 1_000, 50)]);
    let mut history = History::default();
    assert!((0..20).all(|at| history.judge(seconds(at, 20)).is_none()));
    let of = |history: &mut History, at, slow| history.judge(seconds(at, slow)).is_some();
    assert!(!of(&mut history, 20, 70) && of(&mut history, 21, 70));
    // Of longer ones none has ended yet.
    assert!((22..26).all(|at| !of(&mut history, at, 120)));
    assert!((26..29).all(|at| !of(&mut history, at, 2)), "for less than twice 120 s");
    assert!(of(&mut history, 29, 2));
}

#[test]
fn what_fails_fast_is_no_end() {
    let failing = |at: i64, failed: u64| {
        let window = window_of(at, &[(1, LEAST_REQUESTS)]);
        Window { requests: window.requests + failed, failed, ..window }
    };
    let mut history = History::default();
    assert_eq!(changes(&mut history, 0, &[[10; 12], [90; 12]].concat()).len(), 1);
    assert!((24..40).all(|at| history.judge(failing(at, 100)).is_none()), "one in six is not answered");
    assert!((40..42).all(|at| history.judge(failing(at, 2)).is_none()));
    assert!(matches!(history.judge(failing(42, 2)), Some(Change::Over(_))));
}

proptest! {
    /// Whatever comes, changes alternate, and a service within twice its median has none.
    #[test]
    fn changes_alternate(p99s_ms in prop::collection::vec(1_i64..1_000, 0..400), quiet in 20_i64..39) {
        let mut history = History::default();
        let mut stands = false;
        for (_, change) in changes(&mut history, 0, &p99s_ms) {
            prop_assert_eq!(stands, !matches!(change, Change::Grown(_)));
            stands = matches!(change, Change::Grown(_));
        }
        let even: Vec<i64> = p99s_ms.iter().map(|ms| 20 + ms % (quiet - 19)).collect();
        prop_assert_eq!(changes(&mut History::default(), 0, &even), []);
    }
}
