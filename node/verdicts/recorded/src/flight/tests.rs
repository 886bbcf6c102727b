//! Dumps of all formats as reports: real ones of PyTorch's gloo (`data`, made by
//! `make check NAME=flight-recorder`), and small ones for what these do not show.

use std::path::Path;

use serde_json::{Value, json};
use verdicts::text;

use super::*;

const S: i64 = 1_000_000_000;
const START: i64 = 1_700_000_000 * S;

/// A call of the default group.
fn call(func: &str, seq: i64, over: bool) -> Value {
    json!({
        "record_id": seq - 1, "pg_id": 0, "process_group": ["0", "default_pg"], "collective_seq_id": seq, "p2p_seq_id": 0,
        "profiling_name": func, "time_created_ns": START + seq * S, "input_sizes": [[100]], "input_dtypes": ["Float"],
        "output_sizes": [[100]], "output_dtypes": ["Float"], "retired": over, "is_p2p": false, "timeout_ms": 600_000,
        "state": if over && func.starts_with("nccl") { "completed" } else { "scheduled" },
    })
}

fn with(mut entry: Value, fields: Value) -> Value {
    let Value::Object(fields) = fields else { panic!("fields") };
    fields.into_iter().for_each(|(name, value)| entry[name] = value);
    entry
}

fn dump(ranks: &str, entries: Vec<Value>) -> Value {
    json!({
        "version": "2.9", "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": ranks}}, "entries": entries,
    })
}

/// The first paragraph of the report on dumps by rank.
fn said(dumps: Vec<Value>) -> String {
    said_of(dumps.into_iter().zip(0..).map(|(dump, rank)| (rank, dump)).collect())
}

fn said_of(dumps: Vec<(i32, Value)>) -> String {
    let mut all = Dumps::default();
    for (rank, value) in dumps {
        all.add(rank, Dump::from_value(value).map_err(|error| error.to_string()));
    }
    first_of(all)
}

fn first_of(dumps: Dumps) -> String {
    let text = text(&dumps.report());
    let said: Vec<&str> = text.lines().take_while(|line| !line.is_empty()).map(str::trim).collect();
    said.join(" ").replace("  ", " ")
}

#[test]
fn the_rank_that_left_a_call_out_is_named() {
    let of = |library: &str| {
        let name = format!("{library}:all_reduce");
        let waits = || dump("[0, 1, 2]", vec![call(&name, 8, true), call(&name, 9, false)]);
        said(vec![waits(), dump("[0, 1, 2]", vec![call(&name, 8, true)]), waits()])
    };
    for library in ["nccl", "gloo", "xccl", "hccl", "c10d"] {
        let said = of(library);
        assert!(said.contains("Rank 1 has not entered all_reduce, the 9th collective of communicator 0 (default_pg): 2 ranks wait for it."), "{library}: {said}");
        assert!(said.starts_with("Nothing moves since 22:13:29 UTC: 2 ranks wait."), "{said}");
    }
}

#[test]
fn calls_of_one_position_that_differ_are_the_cause() {
    let job = |other: Value| {
        let waits = || dump("[0, 1, 2]", vec![call("nccl:all_reduce", 3, false), call("nccl:all_reduce", 4, false)]);
        let said = said(vec![waits(), dump("[0, 1, 2]", vec![other]), waits()]);
        assert!(!said.contains("circle"), "{said}");
        said
    };
    let size = with(call("nccl:all_reduce", 3, false), json!({"input_sizes": [[5, 4]], "output_sizes": [[5, 4]]}));
    let said = job(size);
    assert!(said.contains("Ranks do not agree on the 3rd collective of communicator 0 (default_pg): its size. rank 1: all_reduce, Float, 80 bytes ranks 0,2: all_reduce, Float, 400 bytes"), "{said}");
    assert!(job(call("nccl:_all_gather_base", 3, false)).contains("rank 1: all_gather ranks 0,2: all_reduce"));
    let datatype = with(call("nccl:all_reduce", 3, false), json!({"input_dtypes": ["Double"], "input_sizes": [[50]]}));
    assert!(job(datatype).contains("its datatype. rank 1: all_reduce, Double ranks 0,2: all_reduce, Float"));
}

