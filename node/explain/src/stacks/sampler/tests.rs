//! Tests of the sampler.

use super::*;

fn stack(tid: u32, line: u32, trust: Trust) -> ThreadStack {
    let frame = Frame::Python { function: "f".into(), file: "a.py".into(), line: Some(line) };
    ThreadStack {
        tid,
        name: "t".into(),
        state: ThreadState::Running,
        wait_channel: None,
        trust,
        frames: vec![frame],
        outer_missing: false,
        note: None,
    }
}

#[test]
fn equal_stacks_are_counted_torn_ones_apart_and_the_rest_is_named() {
    let limits = Limits { stacks: 3, threads: 2, ..Limits::default() };
    let mut counting = Counting::new(7, 20, MOST_BYTES_OF_PROCESS);
    for (line, trust) in [(1, Trust::Proven), (2, Trust::Proven), (2, Trust::AgreedTwice), (2, Trust::Torn)] {
        counting.count(stack(7, line, trust), &limits);
    }
    for line in 10..15 {
        counting.count(stack(7, line, Trust::Proven), &limits);
    }
    counting.count(stack(8, 1, Trust::Unread), &limits);
    assert_eq!(counting.count(stack(9, 1, Trust::Proven), &limits), None);
    let profile = counting.profile;
    let [main, other] = &profile.threads[..] else { panic!("two threads: {profile:?}") };
    assert_eq!((main.main, main.samples, main.torn, main.other_stacks), (true, 9, 1, 5));
    let counts: Vec<_> = main.stacks.iter().map(|stack| (stack.count, stack.inner_missing)).collect();
    assert_eq!(counts, [(2, false), (1, false), (1, true)]);
    assert_eq!((other.samples, other.stacks.len()), (1, 0));
}

#[test]
fn stacks_that_always_differ_take_a_bounded_amount() {
    const ROOM: usize = 1 << 20;
    let limits = Limits::default();
    let mut counting = Counting::new(1, 64, ROOM);
    for round in 0..8 {
        for tid in 1..=64 {
            let mut other = stack(tid, round * 100 + tid, Trust::Proven);
            let frame = Frame::Python { function: "f".repeat(256), file: "a".repeat(256), line: Some(1) };
            other.frames.extend(vec![frame; 20]);
            counting.count(other, &limits);
        }
    }
    let threads = &counting.profile.threads;
    let stacks = threads.iter().flat_map(|thread| &thread.stacks);
    let kept: usize = stacks.map(|stack| bytes_of(&stack.frames)).sum();
    assert!((ROOM / 2..=ROOM).contains(&kept), "{kept}");
    let left_out: u32 = threads.iter().map(|thread| thread.other_stacks).sum();
    let counted: usize = threads.iter().map(|thread| thread.stacks.len()).sum();
    assert_eq!(left_out as usize + counted, 8 * 64, "what is left out is said");
}

#[test]
fn rounds_fall_into_step_with_no_loop() {
    let every = Duration::from_millis(50);
    let shifts: Vec<f64> = (0..20).map(|round| shifted(every, round).as_secs_f64() * 1e3).collect();
    assert!(shifts.iter().all(|ms| (0.0..25.0).contains(ms)), "{shifts:?}");
    for part in 0..5 {
        let within = |ms: &&f64| (**ms / 5.0) as usize == part;
        assert!((3..=5).contains(&shifts.iter().filter(within).count()), "{shifts:?}");
    }
    assert!(std::iter::zip(0.., &shifts).map(|(i, ms)| f64::from(i) * 50.0 + ms).is_sorted());
}

#[test]
fn a_missing_process_and_a_cancelled_sampling_are_reported() {
    let plan = Plan { samples: 3, every: Duration::ZERO, cpu_budget: Duration::from_secs(1) };
    let profiles = Sampler::new(Limits::default()).profile(&[u32::MAX], &plan, || false);
    let ended = ShortReason::Failed(StacksError::Ended { pid: u32::MAX });
    assert_eq!((profiles[0].samples, &profiles[0].short_because), (0, &Some(ended)));
    let profiles = Sampler::new(Limits::default()).profile(&[std::process::id()], &plan, || true);
    assert_eq!((profiles[0].samples, &profiles[0].short_because), (0, &Some(ShortReason::Cancelled)));
}

/// An implementation that cannot make threads walk.
#[derive(Debug, Default)]
struct Refuses {
    asked: usize,
    ended: usize,
}

impl OwnWalks for Refuses {
    fn ask(&mut self, _: &record::WalkRequest) -> Result<(), String> {
        self.asked += 1;
        Err("not here".into())
    }
    fn ask_stack(&mut self, _: u32) -> Result<(), String> {
        Err("not here".into())
    }
    fn take(&mut self, _: Duration) -> Vec<ThreadWalk> {
        Vec::new()
    }
    fn end(&mut self) {
        self.ended += 1;
    }
}

#[test]
fn where_threads_cannot_be_asked_they_are_read_from_outside_and_that_is_reported() {
    let spins = "import time\nend = time.time() + 60\nwhile time.time() < end: pass";
    let spawned = std::process::Command::new("python3").args(["-c", spins]).spawn();
    let Ok(mut child) = spawned else {
        eprintln!("skipped: python3 is not installed");
        return;
    };
    let plan = Plan { samples: 20, every: Duration::from_millis(5), cpu_budget: Duration::from_secs(5) };
    let mut refuses = Refuses::default();
    let until = Instant::now() + Duration::from_secs(60);
    let (profile, why) = loop {
        let sampled = Sampler::default().profile_with(&[child.id()], &plan, Some(&mut refuses), || false);
        // Python may be only starting
        if refuses.asked > 0 || Instant::now() > until {
            break (sampled.0.into_iter().next(), sampled.1);
        }
    };
    child.kill().unwrap();
    child.wait().unwrap();
    let profile = profile.unwrap();
    assert!(refuses.asked > 0 && refuses.ended > 0, "{profile:?}");
    assert_eq!(why.as_deref(), Some("not here"));
    assert!(profile.threads.first().is_some_and(|thread| thread.samples > 0), "{profile:?}");
}

#[test]
fn sampling_ends_with_its_budget() {
    let plan = Plan { samples: 10_000, every: Duration::ZERO, cpu_budget: Duration::from_millis(5) };
    let profile = &Sampler::new(Limits::default()).profile(&[std::process::id()], &plan, || false)[0];
    assert_eq!(profile.short_because, Some(ShortReason::CpuBudget));
    assert!(profile.samples >= 1 && profile.samples < 10_000);
}
