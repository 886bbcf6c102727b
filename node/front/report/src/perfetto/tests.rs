//! What was written is read again as Perfetto reads it: packets by time, those of one time in the
//! order of the file, a stack of open slices a track.
#![allow(clippy::unwrap_used, reason = "tests only")]

use std::collections::{BTreeMap, HashMap};

use proptest::prelude::*;
use prost::Message;
use query_planner::Value;

use super::clock::NodeTime;
use super::counters::{Counters, SAMPLES};
use super::layout::{Layout, Who};
use super::proto::{
    AnnotationValue, COUNTER, CounterValue, INSTANT, NameField, SLICE_BEGIN, SLICE_END, STATE_CLEARED, Trace,
    TrackDescriptor,
};
use super::tables::{TABLES, Table};
use super::write::Writer;
use super::{sequence, verdict};

/// A slice or point as it was read: track, begin, length, name, arguments, flow.
#[derive(Debug, Clone, PartialEq)]
struct Seen {
    track: u64,
    ts: u64,
    dur: Option<u64>,
    name: String,
    category: String,
    args: BTreeMap<String, String>,
    flow: Option<u64>,
}

#[derive(Debug, Default)]
struct Read {
    tracks: HashMap<u64, TrackDescriptor>,
    slices: Vec<Seen>,
    values: Vec<(u64, u64, f64)>,
}

fn read(bytes: &[u8]) -> Read {
    let mut packets = Trace::decode(bytes).unwrap().packet;
    let mut read = Read::default();
    // Names are defined in the order of the file.
    let mut names: [HashMap<(u32, u64), String>; 4] = Default::default();
    for packet in &packets {
        let writer = packet.trusted_packet_sequence_id.unwrap();
        if packet.sequence_flags.unwrap() & STATE_CLEARED != 0 {
            names.iter_mut().for_each(|names| names.retain(|(of, _), _| *of != writer));
        }
        if let Some(new) = &packet.interned_data {
            let lists = [
                &new.event_categories,
                &new.event_names,
                &new.debug_annotation_names,
                &new.debug_annotation_string_values,
            ];
            for (names, list) in names.iter_mut().zip(lists) {
                names.extend(list.iter().map(|named| ((writer, named.iid.unwrap()), named.name.clone().unwrap())));
            }
        }
        if let Some(track) = &packet.track_descriptor {
            let known = read.tracks.insert(track.uuid.unwrap(), (**track).clone());
            assert!(known.is_none_or(|known| known == **track), "one number, two tracks");
        }
    }
    packets.sort_by_key(|packet| packet.timestamp);
    let mut open: HashMap<u64, Vec<usize>> = HashMap::new();
    for packet in packets {
        let writer = packet.trusted_packet_sequence_id.unwrap();
        let Some(event) = packet.track_event else { continue };
        let (track, ts) = (event.track_uuid.unwrap(), packet.timestamp.unwrap());
        assert!(read.tracks.contains_key(&track), "events are on declared tracks");
        let of = |kind: usize, iid: u64| names[kind][&(writer, iid)].clone();
        match event.r#type.unwrap() {
            SLICE_END => {
                let at = open.get_mut(&track).unwrap().pop().unwrap();
                read.slices[at].dur = Some(ts - read.slices[at].ts);
            }
            COUNTER => read.values.push((
                track,
                ts,
                match event.counter_value_field.unwrap() {
                    CounterValue::Integer(int) => int as f64,
                    CounterValue::Double(real) => real,
                },
            )),
            kind => {
                let args = event.debug_annotations.iter().map(|arg| {
                    let value = match arg.value.clone().unwrap() {
                        AnnotationValue::Int(int) => int.to_string(),
                        AnnotationValue::Double(real) => real.to_string(),
                        AnnotationValue::String(text) => text,
                        AnnotationValue::Pointer(bits) => format!("{bits:x}"),
                        AnnotationValue::StringIid(iid) => of(3, iid),
                    };
                    (of(2, arg.name_iid.unwrap()), value)
                });
                if kind == SLICE_BEGIN {
                    open.entry(track).or_default().push(read.slices.len());
                }
                read.slices.push(Seen {
                    track,
                    ts,
                    dur: (kind == INSTANT).then_some(0),
                    name: match event.name_field.clone().unwrap() {
                        NameField::NameIid(iid) => of(1, iid),
                        NameField::Name(name) => name,
                    },
                    category: of(0, event.category_iids[0]),
                    args: args.collect(),
                    flow: event.flow_ids.first().copied(),
                });
            }
        }
    }
    read
}