#[test]
fn what_ended_is_not_waited_in_although_its_state_lags() {
    // Gloo's states stay, and its status comes late.
    let status = json!({"pg_status": {"0": {"last_enqueued_collective": 2, "last_completed_collective": 1}}});
    let over =
        || with(dump("[0, 1]", vec![call("gloo:barrier", 1, true), call("gloo:barrier", 2, true)]), status.clone());
    let said = said(vec![over(), over()]);
    assert!(said.contains("nothing hangs in these dumps: all 4 collectives that 2 ranks recorded are over"), "{said}");
    // A batch of sends and receives ends with its last record, and theirs stay.
    let p2p =
        |name: &str, seq: i64| with(call(name, 1, false), json!({"is_p2p": true, "p2p_seq_id": seq, "record_id": seq}));
    let batch = |peer: i32, own: i32| {
        let (send, recv) = (format!("nccl:send {own}->{peer}"), format!("nccl:recv {own}<-{peer}"));
        let end = with(p2p("nccl:coalesced", 1), json!({"state": "completed", "retired": true}));
        dump("[0, 1]", vec![p2p(&send, 1), p2p(&recv, 1), end])
    };
    let said = said_of(vec![(0, batch(1, 0)), (1, batch(0, 1))]);
    assert!(said.contains("hold no collective"), "{said}");
    // A call of NCCL that was taken off the list and did not end has timed out.
    let timed_out = with(call("nccl:all_reduce", 2, false), json!({"retired": true}));
    let waits = dump("[0, 1]", vec![call("nccl:all_reduce", 1, true), timed_out]);
    let said = said_of(vec![(0, waits), (1, dump("[0, 1]", vec![call("nccl:all_reduce", 1, true)]))]);
    assert!(said.contains("Rank 1 has not entered all_reduce, the 2nd"), "{said}");
}

#[test]
fn who_does_not_get_through_what_others_have_left_is_named_whatever_it_enqueued_after_it() {
    let in_group = |name: &str, seq: i64, at: i64, over: bool| {
        let entry = with(call("nccl:all_reduce", seq, over), json!({"process_group": [name, ""], "record_id": at}));
        with(entry, json!({"time_created_ns": START + at * S, "pg_id": name.len()}))
    };
    let rank = |entries: Vec<Value>| {
        let of = |name: &str| json!({"name": name, "desc": "", "ranks": "[0, 1, 2]"});
        with(dump("", entries), json!({"pg_config": {"a": of("a"), "bb": of("bb")}}))
    };
    // Rank 1's device died in number 4 of a; it has enqueued more than the others.
    let goes_on = || rank(vec![in_group("a", 4, 1, true), in_group("a", 5, 2, false)]);
    let stuck = rank(vec![in_group("a", 4, 1, false), in_group("a", 5, 2, false), in_group("bb", 1, 3, false)]);
    let said = said(vec![goes_on(), stuck, goes_on()]);
    assert!(said.contains("Rank 1 does not get through all_reduce, the 4th collective of communicator a"), "{said}");
    // A call that failed is retired, too, although rank 2 has not come.
    let of = |over: bool| dump("[0, 1, 2]", vec![call("gloo:all_reduce", 1, true), call("gloo:all_reduce", 2, over)]);
    let idle = dump("[0, 1, 2]", vec![call("gloo:all_reduce", 1, true)]);
    let said = said_of(vec![(0, of(false)), (1, of(true)), (2, idle)]);
    assert!(said.contains("Rank 2 has not entered all_reduce, the 2nd"), "{said}");
}

#[test]
fn a_receive_without_a_send_names_the_sender() {
    let p2p = with(call("nccl:recv 0<-1", 1, false), json!({"is_p2p": true, "p2p_seq_id": 1, "record_id": 1}));
    let receives = dump("[0, 1]", vec![call("nccl:all_reduce", 1, true), p2p]);
    let said = said(vec![receives, dump("[0, 1]", vec![call("nccl:all_reduce", 1, true)])]);
    assert!(said.contains("Rank 1 has not sent what is received from it"), "{said}");
}

