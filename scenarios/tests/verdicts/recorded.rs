//! Jobs that others recorded: the traces of ByteDance's straggler study and the hangs of NVIDIA's
//! resiliency extension. They are not part of this project: the tests run where the folder with
//! them lies beside the checkout, and say so where it does not.

use std::collections::{BTreeMap, BTreeSet};

use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use recorded::{Dumps, bytedance_csv};
use verdicts::{Report, Rules, Verdict, analyse};

/// A recorded job's file below the folder of recordings; none, said on standard error, where there
/// is no such folder. Where the folder is there, so has the file to be.
fn recorded(name: &str) -> Option<String> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../shared/data/straggler");
    if !std::path::Path::new(folder).exists() {
        eprintln!("skipped: no recorded jobs beside this checkout");
        return None;
    }
    let file = format!("{folder}/{name}");
    // Hands on what is not packed.
    let unpacked = std::process::Command::new("gzip").args(["-dcf", &file]).output().expect("gzip runs");
    assert!(unpacked.status.success(), "{file}: {}", String::from_utf8_lossy(&unpacked.stderr));
    Some(String::from_utf8(unpacked.stdout).expect("text"))
}

/// The report on a flight recorder's dump of all ranks.
fn of_dump(json: &str) -> Report {
    Dumps::of_job(serde_json::from_str(json).expect("JSON")).expect("as recorded").report()
}

#[test]
fn the_recorded_slow_replica_is_slow_because_of_rank_0() {
    let Some(csv) = recorded("bytedance/csv/trace-AR.csv.gz") else { return };
    let report = analyse(&bytedance_csv(&csv).expect("as recorded"), &Rules::default());
    assert_eq!(report.verdict.named_ranks(), [0], "{:#?}", report.verdict);
    let Verdict::Rank { held_up, .. } = &report.verdict else { unreachable!() };
    assert_eq!(held_up.iter().map(|h| h.rank).collect::<Vec<_>>(), [16, 32, 48], "its replica's later stages");
    // The study simulates the job with the mean of all in place of every single time: 23.48 s a
    // step instead of 46.33, 1.973 times as long. Rank 0 computes for 26.1 s longer than its peers,
    // and 25.4 s longer than any other rank, without which no step can be; idle time of the
    // pipeline takes up a part of that: the cost is an upper bound.
    let step = report.cost.per_step.expect("as recorded");
    assert_eq!((step.steps, step.collectives), (44, 2));
    assert!((46.0e9..47.5e9).contains(&(step.step_ns as f64)), "{step:?}");
    assert!((22.85e9..25.5e9).contains(&(step.wasted_ns as f64)), "{step:?}");
    assert!((1.973..2.21).contains(&step.slowdown.expect("as recorded")), "at most: {step:?}");
    assert!(report.cost.upper_bound);
}

/// A recorded job told differently: other names of ranks, other clocks, ranks and steps missing,
/// another pace.
struct Altered {
    names: BTreeMap<i64, i64>,
    shifts_s: BTreeMap<i64, f64>,
    dropped: Vec<i64>,
    steps: Vec<i64>,
    pace: f64,
    shuffled: u64,
}

impl Altered {
    fn draw(rng: &mut StdRng, ranks: &[i64], steps: &[i64], dropped: Vec<i64>) -> Self {
        let mut numbers: Vec<i64> = (0..4 * ranks.len() as i64).collect();
        numbers.shuffle(rng);
        let mut kept = steps.to_vec();
        kept.shuffle(rng);
        kept.truncate(steps.len() - rng.random_range(0..=steps.len() / 3));
        Self {
            names: ranks.iter().copied().zip(numbers).collect(),
            shifts_s: ranks.iter().map(|r| (*r, rng.random_range(-50.0..50.0))).collect(),
            dropped,
            steps: kept,
            pace: 10f64.powf(rng.random_range(-1.0..1.0)),
            shuffled: rng.random(),
        }
    }

    fn apply(&self, csv: &str) -> String {
        let mut lines = csv.lines();
        let header = lines.next().expect("as recorded");
        let mut kept: Vec<String> = lines.filter_map(|line| self.line(line)).collect();
        kept.shuffle(&mut StdRng::seed_from_u64(self.shuffled));
        format!("{header}\n{}\n", kept.join("\n"))
    }