fn table(name: &str) -> &'static Table {
    TABLES.iter().find(|table| table.name == name).unwrap()
}

fn int(value: impl Into<Option<i64>>) -> Value {
    value.into().map_or(Value::Null, Value::Integer)
}

fn text(text: &str) -> Value {
    Value::Text(text.as_bytes().to_vec())
}

/// A row of `table` with these first values, and arguments by name.
fn row(
    table: &Table,
    node: &str,
    (ts, dur): (i64, Option<i64>),
    (pid, tid): (i64, i64),
    args: &[(&str, Value)],
) -> Vec<Value> {
    let mut row = vec![text(node), int(ts), int(dur), int(pid), int(tid), Value::Null];
    row.extend(
        table
            .args
            .iter()
            .map(|name| args.iter().find(|(own, _)| own == name).map_or(Value::Null, |(_, value)| value.clone())),
    );
    row
}

fn written(
    times: BTreeMap<String, NodeTime>,
    who: HashMap<(String, i64), Who>,
    write: impl FnOnce(&mut Layout<Vec<u8>>),
) -> Vec<u8> {
    let mut layout = Layout::new(Writer::new(Vec::new(), 7, 1).unwrap(), times, who);
    write(&mut layout);
    layout.end().unwrap()
}

fn rows(table: &Table, rows: &[Vec<Value>]) -> Vec<u8> {
    written(BTreeMap::new(), HashMap::new(), |layout| {
        layout.rows(table, rows.iter().map(|row| table.row(row).unwrap()).collect()).unwrap();
    })
}

#[test]
fn the_calls_of_one_collective_share_a_flow_and_others_do_not() {
    let calls = table("collectives");
    let call = |node: &str, pid: i64, func: &str, comm: Option<i64>, seq: i64| {
        let args = [("func", text(func)), ("comm_hash", int(comm)), ("seq", int(seq)), ("bytes", int(64))];
        row(calls, node, (1_000 * seq + pid, Some(500)), (pid, pid), &args)
    };
    let all = [
        call("n1", 10, "all_reduce", Some(-1), 4),
        call("n2", 10, "all_reduce", Some(-1), 4),
        call("n1", 10, "all_reduce", Some(-1), 5),
        call("n1", 10, "send", Some(-1), 6),
        call("n1", 10, "all_reduce", None, 7),
    ];
    // Each node's rows in a file of their own, concatenated.
    let mut files = rows(calls, &all[..1]);
    files.extend(rows(calls, &all[1..]));
    let read = read(&files);
    let flows: Vec<Option<u64>> = read.slices.iter().map(|seen| seen.flow).collect();
    assert!(flows[0].is_some() && flows[0] == flows[1] && flows[2].is_some() && flows[0] != flows[2], "{flows:?}");
    assert_eq!(&flows[3..], [None, None]);
    assert_eq!(read.slices[0].args["comm_hash"], "ffffffffffffffff");
    assert_eq!((read.slices[0].name.as_str(), read.slices[0].category.as_str()), ("all_reduce", "collectives"));
    // Two hosts have the same process id: still two processes.
    let processes: Vec<i32> = read.tracks.values().filter_map(|track| track.process.as_ref()?.pid).collect();
    assert_eq!(processes.len(), 2);
    assert_ne!(processes[0], processes[1]);
}

#[test]
fn times_are_on_one_clock_and_say_how_wrong_they_may_be() {
    let calls = table("offcpu");
    // n2's clock is 5,000 ns ahead, and 1,000 more at the end of the span.
    let clock = |node: &str, values: [Option<i64>; 4]| {
        let mut row = vec![text(node)];
        row.extend(values.map(int));
        NodeTime::from_row(&row, 1_000_000, 2_000_000).unwrap()
    };
    let times = BTreeMap::from([
        clock("n1", [Some(1_000_000), Some(2_000_000), Some(0), Some(0)]),
        clock("n2", [Some(995_000), Some(1_994_000), Some(100), Some(300)]),
        clock("n3", [None; 4]),
    ]);
    assert_eq!(times["n2"].apart_ns(), 6_000);
    let who = Who { rank: Some(3), comm: Some("py\u{1b}thon".into()), job_id: Some("42".into()) };
    let who = HashMap::from([(("n2".to_owned(), 7), who)]);
    let bytes = written(times, who, |layout| {
        let all = ["n1", "n2", "n3"].map(|node| row(calls, node, (1_500_000, Some(10)), (7, 8), &[]));
        layout.rows(calls, all.iter().map(|row| calls.row(row).unwrap()).collect()).unwrap();
    });
    let read = read(&bytes);
    let seen: Vec<(u64, Option<&str>)> =
        read.slices.iter().map(|seen| (seen.ts, seen.args.get("clock_bound_ns").map(String::as_str))).collect();
    assert_eq!(seen, [(1_494_500, Some("200")), (1_500_000, Some("0")), (1_500_000, None)]);
    assert!(read.slices[2].args["clock"].contains("not set against others"));
    let names: Vec<&str> = read.tracks.values().filter_map(|track| track.name.as_deref()).collect();
    assert!(names.contains(&r"rank 3 on n2 pid 7 py\x1bthon"), "{names:?}");
    assert!(names.contains(&"off-CPU (thread 8)"), "{names:?}");
}

