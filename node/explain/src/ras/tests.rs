use std::time::Duration;

use proptest::prelude::*;

use super::*;

fn parse(answer: &[u8]) -> Result<Status, RasError> {
    super::parse(answer, Instant::now() + Duration::from_secs(3_600))
}

/// As NCCL 2.27 and 2.28 print it: one rank behind in one function, one that does not answer.
const TEXT: &str = "NCCL version 2.28.3 compiled with CUDA 12.9
CUDA runtime version 12090, driver version 12090

Job summary
===========

  Nodes  Processes         GPUs  Processes     GPUs
(total)   per node  per process    (total)  (total)
      2          4            1          8        8

Communicators... (0.12s)
=============

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
    0         1         2         4         8         7   RUNNING  INCOMPLETE,MISMATCH

Errors
======

INCOMPLETE
  Missing communicator data from 1 job process
  Process 4117 on node 10.0.0.2 managing GPU 3

#0-0 (00b6c1aeba2b2fd7) INCOMPLETE
  Missing communicator data from 1 rank
  Rank 7 -- GPU 3 managed by process 4117 on node 10.0.0.2

Warnings
========

#0-0 (00b6c1aeba2b2fd7) MISMATCH
  Communicator ranks have different AllReduce operation counts
  6 ranks have launched up to operation 42
  Rank 5 has launched up to operation 41 -- GPU 1 managed by process 4115 on node 10.0.0.2

";

#[test]
fn a_rank_that_is_behind_and_one_that_does_not_answer() {
    let status = parse(TEXT.as_bytes()).unwrap();
    assert_eq!((status.version.as_deref(), status.silent_processes), (Some("2.28.3"), 1));
    assert_eq!(
        status.sentences(),
        [
            "1 process of the job did not answer",
            "rank 5 has launched 41 AllReduce operations on communicator 00b6c1aeba2b2fd7, 6 ranks have launched 42",
            "of communicator 00b6c1aeba2b2fd7 rank 7 (process 4117) does not answer",
        ]
    );
}

#[test]
fn of_2_24_which_counts_all_collectives_together() {
    let warnings = "NCCL version 2.24.3 compiled with CUDA 12.2\n\nWarnings\n========\n\n#0-0 (1f) MISMATCH\n  Communicator \
        ranks have different status\n  3 ranks have status RUNNING\n  Rank 2 has status FINALIZE -- GPU 0 managed by process 9 \
        on node n1\n  Communicator ranks have different collective operation counts\n  2 ranks have launched up to operation 9\n  \
        2 ranks have not launched any operations\n  Rank 1 -- GPU 1 managed by process 8 on node n1\n  Rank 3 -- [process \
        information not found]\n\n";
    let status = parse(warnings.as_bytes()).unwrap();
    let groups = &status.communicators[0].launched["collective"];
    assert_eq!((groups[0].operations, groups[0].ranks, groups[0].listed.len()), (9, 2, 0));
    assert_eq!((groups[1].operations, groups[1].ranks, groups[1].listed.clone()), (0, 2, vec![1, 3]));
    let said = status.sentences();
    assert_eq!(said.len(), 1, "{said:?}");
    assert!(said[0].starts_with("ranks 1, 3 have launched 0 collective operations on communicator 000000000000001f"));
}

fn rank(rank: u32, reduced: u64) -> String {
    format!(
        r#"{{"rank": {rank}, "host": "10.0.0.1", "pid": {}, "cuda_dev": 0, "nvml_dev": 0, "status": {{"init_state": 0,
        "async_error": 0, "finalize_called": false, "destroy_flag": false, "abort_flag": false}},
        "collective_counts": {{"Broadcast": 1, "AllReduce": {reduced}}}}}"#,
        100 + rank
    )
}

fn json(hash: &str, size: u32, ranks: &[String], missing: &str) -> String {
    format!(
        r#"{{"nccl_version": "2.29.1", "cuda_runtime_version": 13000, "cuda_driver_version": 13000, "timestamp": "2026-01-02 03:04:05",
        "communicators_count": 1, "communicators": [{{"hash": "{hash}", "secondary_hash": "0x1:0x2", "size": {size},
        "ranks_count": 3, "missing_ranks_count": 1, "ranks": [{}], "missing_ranks": [{missing}]}}],
        "ras": {{"collection_time_sec": 0.012, "timeouts_count": 0}}}}"#,
        ranks.join(",")
    )
}

#[test]
fn the_same_as_json() {
    let missing = |unresponsive: bool| {
        format!(
            r#"{{"rank": 3, "host": "10.0.0.2", "pid": 4117, "cuda_dev": 3, "nvml_dev": 3,
            "status": {{"unresponsive": {unresponsive}, "considered_dead": false}}}}"#
        )
    };
    let ranks = [rank(0, 42), rank(1, 41), rank(2, 42)];
    let status = parse(json("0xb6c1aeba2b2fd7", 4, &ranks, &missing(true)).as_bytes()).unwrap();
    assert_eq!(
        status.sentences(),
        [
            "rank 1 has launched 41 AllReduce operations on communicator 00b6c1aeba2b2fd7, 2 ranks have launched 42",
            "of communicator 00b6c1aeba2b2fd7 rank 3 (process 4117) does not answer",
        ]
    );
    let status = parse(json("0x1", 4, &ranks, &missing(false)).as_bytes()).unwrap();
    assert!(status.sentences()[1].ends_with("rank 3 (process 4117) has left it"), "{:?}", status.sentences());
    let same = parse(json("0x1", 4, &[rank(0, 7), rank(1, 7)], "").as_bytes()).unwrap();
    assert!(same.sentences().is_empty(), "nobody is behind");
}

