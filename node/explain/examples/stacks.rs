//! Prints the stacks of processes: `cargo run -p rankmesh-explain --example stacks -- PID…`
//! With `--time N`, reads each N times and prints the time of a read as well.
#![allow(missing_docs)]

use std::time::Instant;

use explain::stacks::{Frame, Limits, ProcessStacks, StackReader};

fn main() {
    let mut reader = StackReader::new(Limits::default());
    let mut arguments = std::env::args().skip(1).peekable();
    let mut times = 1;
    while let Some(argument) = arguments.next() {
        if argument == "--time" {
            times = arguments.next().and_then(|n| n.parse().ok()).expect("--time N");
            continue;
        }
        let pid: u32 = argument.parse().expect("a pid");
        let mut taken = Vec::new();
        let mut result = None;
        for _ in 0..times {
            let start = Instant::now();
            result = Some(reader.read(pid));
            taken.push(start.elapsed());
        }
        match result {
            Some(Ok(stacks)) => print(&stacks),
            Some(Err(error)) => println!("{error}"),
            None => {}
        }
        if times > 1 {
            let first = taken[0];
            taken.sort();
            println!("  first read {first:?}, p50 {:?}, p99 {:?}", taken[times / 2], taken[times * 99 / 100]);
        }
    }
}

fn print(stacks: &ProcessStacks) {
    println!("process {} ({})", stacks.pid, stacks.runtime);
    for thread in &stacks.threads {
        let wait = thread.wait_channel.as_deref().unwrap_or("-");
        println!("  thread {} {:?} {:?} in {wait}, {:?}", thread.tid, thread.name, thread.state, thread.trust);
        for frame in thread.frames.iter().rev() {
            match frame {
                Frame::Python { function, file, line } => println!("    {function} ({file}:{})", line.unwrap_or(0)),
                Frame::Native { function, module } => println!("    {function} [{module}]"),
                Frame::ReturnProbe => println!("    (return probe: callers not known)"),
            }
        }
        if thread.outer_missing {
            println!("    (outer functions missing)");
        }
        if let Some(note) = &thread.note {
            println!("    ({note})");
        }
    }
}