#[test]
fn what_never_ended_stays_open_and_what_is_a_point_is_one() {
    let calls = table("collectives");
    let read =
        read(&rows(calls, &[row(calls, "n1", (5, None), (1, 1), &[]), row(calls, "n1", (9, Some(1)), (1, 1), &[])]));
    assert_eq!(read.slices.iter().map(|seen| seen.dur).collect::<Vec<_>>(), [None, Some(1)]);
    // What begins later lies in it, or on a track of its own: both are read as they were.
    let faults = table("memory_events");
    let read =
        super::tests::read(&rows(faults, &[row(faults, "n1", (5, None), (1, 1), &[("event", text("oom_kill"))])]));
    assert_eq!((read.slices[0].dur, read.slices[0].name.as_str()), (Some(0), "oom_kill"));
}

#[test]
fn states_and_rates_last_until_they_change() {
    let samples = |name: &str| SAMPLES.iter().find(|samples| samples.name == name).unwrap();
    let gpu = |ts: i64, why: &str, clock: i64| {
        let mut row = vec![text("n1"), int(ts), int(0), text(why), int(clock)];
        row.resize(10, Value::Null);
        row
    };
    let second = |at: i64, calls: i64| {
        vec![text("n1"), int(at * 1_000_000_000), int(7), text("mpi"), int(calls), int(5), Value::Null]
    };
    let bytes = written(BTreeMap::new(), HashMap::new(), |layout| {
        let mut counters = Counters::default();
        let gpus = [gpu(30, "", 1_980), gpu(10, "", 1_980), gpu(20, "sw_thermal", 1_200)];
        counters.rows(samples("gpu_samples"), gpus.to_vec(), layout).unwrap();
        let calls = [second(1, 40), second(2, 50), second(7, 60)];
        counters.rows(samples("call_rollups"), calls.to_vec(), layout).unwrap();
        counters.end(layout).unwrap();
    });
    let read = read(&bytes);
    let slices: Vec<_> = read.slices.iter().map(|seen| (seen.name.as_str(), seen.ts, seen.dur)).collect();
    assert_eq!(slices, [("sw_thermal", 20, Some(10))]);
    let named = |name: &str| {
        let (uuid, _) = read.tracks.iter().find(|(_, track)| track.name.as_deref() == Some(name)).unwrap();
        let values = read.values.iter().filter(|(track, ..)| track == uuid);
        values.map(|(_, ts, value)| (*ts, *value)).collect::<Vec<_>>()
    };
    assert_eq!(named("GPU 0 SM clock"), [(10, 1_980.0), (20, 1_200.0), (30, 1_980.0)]);
    let seconds: Vec<(u64, f64)> =
        named("mpi: per second").iter().map(|(ts, value)| (ts / 1_000_000_000, *value)).collect();
    assert_eq!(seconds, [(1, 40.0), (2, 50.0), (3, 0.0), (7, 60.0), (8, 0.0)]);
}

#[test]
fn the_verdict_has_tracks_of_its_own_in_every_file() {
    let report = verdicts::Report {
        evidence: verdicts::Evidence { since_ns: 100, until_ns: 900, ..Default::default() },
        ..Default::default()
    };
    let file = |sequence: u32| {
        let mut layout = Layout::new(Writer::new(Vec::new(), sequence, 1).unwrap(), BTreeMap::new(), HashMap::new());
        verdict::put(&report, "Nobody holds the others up: all is well.\n\nmore", &mut layout).unwrap();
        layout.end().unwrap()
    };
    let (a, b) = (sequence(&["n1".into()], 0, 1), sequence(&["n2".into()], 0, 1));
    assert_ne!(a, b);
    let read = read(&[file(a), file(b)].concat());
    let seen: Vec<_> = read.slices.iter().map(|seen| (seen.name.as_str(), seen.ts, seen.dur)).collect();
    assert_eq!(seen, [("Nobody holds the others up", 100, Some(800)); 2]);
    assert_ne!(read.slices[0].track, read.slices[1].track);
}