#[test]
fn a_rank_without_a_dump_is_not_said_to_have_done_anything() {
    let waits = || dump("[0, 1, 2, 3]", vec![call("gloo:all_reduce", 5, false)]);
    let mut dumps = Dumps::default();
    for rank in [0, 3] {
        dumps.add(rank, Ok(Dump::from_value(waits()).unwrap()));
    }
    dumps.add(1, Err("its file is empty".to_owned()));
    let said = first_of(dumps.clone());
    assert!(
        said.contains("No dump of rank 1: its file is empty. No dump of rank 2: there is no file of it."),
        "{said}"
    );
    assert!(!said.contains("not entered") && !said.contains("not heard") && !said.contains("circle"), "{said}");
    // One that has a dump and has not come is named all the same.
    let idle = dump("[0, 1, 2, 3]", vec![call("gloo:all_reduce", 4, true)]);
    dumps.add(2, Ok(Dump::from_value(idle).unwrap()));
    let said = first_of(dumps);
    assert!(
        said.contains("Rank 2 has not entered") && said.contains("No dump of rank 1: its file is empty."),
        "{said}"
    );
}

#[test]
fn groups_are_told_apart_by_their_ranks() {
    let of = |ranks: &str, seq: i64| {
        let entry = with(call("nccl:all_reduce", seq, false), json!({"process_group": ["107", "split"]}));
        with(dump(ranks, vec![entry]), json!({"pg_config": {"107": {"name": "107", "desc": "split", "ranks": ranks}}}))
    };
    // Two groups of one name, in different calls: each waits by itself.
    let said = said(vec![of("[0, 1]", 4), of("[0, 1]", 4), of("[2, 3]", 9), of("2,3", 9)]);
    assert!(said.contains("communicator 107 (split) of ranks [0, 1]") && !said.contains("not entered"), "{said}");
    // Made with other members by one of them.
    let text = {
        let mut all = Dumps::default();
        let each = [of("[0, 1, 2]", 4), of("[0, 1, 3]", 4), of("[0, 1, 2]", 4)];
        each.into_iter().zip(0..).for_each(|(dump, rank)| all.add(rank, Ok(Dump::from_value(dump).unwrap())));
        let lines = text(&all.report());
        lines.lines().map(str::trim).collect::<Vec<_>>().join(" ")
    };
    assert!(text.contains("has other members by its ranks' own account: [0, 1, 2] of ranks [0, 2]"), "{text}");
}

#[test]
fn dumps_of_an_earlier_run_are_left_out() {
    let run = |at_ns: i64, calls: i64, open: bool| {
        let entries = (1..=calls).map(|seq| {
            with(call("gloo:all_reduce", seq, !open || seq < calls), json!({"time_created_ns": at_ns + seq * S}))
        });
        dump("[0, 1, 2]", entries.collect())
    };
    for later in [3_600 * S, 60 * S] {
        let said = said(vec![run(START + later, 3, true), run(START + later, 3, true), run(START, 9, true)]);
        assert!(
            said.contains("No dump of rank 2: the one there is of an earlier run, whose last call was made at"),
            "{said}"
        );
        assert!(!said.contains("not entered") && !said.contains("9th"), "{said}");
    }
}

#[test]
fn all_formats_are_read_and_what_is_something_else_is_refused_in_a_sentence() {
    let entries = || vec![call("nccl:all_reduce", 1, true), call("nccl:all_reduce", 2, false)];
    for minor in 0..=11 {
        let mut waits = with(dump("[0, 1]", entries()), json!({"version": format!("2.{minor}"), "field_of_2077": [1]}));
        if minor < 4 {
            for entry in waits["entries"].as_array_mut().unwrap() {
                let entry = entry.as_object_mut().unwrap();
                for field in ["is_p2p", "p2p_seq_id", "timeout_ms", "record_id"] {
                    entry.remove(field);
                }
            }
        }
        let idle = with(dump("[0, 1]", vec![]), json!({"version": format!("2.{minor}")}));
        let said = said(vec![waits, idle]);
        assert!(said.contains("Rank 1 has not entered all_reduce"), "2.{minor}: {said}");
    }
    let refused = |value: Value| Dump::from_value(value).unwrap_err().to_string();
    assert_eq!(
        refused(json!({"version": "1.5", "entries": []})),
        "a flight recorder dump of format 1.5: formats 2.0 to 2.10 are read"
    );
    assert!(refused(json!({"loss": 0.5})).starts_with("no dump of PyTorch's flight recorder: "));
    assert!(refused(json!([1, 2])).starts_with("no dump of PyTorch's flight recorder: "));
    assert!(refused(json!({"version": "2.9", "entries": 5})).starts_with("a damaged dump"));
    assert!(Dumps::of_job(json!({"0": {"x": 1}})).is_err() && Dumps::of_job(json!({"loss": 0.5})).is_err());
}