    fn line(&self, line: &str) -> Option<String> {
        let mut fields: Vec<String> = line.split(',').map(str::to_owned).collect();
        let (rank, step): (i64, i64) =
            (fields[2].parse().expect("as recorded"), fields[3].parse().expect("as recorded"));
        if self.dropped.contains(&rank) || !self.steps.contains(&step) {
            return None;
        }
        fields[2] = self.names[&rank].to_string();
        fields[5] = (fields[5].parse::<f64>().expect("as recorded") * self.pace + self.shifts_s[&rank]).to_string();
        fields[6] = (fields[6].parse::<f64>().expect("as recorded") * self.pace).to_string();
        Some(fields.join(","))
    }
}

/// Ranks and steps of a recording.
fn contents(csv: &str) -> (Vec<i64>, Vec<i64>) {
    let column = |at: usize| {
        let all: BTreeSet<i64> = csv
            .lines()
            .skip(1)
            .map(|l| l.split(',').nth(at).expect("as recorded").parse().expect("as recorded"))
            .collect();
        all.into_iter().collect()
    };
    (column(2), column(3))
}

#[test]
fn a_slow_rank_stays_the_one_however_it_is_told() {
    slow_rank_altered(8);
}

#[test]
#[ignore = "minutes: the same with many more alterations"]
fn a_slow_rank_stays_the_one_in_hundreds_of_tellings() {
    slow_rank_altered(200);
}

fn slow_rank_altered(seeds: u64) {
    let Some(csv) = recorded("bytedance/csv/trace-AR.csv.gz") else { return };
    let (ranks, steps) = contents(&csv);
    let whole = analyse(&bytedance_csv(&csv).expect("as recorded"), &Rules::default());
    let per_step = whole.cost.gpu_seconds_wasted / steps.len() as f64;
    for seed in 0..seeds {
        let mut rng = StdRng::seed_from_u64(seed);
        // Up to a quarter of the ranks is missing, not the culprit; then the culprit itself.
        let mut others: Vec<i64> = ranks.iter().copied().filter(|r| *r != 0).collect();
        others.shuffle(&mut rng);
        others.truncate(rng.random_range(0..=ranks.len() / 4));
        let altered = Altered::draw(&mut rng, &ranks, &steps, others);
        let report = analyse(&bytedance_csv(&altered.apply(&csv)).expect("as recorded"), &Rules::default());
        let what = format!("seed {seed}, without ranks {:?}, {} steps", altered.dropped, altered.steps.len());
        assert_eq!(report.verdict.named_ranks(), [altered.names[&0] as i32], "{what}: {:#?}", report.verdict);
        if altered.dropped.is_empty() {
            let wasted = report.cost.gpu_seconds_wasted / altered.steps.len() as f64 / altered.pace;
            assert!((0.9..1.1).contains(&(wasted / per_step)), "{what}: {wasted} s a step instead of {per_step}");
        }
        let mut without = altered.dropped;
        without.push(0);
        let altered = Altered::draw(&mut rng, &ranks, &steps, without);
        let report = analyse(&bytedance_csv(&altered.apply(&csv)).expect("as recorded"), &Rules::default());
        assert_eq!(report.verdict.named_ranks(), [] as [i32; 0], "seed {seed}, without {:?}", altered.dropped);
    }
}

#[test]
fn a_heavy_stage_stays_one_however_it_is_told() {
    stage_altered(20);
}

#[test]
#[ignore = "minutes: the same with many more alterations"]
fn a_heavy_stage_stays_one_in_hundreds_of_tellings() {
    stage_altered(500);
}