#[test]
fn a_million_overlapping_slices_end() {
    let calls = table("collectives");
    let made = |at: i64| calls.row(&row(calls, "n1", (1_000 + at, Some(2_000_000)), (1, 1), &[])).unwrap();
    let mut layout = Layout::new(Writer::new(std::io::sink(), 1, 0).unwrap(), BTreeMap::new(), HashMap::new());
    // None is within another: each ends after the one before.
    layout.rows(calls, (0..1_000_000).map(made).collect()).unwrap();
    assert_eq!(layout.writer().written().events + layout.crowded(), 1_000_000);
    assert!(layout.writer().written().events >= 64);
}

#[test]
fn extreme_times_are_no_panic() {
    let extremes = [i64::MIN, -1, 0, 1, i64::MAX];
    for from_ns in extremes {
        for to_ns in extremes {
            for a in extremes {
                for b in extremes {
                    let row = [text("n1"), int(a), int(b), int(b), int(a)];
                    let (_, time) = NodeTime::from_row(&row, from_ns, to_ns).unwrap();
                    for ts_ns in extremes {
                        let _ = (time.aligned(ts_ns), time.bound_ns(ts_ns), time.apart_ns());
                    }
                }
            }
        }
    }
    let mut layout = Layout::new(Writer::new(std::io::sink(), 1, 0).unwrap(), BTreeMap::new(), HashMap::new());
    for samples in SAMPLES {
        let mut counters = Counters::default();
        for (ts_ns, value) in extremes.into_iter().flat_map(|ts_ns| extremes.map(|value| (ts_ns, value))) {
            let columns = [text("n1"), int(ts_ns), text("a"), int(1), text("b"), int(value), int(value), int(value)];
            counters.rows(samples, vec![columns.into()], &mut layout).unwrap();
            let columns = [text("n1"), int(ts_ns), int(value), text("b"), int(value), int(value), int(value)];
            counters.rows(samples, vec![columns.into()], &mut layout).unwrap();
        }
        counters.end(&mut layout).unwrap();
    }
}

proptest! {
    /// However calls overlap, each is read with its own begin and end, and none on another's
    /// thread.
    #[test]
    fn every_slice_keeps_its_ends(
        calls in prop::collection::vec((0_i64..60, prop::option::weighted(0.95, 0_i64..25), 1_i64..3), 1..60),
        stretch in 1_i64..40,
    ) {
        let of = table("collectives");
        let bytes = written(BTreeMap::new(), HashMap::new(), |layout| {
            for from in (0..60).step_by(usize::try_from(stretch).unwrap()) {
                let part = calls.iter().enumerate().filter(|(_, (ts, ..))| (from..from + stretch).contains(ts));
                let part = part.map(|(seq, (ts, dur, tid))| {
                    let args = [("seq", int(i64::try_from(seq).unwrap()))];
                    of.row(&row(of, "n1", (*ts, *dur), (1, *tid), &args)).unwrap()
                });
                layout.rows(of, part.collect()).unwrap();
            }
        });
        let read = read(&bytes);
        prop_assert_eq!(read.slices.len(), calls.len());
        for seen in &read.slices {
            let (ts, dur, tid) = calls[seen.args["seq"].parse::<usize>().unwrap()];
            prop_assert_eq!((seen.ts.cast_signed(), seen.dur.map(u64::cast_signed)), (ts, dur));
            let name = read.tracks[&seen.track].name.as_deref().unwrap();
            prop_assert_eq!(name, if tid == 1 { "collectives" } else { "collectives (thread 2)" });
        }
    }
}

#[test]
fn readers_are_given_requests_without_paths_and_clients() {
    let table = |name: &str| TABLES.iter().find(|table| table.name == name).expect("it is one");
    let all = table("requests").select(1, 2, None);
    assert!(all.contains("service, tenant, method, route, status"), "{all}");
    let shown = table("requests").select_for_readers(1, 2, None).expect("they may ask for the rest");
    assert!(shown.contains("service, NULL, method, NULL, status"), "{shown}");
    assert_eq!(table("collectives").select_for_readers(1, 2, None), None);
}