#[test]
fn json_with_texts_for_numbers_is_the_same() {
    let waits = json!({
        "version": "2.10", "comm_lib_version": "", "nccl_comm_state": {},
        "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}},
        "pg_status": {"0": {"last_enqueued_collective": "2", "last_started_collective": "-1", "last_completed_collective": "1"}},
        "entries": [call("gloo:all_reduce", 1, true), with(call("gloo:all_reduce", 2, false), json!({"pg_id": "0"}))],
    });
    // A rank that made no call has no list of them.
    let idle = json!({"version": "2.10", "pg_config": waits["pg_config"], "pg_status": {}});
    let said = first_of(Dumps::of_job(json!({"rank_0": waits, "rank_1": idle})).unwrap());
    assert!(said.contains("Rank 1 has not entered all_reduce, the 1st collective"), "{said}");
    assert!(said.contains("rank 0 waits in all_reduce, the 2nd collective"), "{said}");
}

#[test]
fn torchcomms_numbers_all_communicators_in_one_row() {
    let entry = |id: i64, comm: &str, func: &str, over: bool| {
        json!({
            "record_id": id, "pg_id": 0, "process_group": [comm, "ncclx"], "collective_seq_id": id, "p2p_seq_id": 0,
            "profiling_name": func, "time_created_ns": START + id * S, "state": "scheduled", "retired": over, "is_p2p": false,
        })
    };
    let comms = |entries: Vec<Value>| {
        let of = |name: &str| json!({"name": name, "desc": "ncclx", "ranks": "0,1"});
        json!({"version": "2.10", "pg_config": {"a": of("a"), "b": of("b")}, "pg_status": {}, "entries": entries})
    };
    // Rank 1 sent something in between: its calls have other numbers.
    let one = comms(vec![entry(0, "a", "nccl:all_reduce", true), entry(1, "b", "nccl:all_reduce", false)]);
    let other = comms(vec![
        entry(0, "a", "nccl:all_reduce", true),
        entry(1, "a", "nccl:send", true),
        entry(2, "a", "nccl:all_reduce", false),
    ]);
    let said = said(vec![one, other]);
    assert!(said.contains("all_reduce, the 1st collective of communicator b (ncclx)"), "{said}");
    assert!(said.contains("all_reduce, the 2nd collective of communicator a (ncclx)"), "{said}");
}

/// The reports on the dumps of PyTorch's gloo that `make check NAME=flight-recorder` made, as JSON.
#[test]
fn real_dumps_are_reported_as_they_were() {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("data");
    let mut report = String::new();
    let mut cases: Vec<_> = std::fs::read_dir(&data).unwrap().map(|entry| entry.unwrap().path()).collect();
    cases.sort();
    for case in cases {
        let mut all = Dumps::default();
        for rank in 0..4 {
            let json = std::fs::read_to_string(case.join(format!("rank_{rank}.json"))).unwrap();
            all.add(rank, Ok(Dump::from_value(serde_json::from_str(&json).unwrap()).unwrap()));
        }
        report += &format!("# {}\n{}\n", case.file_name().unwrap().to_string_lossy(), text(&all.report()));
    }
    let times = |line: &str| {
        let words = line.split(' ').map(|word| if word.matches(':').count() == 2 { "[time]" } else { word });
        words.collect::<Vec<_>>().join(" ")
    };
    let report: String = report.lines().map(|line| times(line) + "\n").collect();
    insta::assert_snapshot!(report);
}
