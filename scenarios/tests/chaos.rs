//! The chaos lab's short form: a few dozen questions while hosts are killed, stopped, parted and
//! restarted.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use query::FanoutPolicy;
use query::ask::{self, QueryOutcome};
use scenarios::lab::chaos::{Options, run};
use scenarios::lab::fleet::Fleet;
use scenarios::lab::questions::name_of;
use scenarios::lab::script::Operation;
use scenarios::light::question;
use tokio_util::sync::CancellationToken;

const PATIENCE: Duration = Duration::from_secs(240);

/// A lab has a thread for each host, and its judge counts on their being in time: one at a time.
static LAB: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    LAB.lock().unwrap_or_else(PoisonError::into_inner)
}

#[test]
fn every_answer_under_faults_is_right_and_says_whom_it_lacks() {
    let _alone = alone();
    let options = Options {
        hosts: 6,
        questions: 400,
        at_once: 6,
        seed: 7,
        pace: Duration::from_millis(300),
        new_rows: true,
        timeout: (Duration::from_secs(1), Duration::from_secs(3)),
        at_most: Duration::from_secs(4),
        tree_above: usize::MAX,
        most_in_cell: None,
    };
    let report = run(&options).expect("the lab runs");
    println!("{report}");
    assert!(report.is_right(), "{report}");
    assert!(report.complete > 0 && report.partial > 0, "a run without faults, or with nothing else: {report}");
    // A connection, an outbox and a driver for each way to each other host, and the agent's own.
    assert!(report.tasks.1 <= 40 + 8 * options.hosts, "{report}");
    let (before, after) = report.resources.expect("measured");
    assert!(after.files <= before.files && after.threads <= before.threads, "{report}");
}

/// The same in a mesh of cells.
#[test]
#[ignore = "a minute of labs: make check NAME=cells"]
fn every_answer_of_a_mesh_of_cells_is_right_and_says_whom_it_lacks() {
    let _alone = alone();
    let options = Options {
        hosts: 15,
        questions: 300,
        at_once: 3,
        seed: 11,
        pace: Duration::from_millis(800),
        new_rows: true,
        timeout: (Duration::from_secs(3), Duration::from_secs(6)),
        at_most: Duration::from_secs(25),
        tree_above: usize::MAX,
        most_in_cell: Some(6),
    };
    let report = run(&options).expect("the lab runs");
    println!("{report}");
    assert!(report.is_right(), "{report}");
    assert!(report.cells >= 3, "{} cells of 15 hosts", report.cells);
    assert!(report.complete > 0 && report.partial > 0, "a run without faults, or with nothing else: {report}");
}

/// Who is missing from an answer to this host, of how many asked: through delegates.
fn missing(fleet: &Fleet, asker: usize) -> (usize, Vec<String>) {
    let (shared, runtime) = fleet.asked(asker).expect("it runs");
    *shared.coordinator.fanout.lock() = FanoutPolicy { tree_above: 4 };
    let asked = runtime.spawn(async move {
        let question = question("SELECT count(*) FROM t", Duration::from_secs(6));
        ask::ask(&shared.coordinator, question, CancellationToken::new()).await
    });
    let outcome = runtime.block_on(asked).expect("no panic").expect("an answer");
    let QueryOutcome::Answer { coverage, .. } = outcome else { panic!("no answer") };
    assert_eq!(coverage.asked, coverage.answered + coverage.missing.len());
    (coverage.asked, coverage.missing.into_iter().map(|missing| missing.node).collect())
}

#[test]
#[ignore = "a minute of labs: make check NAME=cells"]
fn a_cell_that_is_cut_off_is_named_node_by_node() {
    const HOSTS: usize = 18;
    let _alone = alone();
    let fleet = Fleet::start(HOSTS, 3, Some(6), PATIENCE).expect("hosts");
    let until = Instant::now() + PATIENCE;
    let mut cells: BTreeMap<_, BTreeSet<usize>>;
    loop {
        cells = BTreeMap::new();
        for host in 0..HOSTS {
            let (shared, _) = fleet.asked(host).expect("it runs");
            let list = shared.coordinator.gossip.list();
            let own = list.iter().find(|member| member.is_self).expect("itself");
            cells.entry(own.seat.cell).or_default().insert(host);
        }
        if cells.values().all(|hosts| hosts.len() <= 6) {
            break;
        }
        assert!(Instant::now() < until, "{cells:?}");
        std::thread::sleep(Duration::from_millis(100));
    }
    fleet.wait_for_all(PATIENCE).expect("all know all");
    assert_eq!(missing(&fleet, 0), (HOSTS, Vec::new()));
    let gone = cells.into_values().find(|hosts| !hosts.contains(&0)).expect("another cell");
    fleet.apply(&Operation::Partition(gone.iter().copied().collect())).expect("parted");
    let names = |hosts: &dyn Fn(usize) -> bool| -> Vec<String> {
        (0..HOSTS).filter(|host| hosts(*host)).map(name_of).collect::<BTreeSet<_>>().into_iter().collect()
    };
    let (inside, outside) = (names(&|host| gone.contains(&host)), names(&|host| !gone.contains(&host)));
    let within = *gone.first().expect("somebody");
    // Before anybody knows, and when all do.
    for _ in 0..3 {
        assert_eq!(missing(&fleet, 0), (HOSTS, inside.clone()));
        assert_eq!(missing(&fleet, within), (HOSTS, outside.clone()));
        std::thread::sleep(Duration::from_secs(2));
    }
    fleet.apply(&Operation::Heal).expect("healed");
    fleet.wait_for_all(PATIENCE).expect("all know all again");
    // Connections may still have to be made anew.
    let until = Instant::now() + PATIENCE;
    while [0, within].iter().any(|asker| missing(&fleet, *asker) != (HOSTS, Vec::new())) {
        assert!(Instant::now() < until, "no whole answer");
    }
    fleet.shutdown();
}
