//! Many large questions to a full store at once: together they take no more memory than there is
//! for questions. In a process of its own, and one test: the pool and what /proc says of memory are
//! the process's.

use std::sync::Arc;
use std::time::{Duration, Instant};

use query::exec::Executor;
use query_planner::memory::{self, Refused};
use query_planner::{AskOptions, Budget, NodeError, NodeTask, Value};
use store::Source;
use store::testing::store_of_segments;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

const MIB: u64 = 1 << 20;
const SEGMENTS: u64 = 300;
const ROWS: u64 = 500;
/// Of the whole process: four of the joins fit.
const POOL: u64 = 96 * MIB;
const JOINS: usize = 16;
/// What each join may take besides, uncounted: its thread, its connection with the list of
/// segments, what the allocator adds.
const BESIDES: u64 = JOINS as u64 * 6 * MIB;

/// A line of this process's status, bytes.
fn status(line: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("/proc");
    let found = status.lines().find_map(|of| of.strip_prefix(line)).expect("a line");
    found.trim_start_matches(':').trim().trim_end_matches(" kB").parse::<u64>().expect("a number") << 10
}

async fn ask(executor: &Arc<Executor>, requester: &str, sql: &str) -> Result<Value, NodeError> {
    let options = AskOptions { single_node: true, ..AskOptions::default() };
    let plan = query_planner::plan(sql, &executor.catalog().expect("a catalogue"), &options).expect("a plan");
    let task = NodeTask {
        fragments: plan.fragments,
        keys: Vec::new(),
        now_unix_ns: 0,
        budget: Budget::default(),
        viewer: None,
    };
    let (batches, mut produced) = mpsc::channel(4);
    let deadline = Instant::now() + Duration::from_secs(600);
    let running = Arc::clone(executor).run(requester, task, None, deadline, CancellationToken::new(), batches);
    let (stats, value) = tokio::join!(running, async {
        let mut value = Value::Null;
        while let Some((_, batch, _counted)) = produced.recv().await {
            value = batch.columns[0][0].clone();
        }
        value
    });
    stats.map(|_| value)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sixteen_joins_take_no_more_than_there_is_for_questions() {
    assert!(memory::install(), "before the first database");
    let dir = tempfile::tempdir().expect("a directory");
    let source = Arc::new(Source::Store(store_of_segments(&dir.path().join("s.db"), SEGMENTS, ROWS)));
    let executor = Arc::new(Executor::new("n".into(), source, 2 * JOINS));
    let all = Value::Integer(i64::try_from(SEGMENTS * ROWS).expect("a few"));
    let joined = |tables: usize| {
        let others: String =
            (1..tables).map(|at| format!(" JOIN collectives t{at} ON t{}.seq = t{at}.seq", at - 1)).collect();
        format!("SELECT count(*) FROM collectives t0{others}")
    };
    let small = "SELECT count(*) FROM collectives WHERE rank = 3";
    let of_rank = Value::Integer(i64::try_from(SEGMENTS * ROWS / 8).expect("a few"));
    // Alone it fits, and reports what it takes.
    let large = joined(5);
    assert_eq!(ask(&executor, "alone", &large).await, Ok(all.clone()));
    assert_eq!(ask(&executor, "alone", small).await, Ok(of_rank.clone()));
    assert_eq!(memory::taken_by_all(), 0);

    memory::bound_all(POOL);
    // The highest resident size is counted from here on.
    std::fs::write("/proc/self/clear_refs", "5").expect("own memory");
    let before = status("VmRSS");
    let joins: Vec<_> = (0..JOINS)
        .map(|at| {
            let (executor, large) = (Arc::clone(&executor), large.clone());
            tokio::spawn(async move { ask(&executor, &format!("requester {at}"), &large).await })
        })
        .collect();
    let (mut smalls, mut sent_away) = (0, 0);
    let mut most_taken = 0;
    while joins.iter().any(|join| !join.is_finished()) {
        match ask(&executor, "small", small).await {
            Ok(count) => {
                assert_eq!(count, of_rank);
                smalls += 1;
            }
            // While so many joins begin at once that each is small yet, they have what is reserved.
            // (A client that asks again waits a moment: refusals take none, and would be counted in thousands.)
            Err(NodeError::OverBudget(why)) if why.contains("ask again") => {
                sent_away += 1;
                tokio::time::sleep(std::time::Duration::from_millis(20)).await;
            }
            Err(other) => panic!("{other}"),
        }
        most_taken = most_taken.max(memory::taken_by_all());
    }
    let mut refused = 0;
    for join in joins {
        match join.await.expect("no panic") {
            Ok(count) => assert_eq!(count, all),
            Err(NodeError::OverBudget(why)) => {
                assert!(why.contains("are in use by others; ask again"), "{why}");
                refused += 1;
            }
            Err(other) => panic!("{other}"),
        }
    }
    let peak = status("VmHWM");
    eprintln!(
        "{refused} of {JOINS} joins refused, {smalls} small questions answered beside them; at most {} MiB taken, {} MiB resident \
         before, {} MiB at most, {} MiB now",
        most_taken / MIB,
        before / MIB,
        peak / MIB,
        status("VmRSS") / MIB
    );
    assert!((1..JOINS).contains(&refused), "{refused} of {JOINS} were refused: some fit, not all");
    assert!(smalls > 10 * sent_away, "{sent_away} small questions were refused, {smalls} answered");
    assert!(most_taken <= POOL);
    assert!(peak <= before + POOL + BESIDES, "{} MiB before, {} MiB at most", before / MIB, peak / MIB);
    // Nothing stays taken; then one answers as before, and gets a reason where others have it.
    assert_eq!(memory::taken_by_all(), 0);
    assert_eq!(ask(&executor, "again", &large).await, Ok(all));
    memory::bound_all(10 * MIB);
    let alone = ask(&executor, "again", &large).await;
    assert_eq!(alone, Err(NodeError::OverBudget(Refused::TooMuch.to_string())));
}
