//! The chaos lab's short form: a few dozen questions while hosts are killed, stopped, parted and
//! restarted.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use agent::stragglers::{self, Asked};
use model::{AskedSpan, StragglersQuestion};
use query::FanoutPolicy;
use query::access::Caller;
use query::ask::{self, QueryOutcome};
use scenarios::lab::chaos::{Options, run};
use scenarios::lab::fleet::Fleet;
use scenarios::lab::questions::name_of;
use scenarios::lab::ranks::{JOB, LATE, Ranks};
use scenarios::lab::script::Operation;
use scenarios::light::question;
use standing::{JUDGES, judges};
use tokio_util::sync::CancellationToken;
use verdicts::Verdict;

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
        says: false,
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
        says: false,
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

/// The hosts by cell, once no cell has more than `most` and all know all.
fn in_cells(fleet: &Fleet, most: usize) -> Vec<BTreeSet<usize>> {
    let until = Instant::now() + PATIENCE;
    loop {
        let mut cells: BTreeMap<_, BTreeSet<usize>> = BTreeMap::new();
        for host in 0..fleet.count() {
            let (shared, _) = fleet.asked(host).expect("it runs");
            let list = shared.coordinator.gossip.list();
            let own = list.iter().find(|member| member.is_self).expect("itself");
            cells.entry(own.seat.cell).or_default().insert(host);
        }
        if cells.values().all(|hosts| hosts.len() <= most) {
            fleet.wait_for_all(PATIENCE).expect("all know all");
            return cells.into_values().collect();
        }
        assert!(Instant::now() < until, "{cells:?}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn a_cell_that_is_cut_off_is_named_node_by_node() {
    const HOSTS: usize = 18;
    let _alone = alone();
    let fleet = Fleet::start(HOSTS, 3, Some(6), PATIENCE).expect("hosts");
    let cells = in_cells(&fleet, 6);
    assert_eq!(missing(&fleet, 0), (HOSTS, Vec::new()));
    let gone = cells.into_iter().find(|hosts| !hosts.contains(&0)).expect("another cell");
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

/// Of a host: its trust list's number, and whether it lists this one as live.
fn trusts(fleet: &Fleet, asker: usize, outcast: usize) -> (u64, bool) {
    let (shared, _) = fleet.asked(asker).expect("it runs");
    let (list, name) = (shared.coordinator.gossip.list(), name_of(outcast));
    (shared.mesh.identity().trust_number(), list.iter().any(|member| member.name == name && member.is_live()))
}

/// None of these hosts lists the outcast as live.
fn assert_shut_out(fleet: &Fleet, hosts: &BTreeSet<usize>, outcast: usize, when: &str) {
    let let_in = hosts.iter().find(|host| trusts(fleet, **host, outcast).1);
    assert_eq!(let_in, None, "{when}");
}

/// Waits until each of these hosts goes by the new trust list and has let go of the outcast; those that have
/// `already` do not list it meanwhile.
fn until_shut_out(fleet: &Fleet, hosts: &BTreeSet<usize>, outcast: usize, already: &BTreeSet<usize>) {
    let (began, until) = (Instant::now(), Instant::now() + PATIENCE);
    while let Some(host) = hosts.iter().find(|host| trusts(fleet, **host, outcast) != (1, false)) {
        assert!(Instant::now() < until, "{}: {:?}", name_of(*host), trusts(fleet, *host, outcast));
        assert_shut_out(fleet, already, outcast, &format!("after {:?}", began.elapsed()));
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[test]
#[ignore = "a minute of labs: make check NAME=cells"]
fn a_delegate_that_is_revoked_while_the_mesh_is_parted_is_let_in_by_no_cell() {
    const HOSTS: usize = 18;
    let _alone = alone();
    let fleet = Fleet::start(HOSTS, 7, Some(6), PATIENCE).expect("hosts");
    let cells = in_cells(&fleet, 6);
    assert!(cells.len() >= 3, "{cells:?}");
    // The outcast speaks for a cell, and is parted from the host that is told, together with every other cell.
    let (shared, _) = fleet.asked(0).expect("it runs");
    let list = shared.coordinator.gossip.list();
    let delegate = list.iter().find(|member| member.seat.elsewhere && member.seat.speaks).expect("a delegate");
    let outcast = (0..HOSTS).find(|host| name_of(*host) == delegate.name).expect("one of the hosts");
    let far: BTreeSet<usize> = cells
        .iter()
        .filter(|cell| !cell.contains(&0))
        .enumerate()
        .filter(|(at, cell)| cell.contains(&outcast) || at % 2 == 0)
        .flat_map(|(_, cell)| cell.iter().copied())
        .collect();
    let near: BTreeSet<usize> = (0..HOSTS).filter(|host| !far.contains(host)).collect();
    let others: BTreeSet<usize> = (0..HOSTS).filter(|host| *host != outcast).collect();
    fleet.apply(&Operation::Partition(far.iter().copied().collect())).expect("parted");
    fleet.revoke(outcast, 0).expect("revoked");
    until_shut_out(&fleet, &near, outcast, &BTreeSet::new());
    let far_trusts = far.iter().all(|host| trusts(&fleet, *host, outcast) == (0, true));
    assert!(far_trusts, "the other side knows nothing of it");

    let began = Instant::now();
    fleet.apply(&Operation::Heal).expect("healed");
    // Who has shut it out never lists it again, whatever comes from the other side.
    until_shut_out(&fleet, &others, outcast, &near);
    println!("shut out everywhere {:?} after the two sides met", began.elapsed());
    let answered = |host: usize| {
        let (asked, missing) = missing(&fleet, host);
        (asked, missing.iter().filter(|name| **name != delegate.name).count())
    };
    let until = Instant::now() + PATIENCE;
    while others.iter().any(|host| answered(*host).1 > 0) {
        assert!(Instant::now() < until, "no whole answer of the others");
        assert_shut_out(&fleet, &others, outcast, &format!("after {:?}", began.elapsed()));
    }
    // A restart with the certificate that is revoked changes nothing.
    fleet.apply(&Operation::Kill { host: outcast, silent: false }).expect("killed");
    let _refused = fleet.apply(&Operation::Start(outcast, Default::default()));
    let watched = Instant::now();
    while watched.elapsed() < Duration::from_secs(15) {
        assert_shut_out(&fleet, &others, outcast, "after its restart");
        std::thread::sleep(Duration::from_millis(100));
    }
    fleet.shutdown();
}

/// What stands at a host: who is late, of how many hosts' digests, by whom, and who else judges; or
/// what there is instead.
fn late(fleet: &Fleet, asker: usize) -> Result<(usize, BTreeSet<String>), String> {
    let (shared, runtime) = fleet.asked(asker).ok_or("it does not run")?;
    let asked = runtime.spawn(async move {
        let of = Asked { coordinator: &shared.coordinator, live: Some(&shared) };
        let question = StragglersQuestion {
            span: AskedSpan::Now,
            job: None,
            comm: None,
            timeout_ms: 10_000,
            nodes: Vec::new(),
            labels: Vec::new(),
        };
        stragglers::verdict(of, question, &Caller::agent(), CancellationToken::new()).await
    });
    let answer = runtime.block_on(asked).map_err(|error| error.to_string())?.map_err(|error| error.to_string())?;
    let Some(standing) = answer.standing else { return Err("nothing stands".to_owned()) };
    match &answer.report.verdict {
        Verdict::Rank { culprit, .. } => {
            assert_eq!((culprit.rank, answer.other_jobs.len()), (LATE, 0), "{}", answer.text);
            Ok((standing.heard, standing.judges.into_iter().map(|of| of.judge).collect()))
        }
        other => Err(format!("{other:?} {standing:?}")),
    }
}

/// Waits until each of these hosts names the late rank, of so many hosts' digests, by these judges.
fn eventually_late(fleet: &Fleet, askers: &[usize], what: &str, heard: usize, judges: &[&str]) {
    let (until, began) = (Instant::now() + PATIENCE, Instant::now());
    let wanted = (heard, judges.iter().map(|judge| (*judge).to_owned()).collect::<BTreeSet<_>>());
    for asker in askers {
        loop {
            let stands = late(fleet, *asker);
            if stands.as_ref() == Ok(&wanted) {
                break;
            }
            assert!(Instant::now() < until, "{what}: {} says {stands:?}, not {wanted:?}", name_of(*asker));
            std::thread::sleep(Duration::from_millis(200));
        }
    }
    println!("{what}: named by {} hosts after {:?}", askers.len(), began.elapsed());
}

#[test]
#[ignore = "a minute of labs: make check NAME=cells"]
fn the_late_rank_of_a_job_across_cells_is_named_in_every_cell() {
    const HOSTS: usize = 15;
    let _alone = alone();
    let fleet = Fleet::start(HOSTS, 5, Some(6), PATIENCE).expect("hosts");
    let mut cells = in_cells(&fleet, 6);
    assert!(cells.len() >= 4, "{cells:?}");
    // Two hosts in each of the three largest, the first by name first: all clocks are aligned to it.
    cells.sort_by_key(|hosts| std::cmp::Reverse(hosts.len()));
    let mut pairs: Vec<Vec<usize>> = cells[..3].iter().map(|hosts| hosts.iter().copied().take(2).collect()).collect();
    assert!(pairs.iter().all(|pair| pair.len() == 2), "{cells:?}");
    pairs.iter_mut().for_each(|pair| pair.sort_by_key(|host| name_of(*host)));
    pairs.sort_by_key(|pair| name_of(pair[0]));
    let hosts = pairs.concat();
    let names: Vec<String> = hosts.iter().map(|host| name_of(*host)).collect();
    let judged_by = |gone: &[usize]| {
        let left = hosts.iter().zip(&names).filter(|(host, _)| !gone.contains(host));
        judges(JOB, left.map(|(_, name)| name.as_str()))
    };
    let all: Vec<usize> = (0..HOSTS).collect();
    let ranks = Ranks::start(&fleet, &hosts).expect("a job");
    eventually_late(&fleet, &all, "everywhere", hosts.len(), &judged_by(&[]));

    // A judge's agent is killed; neither it nor the reference have the late rank.
    let judge = judged_by(&[])[..JUDGES].iter().find_map(|name| {
        let at = names.iter().position(|of| of == name)?;
        (at >= 2).then_some(hosts[at])
    });
    let judge = judge.expect("three of six judge");
    fleet.apply(&Operation::Kill { host: judge, silent: true }).expect("killed");
    let others: Vec<usize> = all.iter().copied().filter(|host| *host != judge).collect();
    eventually_late(&fleet, &others, "without a judge", hosts.len() - 1, &judged_by(&[judge]));
    fleet.apply(&Operation::Start(judge, Default::default())).expect("it is back");
    fleet.wait_for_all(PATIENCE).expect("all know all");
    eventually_late(&fleet, &all, "with the judge again", hosts.len(), &judged_by(&[]));

    // A cell of the job is cut off, of which the others have heard enough.
    let cut = cells[..3].iter().find(|cell| !cell.contains(&hosts[0])).expect("three cells");
    fleet.apply(&Operation::Partition(cut.iter().copied().collect())).expect("parted");
    let gone: Vec<usize> = hosts.iter().copied().filter(|host| cut.contains(host)).collect();
    let outside: Vec<usize> = all.iter().copied().filter(|host| !cut.contains(host)).collect();
    eventually_late(&fleet, &outside, "without a cell", hosts.len() - gone.len(), &judged_by(&gone));
    fleet.apply(&Operation::Heal).expect("healed");
    fleet.wait_for_all(PATIENCE).expect("all know all again");
    eventually_late(&fleet, &all, "together again", hosts.len(), &judged_by(&[]));
    drop(ranks);
    fleet.shutdown();
}
