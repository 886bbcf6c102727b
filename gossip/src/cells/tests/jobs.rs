//! Who runs which job, as far as other cells are told.

use super::*;
use crate::cells::known::{Ballot, count_jobs};
use crate::cells::people::sum_up;

fn of_jobs(jobs: impl IntoIterator<Item = String>) -> Tells {
    Tells { jobs: jobs.into_iter().collect(), ..Tells::default() }
}

/// A cell of so many mates, of which each tells of these jobs; its roll, and the mates.
fn cell_of(jobs: Vec<Tells>) -> (Roll, Vec<Mate>) {
    let mates: Vec<Mate> = jobs
        .into_iter()
        .zip(of_half(true))
        .map(|(tells, n)| Mate::new(settled(n).card().clone(), MemberState::Live, tells))
        .collect();
    (Roll::new(mates.iter().map(|mate| Arc::clone(&mate.entry)).collect()), mates)
}

fn named(roll: &Roll, mates: &[Mate], most: usize, elsewhere: &[&str]) -> Vec<String> {
    let elsewhere = elsewhere.iter().copied().collect();
    sum_up(roll, mates.iter(), most, &elsewhere).jobs.into_iter().map(|(job, _)| job).collect()
}

#[test]
fn a_job_of_an_impossible_name_does_not_silence_the_cell() {
    let (mut own, mate) = (settled(of_half(true).next().unwrap()), settled(of_half(true).nth(1).unwrap()));
    let tells = of_jobs(["x".repeat(65), String::new(), "7".to_owned()]);
    let mates = vec![own.mate(mate.card().clone(), MemberState::Live, tells).unwrap()];
    own.set_mates(mates, SECOND);
    own.tick(2 * SECOND);
    let report = &own.table.own_report(own.cell(), own.entry.name_hash).expect("it reports on its cell").report;
    assert_eq!(report.jobs.iter().map(|(job, _)| job.as_str()).collect::<Vec<_>>(), ["7"]);
}

#[test]
fn one_member_of_many_jobs_does_not_displace_those_of_others() {
    let many = of_jobs((0..300).map(|n| format!("{n:03}")));
    let (roll, mates) = cell_of(vec![many, of_jobs(["y".to_owned()]), of_jobs(["z".to_owned()])]);
    let jobs = named(&roll, &mates, 8, &[]);
    assert!(jobs.len() == 8 && jobs.ends_with(&["y".to_owned(), "z".to_owned()]), "{jobs:?}");
}

#[test]
fn of_too_many_jobs_those_are_named_that_other_cells_name() {
    let (roll, mates) = cell_of((0..8).map(|n| of_jobs([format!("j{n}"), format!("k{n}")])).collect());
    let jobs = named(&roll, &mates, 2, &["k5", "k7", "none"]);
    assert_eq!(jobs, ["k5", "k7"]);
}

#[test]
fn a_dead_host_is_a_host_of_its_job() {
    let (roll, mut mates) = cell_of(vec![of_jobs(["7".to_owned()]), of_jobs(["7".to_owned()])]);
    mates[1] = mates[1].in_state(MemberState::Dead);
    let summary = sum_up(&roll, mates.iter(), MAX_JOBS, &HashSet::new());
    assert_eq!((summary.living.len(), summary.jobs[0].1.iter().count()), (1, 2));
}

#[test]
fn one_delegate_that_lies_about_jobs_changes_nothing() {
    let high: Vec<u16> = of_half(true).take(3).collect();
    let (roll, _) = roll_of(&high);
    let report = |author: u16, jobs: &[&str], more_jobs: u32| {
        let jobs = jobs.iter().map(|job| ((*job).to_owned(), Hosts::of([true, false, false].into_iter()))).collect();
        Report { jobs, more_jobs, ..report_of(author, 1, &roll, [true; 3].into_iter()) }
    };
    let reports = [report(high[0], &["false"], 0), report(high[1], &["7"], 2), report(high[2], &["7"], 3)];
    let ballots: Vec<Ballot<'_>> = reports.iter().map(|report| Ballot { roll: &roll, report, steady: true }).collect();
    let (jobs, more) = count_jobs(&ballots);
    let jobs: Vec<(&str, usize)> = jobs.iter().map(|(job, hosts)| (job.as_str(), hosts.len())).collect();
    assert_eq!((jobs, more), (vec![("7", 1)], 2));
    let (_, more) = count_jobs(&ballots[..2]);
    assert_eq!(more, 2, "there may be more");
    // Nor does one that votes twice.
    let twice = Report { jobs: vec![("7".into(), Hosts::Few(vec![1, 1]))], ..reports[0].clone() };
    let again = Report { jobs: [reports[0].jobs.clone(), reports[0].jobs.clone()].concat(), ..reports[0].clone() };
    for report in [twice, again] {
        assert!(!report.is_good(&Sealing::default()));
    }
}

#[test]
fn a_cell_that_names_not_all_its_jobs_is_known() {
    let high: Vec<u16> = of_half(true).take(3).collect();
    let (mut reader, (roll, seals)) = (settled(of_half(false).next().unwrap()), roll_of(&high));
    let said = Report { more_jobs: 1, seal: String::new(), ..report_of(high[0], 1, &roll, [true; 3].into_iter()) };
    tell(&mut reader, high[0], &news(said.sealed(&settled(high[0]).sealing)));
    tell(&mut reader, high[0], &cards(&roll, |card| seals[&card.name].clone()));
    assert_eq!(reader.unnamed_jobs().collect::<Vec<_>>(), [settled(high[0]).cell()]);
}