fn stage_altered(seeds: u64) {
    let Some(csv) = recorded("bytedance/csv/trace-ST.csv.gz") else { return };
    let (ranks, steps) = contents(&csv);
    for seed in 0..seeds {
        let mut rng = StdRng::seed_from_u64(seed);
        let mut dropped = ranks.clone();
        dropped.shuffle(&mut rng);
        dropped.truncate(rng.random_range(0..3));
        let altered = Altered::draw(&mut rng, &ranks, &steps, dropped);
        let report = analyse(&bytedance_csv(&altered.apply(&csv)).expect("as recorded"), &Rules::default());
        let what = format!("seed {seed}, without ranks {:?}, {} steps", altered.dropped, altered.steps.len());
        assert_eq!(report.verdict.named_ranks(), [] as [i32; 0], "{what}: {:#?}", report.verdict);
        // One replica of the slow stage alone could be a slow rank: it is not called one, nor a
        // stage.
        if !altered.dropped.iter().any(|r| [6, 7].contains(r)) {
            let Verdict::StageImbalance { ranks, .. } = &report.verdict else {
                panic!("{what}: {:#?}", report.verdict)
            };
            let mut slow: Vec<i64> = ranks.iter().map(|r| r.rank.into()).collect();
            slow.sort_unstable();
            let mut truth = [altered.names[&6], altered.names[&7]];
            truth.sort_unstable();
            assert_eq!(slow, truth, "{what}");
        }
    }
}

/// A recorded hang with ranks renamed and some not heard; also the names that the groups give to
/// ranks.
fn altered_hang(dump: &str, names: &[i32], dropped: &[i32]) -> String {
    let mut job: serde_json::Value = serde_json::from_str(dump).expect("as recorded");
    let ranks = job.as_object_mut().expect("as recorded");
    let renamed: serde_json::Map<String, serde_json::Value> = std::mem::take(ranks)
        .into_iter()
        .filter(|(rank, _)| !dropped.contains(&rank.parse().expect("as recorded")))
        .map(|(rank, mut dump)| {
            for group in dump["pg_config"].as_object_mut().expect("as recorded").values_mut() {
                let mut members: Vec<i32> =
                    serde_json::from_str(group["ranks"].as_str().expect("as recorded")).expect("as recorded");
                members.iter_mut().for_each(|r| *r = names[*r as usize]);
                group["ranks"] = format!("{members:?}").into();
            }
            (names[rank.parse::<usize>().expect("as recorded")].to_string(), dump)
        })
        .collect();
    serde_json::Value::from(renamed).to_string()
}

#[test]
fn recorded_hangs_stay_the_same_with_ranks_renamed_and_missing() {
    for (name, truth) in [("gpu_error_1st", [12, 14]), ("lock_gil_2nd", [10, 15])] {
        let Some(dump) = recorded(&format!("nvrx-hangs/json/{name}.json")) else { return };
        for seed in 0..6 {
            let mut rng = StdRng::seed_from_u64(seed);
            let mut names: Vec<i32> = (0..16).collect();
            names.shuffle(&mut rng);
            let mut dropped: Vec<i32> = (0..16).filter(|r| !truth.contains(r)).collect();
            dropped.shuffle(&mut rng);
            dropped.truncate((seed % 3) as usize);
            let report = of_dump(&altered_hang(&dump, &names, &dropped));
            let Verdict::Hang(hang) = &report.verdict else { panic!("{name}: {:#?}", report.verdict) };
            let mut missing: Vec<i32> = hang.missing.iter().map(|m| m.who.rank).collect();
            missing.sort_unstable();
            let mut expected = truth.map(|r| names[r as usize]);
            expected.sort_unstable();
            assert_eq!(missing, expected, "{name}, seed {seed}, without {dropped:?}");
        }
    }
}

#[test]
fn the_recorded_stage_imbalance_names_no_rank() {
    let Some(csv) = recorded("bytedance/csv/trace-ST.csv.gz") else { return };
    let report = analyse(&bytedance_csv(&csv).expect("as recorded"), &Rules::default());
    let Verdict::StageImbalance { ranks, ratio, .. } = &report.verdict else { panic!("{:#?}", report.verdict) };
    assert_eq!(ranks.iter().map(|r| r.rank).collect::<Vec<_>>(), [6, 7]);
    assert!((1.5..1.8).contains(ratio), "{ratio}");
}

#[test]
fn the_recorded_hangs_are_named_exactly() {
    for (name, truth) in [("gpu_error_1st", [12, 14]), ("lock_gil_2nd", [10, 15])] {
        let Some(dump) = recorded(&format!("nvrx-hangs/json/{name}.json")) else { return };
        let report = of_dump(&dump);
        let Verdict::Hang(hang) = &report.verdict else { panic!("{name}: {:#?}", report.verdict) };
        let mut missing: Vec<i32> = hang.missing.iter().map(|m| m.who.rank).collect();
        missing.sort_unstable();
        assert_eq!(missing, truth, "{name}");
    }
}