#[test]
fn what_a_hostile_process_says_is_refused_or_has_no_effect() {
    let form = |answer: String| matches!(parse(answer.as_bytes()), Err(RasError::Form(_)));
    assert!(form("\u{1b}[2Jroot@host".to_owned()) && form(String::new()));
    assert!(form(json("0xzz", 4, &[rank(0, 1)], "")) && form(json("0x+1", 4, &[rank(0, 1)], "")));
    assert!(form(json("0x1", 4, &[rank(9, 1)], "")), "a rank beyond its communicator");
    assert!(form(json("0x1", 4_000_000_000, &[rank(9, 1)], "")));
    assert!(form(json("0x1", 4, &[rank(0, 1).replace("AllReduce", "\\u001b[31mAll")], "")), "a name that is none");
    assert!(form(json("0x1", 4, &[rank(0, 1).replace(": 1}", ": 99999999999999999999}")], "")));
    assert!(form("[".repeat(1 << 20)), "nested");
    let cut = json("0x1", 4, &[rank(0, 1)], "");
    assert_eq!(parse(&cut.as_bytes()[..cut.len() - 40]), Err(RasError::Cut));
    assert_eq!(parse(&TEXT.as_bytes()[..TEXT.len() / 2]), Err(RasError::Cut));
    assert_eq!(parse(&vec![b' '; MOST_BYTES + 1]), Err(RasError::TooLong));
    let odd = TEXT.replace("AllReduce", "\u{1b}[31mAll").replace("4117", "4117; rm -rf /");
    let said = parse(odd.as_bytes()).unwrap().sentences();
    assert!(said.iter().all(|sentence| !sentence.contains('\u{1b}') && !sentence.contains("rm")), "{said:?}");
    let huge = TEXT.replace("operation 42", "operation 99999999999999999999").replace("Rank 7", "Rank 4294967295");
    assert_eq!(parse(huge.as_bytes()).unwrap().sentences().len(), 2, "numbers that are none are not said");
    let many: String =
        (0..99).map(|at| format!("#0-{at} ({at:x}) INCOMPLETE\n  Missing communicator data from 2 ranks\n")).collect();
    let said = parse(format!("NCCL version 2.28.3\n{many}Warnings\n").as_bytes()).unwrap().sentences();
    assert!(said.len() == 16 && said[15] == "and 84 more differences", "{said:?}");
}

/// With a look through all communicators for each heading this is ten thousand million steps, and
/// it does not end while anybody waits.
#[test]
fn headings_that_repeat_cost_no_more_than_their_length() {
    const KNOWN: usize = 16_384;
    const HEADINGS: usize = 600_000;
    let mut answer = "NCCL version 2.28.3\n".to_owned();
    for at in 0..HEADINGS {
        answer += &format!("#0-0 ({:x}) MISMATCH\n", at % KNOWN);
    }
    answer += "#0-0 (7) INCOMPLETE\n  Rank 5 -- GPU 1\nWarnings\n";
    assert!(answer.len() < MOST_BYTES, "{}", answer.len());
    let status = parse(answer.as_bytes()).unwrap();
    let order = status.communicators.iter().map(|of| of.hash);
    assert!(order.eq(0..KNOWN as u64), "each stays where it was named first: nothing is moved");
    let absent: Vec<usize> = status.communicators.iter().map(|of| of.absent.len()).collect();
    assert!((absent[7], absent.iter().sum::<usize>()) == (1, 1), "what follows a heading is that communicator's");
    let one_more = answer.replace("Warnings", "#0-0 (ffffff) MISMATCH\nWarnings");
    assert_eq!(parse(one_more.as_bytes()), Err(RasError::TooLong));
    let past = Instant::now().checked_sub(Duration::from_millis(1)).unwrap();
    assert_eq!(super::parse(answer.as_bytes(), past), Err(RasError::Late));
}

proptest! {
    #[test]
    fn any_answer_gives_few_printable_sentences_or_an_error(
        lines in prop::collection::vec(prop::sample::select(TEXT.lines().collect::<Vec<_>>()), 0..60),
        noise in prop::collection::vec(any::<u8>(), 0..40),
        at in any::<prop::sample::Index>(),
    ) {
        let mut answer = format!("NCCL version 2.28.3\n{}\nWarnings\n", lines.join("\n")).into_bytes();
        let at = at.index(answer.len());
        answer.splice(at..at, noise);
        if let Ok(status) = parse(&answer) {
            let said = status.sentences();
            prop_assert!(said.len() <= 16);
            prop_assert!(said.iter().all(|sentence| sentence.len() < 400 && sentence.chars().all(|c| c == ' ' || c.is_ascii_graphic())));
        }
    }
}
