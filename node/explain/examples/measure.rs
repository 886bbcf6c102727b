//! Measures, against running programs: `measure cost PID READS` (time of a read) and `measure torn
//! PID READS` (a program of functions main > a > b > c and main > d > e > f: how many stacks are
//! torn, and how many are wrong but not marked so).
#![allow(missing_docs)]

use std::time::Instant;

use explain::stacks::{Frame, Limits, StackReader, Trust};

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [what, pid, reads] = &arguments[..] else { panic!("measure cost|torn PID READS") };
    let (pid, reads): (u32, usize) = (pid.parse().expect("a pid"), reads.parse().expect("a number"));
    let mut reader = StackReader::new(Limits::default());
    match &what[..] {
        "cost" => cost(&mut reader, pid, reads),
        "torn" => torn(&mut reader, pid, reads),
        other => panic!("{other}: cost or torn"),
    }
}

fn cost(reader: &mut StackReader, pid: u32, reads: usize) {
    let mut times = Vec::with_capacity(reads);
    let (mut threads, mut frames) = (0, 0);
    for _ in 0..reads {
        let start = Instant::now();
        let stacks = reader.read(pid).expect("readable");
        times.push(start.elapsed());
        threads = stacks.threads.len();
        frames = stacks.threads.iter().map(|thread| thread.frames.len()).sum();
    }
    let first = times[0];
    times.sort();
    let (p50, p99) = (times[reads / 2], times[reads * 99 / 100]);
    println!("{threads} threads, {frames} frames: first read {first:?}, then p50 {p50:?}, p99 {p99:?}");
}

fn torn(reader: &mut StackReader, pid: u32, reads: usize) {
    let (mut torn, mut wrong, mut torn_wrong, mut chain_a) = (0, 0, 0, 0);
    for _ in 0..reads {
        let stacks = reader.read(pid).expect("readable");
        let thread = &stacks.threads[0];
        let names: Vec<&str> = thread
            .frames
            .iter()
            .map(|frame| match frame {
                Frame::Python { function, .. } => function.as_str(),
                _ => "?",
            })
            .collect();
        let known = [&["<module>", "main", "a", "b", "c"], &["<module>", "main", "d", "e", "f"]];
        let right = known.iter().any(|chain| chain.starts_with(&names));
        chain_a += usize::from(names.get(2) == Some(&"a"));
        match thread.trust {
            Trust::Torn => {
                torn += 1;
                torn_wrong += usize::from(!right);
            }
            _ => wrong += usize::from(!right),
        }
    }
    println!(
        "{reads} reads: {torn} torn ({torn_wrong} of them wrong), {wrong} wrong and not marked; {chain_a} in chain a"
    );
}
